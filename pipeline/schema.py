"""The pipeline file as a JSON Schema (draft 2020-12), for editors: completion, hints, red lines.

Made from the same signatures that `pipeline.config` builds stages from, so it knows every port and
parameter. What needs the whole graph (does that node exist, do the types of two ports fit) a schema cannot
say: `ridgeway check` does. Where the two could differ the schema is the milder one: all that `config` loads
is valid, since a red line under a good file is worse than none under a bad one. Two exceptions, both odd:
`ridgeway: ${VERSION}`, and keys that are variables.
"""

from __future__ import annotations

import math
import types
import typing
from pathlib import Path
from typing import Any

from pipeline import values
from pipeline.catalogue import Entry, Parameter, catalogue, hint_name
from pipeline.config import VERSION
from pipeline.lookup import Table
from pipeline.policies import NONE, POLICIES

__all__ = ["schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_VARIABLE = {"type": "string", "pattern": r"(^|[^$])\$\{[^}]*\}"}
"""Text with `${NAME}` in it; `$${` is an escape."""

_ELSEWHERE = {"type": "string", "pattern": r":|\$\{"}
"""A name that is no table's: `module:Name`, or a variable."""

_NAME = {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
_NOTHING: Schema = {"not": {}}
_NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
_SCALARS = {
    str: "string",
    Path: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def schema(stages: Table) -> Schema:
    """The schema of pipeline files with the stages of the table; plain JSON, the same for the same table.

    Imports the stages' modules: raises what `pipeline.catalogue.catalogue` raises.
    """
    entries = catalogue(stages)
    return {
        "$schema": DIALECT,
        "title": "Ridgeway pipeline",
        "type": "object",
        "properties": {
            "ridgeway": {"const": VERSION, "description": "version of the format"},
            **_graph(),
            "policies": {
                "type": "array",
                "items": {"enum": [NONE, *POLICIES]},
                "description": "what the scheduler follows beyond its own rules",
            },
        },
        "required": ["ridgeway", "inputs", "stages", "outputs"],
        "additionalProperties": False,
        "$defs": {
            "rows": _rows(),
            "node": _node(entries),
            "elsewhere": _elsewhere(),
            "loop": _loop(),
            "body": _body(),
            **{f"stage.{e.name}": _stage(e) for e in entries},
        },
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _graph() -> Schema:
    return {
        "inputs": {
            "type": "object",
            "description": "what comes in: name to the type of its rows",
            "propertyNames": _NAME,
            "additionalProperties": _ref("rows"),
        },
        "stages": {
            "type": "object",
            "description": "the nodes: name to a stage or a loop",
            "propertyNames": _NAME,
            "additionalProperties": _ref("node"),
        },
        "outputs": {
            **_NAMES,
            "description": "what goes out: name to a node, or to `loop.output`",
            "minProperties": 1,
        },
    }


def _body() -> Schema:
    return {
        "type": "object",
        "description": "one round",
        "properties": _graph(),
        "required": ["inputs", "stages", "outputs"],
        "additionalProperties": False,
    }


def _rows() -> Schema:
    known = [name for name in values.__all__ if name not in ("Rows", "RowId")]
    return {"description": "a type of rows", "anyOf": [{"enum": known}, _ELSEWHERE]}


def _node(entries: tuple[Entry, ...]) -> Schema:
    """A stage or a loop. The stage's name chooses the rules, so that a fault is told of the stage meant."""
    named = [(_has("stage", {"const": e.name}), f"stage.{e.name}") for e in entries]
    others = [(_has("stage", _ELSEWHERE), "elsewhere"), (_has("loop", {}), "loop")]
    return {
        "type": "object",
        "description": "a stage, or a loop",
        "properties": {"stage": {"anyOf": [{"enum": [e.name for e in entries]}, _ELSEWHERE]}},
        "oneOf": [{"required": ["stage"]}, {"required": ["loop"]}],
        "allOf": [{"if": rule, "then": _ref(name)} for rule, name in (*named, *others)],
    }


def _has(key: str, rule: Schema) -> Schema:
    return {"properties": {key: rule}, "required": [key]}


def _stage(entry: Entry) -> Schema:
    """A node that is this stage: its ports and parameters, and no other keys."""
    required = [p.name for p in entry.parameters if p.required]
    return {
        "type": "object",
        "description": entry.doc,
        "properties": {
            "stage": {"const": entry.name, "description": entry.summary},
            **{port: _port(rows) for port, rows in entry.inputs.items()},
            **{p.name: _parameter(p) for p in entry.parameters},
            **_placement(entry.batch),
        },
        "required": ["stage", *entry.inputs, *required],
        "additionalProperties": False,
    }


def _port(rows: str) -> Schema:
    return {"type": "string", "description": f"port: the node, input or `loop.output` that gives {rows}"}


def _placement(batch: int | None) -> Schema:
    usual = {"default": batch} if batch is not None else {}
    return {
        "device": {"type": ["string", "null"], "description": "runs there only: `cpu:0`, `cuda:0`"},
        "batch": {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}, _VARIABLE],
            "description": "the most rows at once",
            **usual,
        },
    }


def _parameter(parameter: Parameter) -> Schema:
    made = _value(parameter.hint)
    words = [f"parameter: {hint_name(parameter.hint)}", *filter(None, [parameter.description])]
    made |= {"description": "\n\n".join(words)}
    known, default = (False, None) if parameter.required else _default(parameter.default)
    return made | {"default": default} if known else made


def _value(hint: Any) -> Schema:
    """What a file may hold for a parameter of the type `hint`, as `pipeline.config` converts it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return {"type": "array", "items": _value(args[0])}
    options = [_option(a) for a in (args if origin in (typing.Union, types.UnionType) else (hint,))]
    if {"type": "string"} not in options and options != [_NOTHING]:
        options.append(_VARIABLE)
    return options[0] if len(options) == 1 else {"anyOf": options}


def _option(hint: Any) -> Schema:
    """One type without alternatives; what no file can hold accepts nothing."""
    if typing.get_origin(hint) is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    if typing.get_origin(hint) is tuple:
        return _value(hint)
    return {"type": _SCALARS[hint]} if hint in _SCALARS else _NOTHING


def _default(value: Any) -> tuple[bool, Any]:
    """Whether JSON can say the default, and how a file says it (where `$${` is an escaped `${`)."""
    if isinstance(value, tuple | list):
        items = [_default(v) for v in value]
        return all(known for known, _ in items), [item for _, item in items]
    if isinstance(value, str | Path):
        return True, str(value).replace("${", "$${")
    if isinstance(value, float):
        return math.isfinite(value), value
    return value is None or isinstance(value, bool | int), value


def _elsewhere() -> Schema:
    """A stage of the user's own, whose ports and parameters are not known here."""
    return {
        "type": "object",
        "description": "a stage of your own, `module:Class`; its module must be allowed",
        "properties": {"stage": _ELSEWHERE, **_placement(None)},
        "required": ["stage"],
    }


def _loop() -> Schema:
    """A loop; its other keys are the inputs of its body."""
    return {
        "type": "object",
        "description": "a body that rows go through again and again, each row until it is done",
        "properties": {
            "loop": _ref("body"),
            "carry": {
                **_NAMES,
                "minProperties": 1,
                "description": "body input to the body output that is its value in the next round",
            },
            "until": {"type": "string", "description": "body output whose column `done` ends a row"},
            "max_rounds": {
                "anyOf": [{"type": "integer", "minimum": 1}, _VARIABLE],
                "description": "rounds after which every row leaves",
            },
            "device": {"type": "null"},
            "batch": {"type": "null"},
        },
        "required": ["loop", "carry", "until", "max_rounds"],
        "additionalProperties": {"type": "string"},
    }
