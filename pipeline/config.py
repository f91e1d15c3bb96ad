"""Pipeline files: YAML is the constructor.

A file says the same as Python: inputs with their types, nodes whose keys are ports and constructor
arguments, outputs. `load` builds the graph, `dump` writes it, and a graph survives the round trip.
Stages come from the table that the caller passes; others only from modules that the user allows.

    ridgeway: 1
    inputs: {documents: Documents, questions: Queries}
    stages:
      pages: {stage: ListPages, documents: documents}
      search: {stage: Search, queries: questions, index: index, k: 8, device: cuda:0}
      steps: {loop: {inputs: ..., stages: ..., outputs: ...}, carry: ..., until: ..., max_rounds: 3}
    outputs: {answers: cite}
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from pipeline import values
from pipeline.document import Document, parse
from pipeline.document import Path as At
from pipeline.dumping import VERSION, dump
from pipeline.errors import GraphError, RidgewayError
from pipeline.graph import Graph, Loop, Node
from pipeline.lookup import Table, near_miss
from pipeline.lookup import load as load_object
from pipeline.policies import NONE, POLICIES
from pipeline.program import flatten
from pipeline.stage import ports
from pipeline.values import Rows

__all__ = ["VERSION", "dump", "load", "loads"]

T = TypeVar("T")


def load(
    path: str | Path,
    stages: Table,
    variables: Mapping[str, str] | None = None,
    settings: tuple[str, ...] = (),
    allow: tuple[str, ...] = (),
) -> Graph:
    """The graph in a pipeline file.

    `stages`: names to `"module:Class"`; `variables`: what `${NAME}` stands for; `settings`: overrides such
    as `"stages.search.k=12"`; `allow`: modules whose stages and types may be named as `module:Class`.
    Raises ConfigError that begins with `file:line`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RidgewayError(f"cannot read pipeline file {str(path)!r}: {error}") from None
    return loads(text, str(path), stages, variables, settings, allow)


def loads(
    text: str,
    name: str,
    stages: Table,
    variables: Mapping[str, str] | None = None,
    settings: tuple[str, ...] = (),
    allow: tuple[str, ...] = (),
) -> Graph:
    """The graph in `text`; `name` stands for the file in errors. See `load`."""
    document = parse(text, name, variables or {}, settings)
    builder = _Builder(document, stages, allow)
    data = builder.mapping(document.data, (), ("ridgeway", "inputs", "stages", "outputs", "policies"))
    if data.get("ridgeway") != VERSION:
        raise document.error(("ridgeway",), f"expected `ridgeway: {VERSION}`, found {data.get('ridgeway')!r}")
    graph = builder.graph(data, ())
    try:
        flatten(graph)
    except GraphError as error:
        raise document.error(error.at, str(error)) from None
    return graph


class _Builder:
    def __init__(self, document: Document, stages: Table, allow: tuple[str, ...]) -> None:
        self.document = document
        self.stages = stages
        self.allow = allow

    def mapping(self, data: Any, at: At, known: tuple[str, ...] = ()) -> dict[str, Any]:
        """`data` as a mapping with no keys but `known` (any, if none are given)."""
        if not isinstance(data, dict):
            raise self.document.error(at, f"expected keys and values, found {data!r}")
        for key in data:
            if known and key not in known:
                raise self.document.error((*at, key), f"unknown key {key!r}{near_miss(key, known)}")
        return data

    def names(self, data: Any, at: At) -> dict[str, str]:
        """`data` as a mapping of names to names."""
        found = self.mapping(data, at)
        for key, value in found.items():
            if not isinstance(value, str):
                raise self.document.error((*at, key), f"expected a name, found {value!r}")
        return found

    def graph(self, data: dict[str, Any], at: At) -> Graph:
        for key in ("inputs", "stages", "outputs"):
            if key not in data:
                raise self.document.error(at, f"the key {key!r} is missing")
        inputs = self.names(data["inputs"], (*at, "inputs"))
        kinds = {name: self.kind(kind, (*at, "inputs", name)) for name, kind in inputs.items()}
        nodes = self.mapping(data["stages"], (*at, "stages"))
        made = tuple(self.node(name, spec, (*at, "stages", name)) for name, spec in nodes.items())
        outputs = self.names(data["outputs"], (*at, "outputs"))
        policies = self.policies(data.get("policies", []), (*at, "policies"))
        return self.checked(at, lambda: Graph(kinds, made, outputs, policies))

    def policies(self, data: Any, at: At) -> tuple[str, ...]:
        if not isinstance(data, list):
            raise self.document.error(at, f"expected a list of policies, found {data!r}")
        for i, name in enumerate(data):
            if not isinstance(name, str) or name not in (NONE, *POLICIES):
                miss = near_miss(str(name), (NONE, *POLICIES))
                raise self.document.error((*at, str(i)), f"no policy named {name!r}{miss}")
        return tuple(data)

    def checked(self, at: At, make: Callable[[], T], keys: Collection[str] = ()) -> T:
        """What `make` makes; its errors are told with their place: that of the first of `keys` they name."""
        try:
            return make()
        except (RidgewayError, TypeError, ValueError) as error:
            named = tuple(word for word in re.findall(r"\w+", str(error)) if word in keys)
            below = getattr(error, "at", ()) or named[:1]
            raise self.document.error((*at, *below), str(error)) from None

    def kind(self, name: str, at: At) -> type[Rows]:
        known = {n: f"pipeline.values:{n}" for n in values.__all__ if n not in ("Rows", "RowId")}
        found = self.object(name, known, at, "type of rows")
        if not (isinstance(found, type) and issubclass(found, Rows)):
            raise self.document.error(at, f"{name!r} is no type of rows")
        return found

    def object(self, name: str, table: Table, at: At, what: str) -> Any:
        if name in table:
            return load_object(table[name])
        module, colon, _ = name.partition(":")
        if not colon:
            raise self.document.error(at, f"no {what} named {name!r}{near_miss(name, table)}")
        if not any(module == a or module.startswith(f"{a}.") for a in self.allow):
            message = f"module {module!r} may not be imported from a pipeline file"
            raise self.document.error(at, f"{message}; if you trust it: --allow {module}")
        try:
            return load_object(name)
        except Exception as error:
            raise self.document.error(at, f"cannot import {name!r}: {error}") from error

    def node(self, name: str, spec: Any, at: At) -> Node:
        data = dict(self.mapping(spec, at))
        if ("stage" in data) == ("loop" in data):
            raise self.document.error(at, "a node has either `stage: NAME` or `loop: {...}`")
        device, batch = data.pop("device", None), data.pop("batch", None)
        self.expect((*at, "device"), device, str | None)
        self.expect((*at, "batch"), batch, int | None)
        if "loop" in data:
            if device is not None or batch is not None:
                raise self.document.error(at, "device and batch belong to the stages inside the loop")
            stage, inputs = self.loop(data, at)
        else:
            stage, inputs = self.stage(data, at)
        return self.checked(at[:-2], lambda: Node(name, stage, inputs, device, batch))

    def stage(self, data: dict[str, Any], at: At) -> tuple[Any, dict[str, str]]:
        name = data.pop("stage")
        self.expect((*at, "stage"), name, str)
        kind = self.object(name, self.stages, (*at, "stage"), "stage")
        if not isinstance(kind, type):
            raise self.document.error((*at, "stage"), f"{name!r} is no stage: it is no class")
        wired = self.checked(at, lambda: ports(kind)).inputs
        hints = typing.get_type_hints(kind)
        parameters = {f.name: f for f in fields(kind) if f.init}
        for key in data:
            if key not in wired and key not in parameters:
                known = (*wired, *parameters, "device", "batch")
                raise self.document.error(
                    (*at, key), f"{name} has no port or parameter {key!r}{near_miss(key, known)}"
                )
        for key, f in parameters.items():
            if key not in data and f.default is MISSING and f.default_factory is MISSING:
                raise self.document.error(at, f"{name} needs the parameter {key!r}")
        inputs = self.names({k: v for k, v in data.items() if k in wired}, at)
        given = {k: self.expect((*at, k), v, hints[k]) for k, v in data.items() if k in parameters}
        return self.checked(at, lambda: kind(**given), given), inputs

    def loop(self, data: dict[str, Any], at: At) -> tuple[Loop, dict[str, str]]:
        body_data = self.mapping(data.pop("loop"), (*at, "loop"), ("inputs", "stages", "outputs"))
        body = self.graph(body_data, (*at, "loop"))
        for key in ("carry", "until", "max_rounds"):
            if key not in data:
                raise self.document.error(at, f"a loop needs the key {key!r}")
        carry = self.names(data.pop("carry"), (*at, "carry"))
        until = self.expect((*at, "until"), data.pop("until"), str)
        rounds = self.expect((*at, "max_rounds"), data.pop("max_rounds"), int)
        for key in data:
            if key not in body.inputs:
                known = (*body.inputs, "carry", "until", "max_rounds")
                raise self.document.error((*at, key), f"the loop has no input {key!r}{near_miss(key, known)}")
        return self.checked(at, lambda: Loop(body, carry, until, rounds)), self.names(data, at)

    def expect(self, at: At, value: Any, hint: Any) -> Any:
        """`value` as the type `hint`; YAML's own types are not bent, but paths are texts and lists tuples."""
        made, ok = _convert(value, hint)
        if not ok:
            raise self.document.error(at, f"expected {_named(hint)}, found {value!r}")
        return made


def _convert(value: Any, hint: Any) -> tuple[Any, bool]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return next(((made, ok) for a in args for made, ok in [_convert(value, a)] if ok), (value, False))
    if origin is tuple and isinstance(value, list):
        hints = args[:1] * len(value) if args[-1] is Ellipsis else args
        items = [_convert(v, h) for v, h in zip(value, hints, strict=False)]
        return tuple(made for made, _ in items), len(value) == len(hints) and all(ok for _, ok in items)
    if hint is type(None):
        return value, value is None
    if hint is Path:
        return (Path(value), True) if isinstance(value, str) else (value, False)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value), True
    if origin is typing.Literal:
        return value, any(type(value) is type(a) and value == a for a in args)
    return value, isinstance(hint, type) and type(value) is hint


def _named(hint: Any) -> str:
    """A type as the person who writes YAML calls it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_named(a) for a in args)
    if origin is tuple:
        return f"a list of {' and '.join(_named(a) for a in args if a is not Ellipsis)}"
    if origin is typing.Literal:
        return " or ".join(repr(a) for a in args)
    known = {str: "a text", int: "an int", float: "a float", bool: "true or false", type(None): "null"}
    return known.get(hint) or ("a path" if hint is Path else str(hint))
