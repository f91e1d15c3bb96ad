"""What stages there are, read from their classes: for `ridgeway stages` and the schema of pipeline files.

The signature is the documentation: ports, parameters, types and defaults come from the class, the words
from its docstring. Nothing is declared twice, so nothing here can be out of date. Stages are imported,
never made; no heavy library is.
"""

from __future__ import annotations

import inspect
import math
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import PurePath
from typing import Any

from pipeline.lookup import Table, find
from pipeline.stage import accelerated, batch_size, expands, gathers, ports

__all__ = ["Entry", "Parameter", "catalogue", "entry", "hint_name"]

_SHORT = 48
"""Characters of a default that people are shown."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constructor argument. `hint`: its resolved type; `default`: MISSING where it must be given.

    `description`: what the stage's docstring says about it, "" where it says nothing.
    """

    name: str
    hint: Any
    default: Any
    description: str

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    def __str__(self) -> str:
        said = f"{self.name}: {hint_name(self.hint)}"
        return said if self.required else f"{said} = {textwrap.shorten(repr(self.default), _SHORT)}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; a default that JSON cannot say is told as text."""
        told: dict[str, Any] = {"name": self.name, "type": hint_name(self.hint), "required": self.required}
        if not self.required:
            told["default"] = _plain(self.default)
        return told | {"description": self.description}


@dataclass(frozen=True, slots=True)
class Entry:
    """A stage of the table. `path`: "module:Class"; `summary`: the first line of `doc`, its docstring.

    `kind`: "one to one", "one to many", or "many to one (depth N)": the rows whose ids share the first N
    elements become one. `inputs`: port to the name of its type of rows; `output`: that of what it gives.
    `batch`: rows to a batch by default.
    """

    name: str
    path: str
    summary: str
    doc: str
    kind: str
    inputs: Mapping[str, str]
    output: str
    parameters: tuple[Parameter, ...]
    batch: int
    accelerated: bool

    def ports(self) -> str:
        """For people: `queries: Queries, index: Indexes -> Hits (one to one)`."""
        given = ", ".join(f"{port}: {rows}" for port, rows in self.inputs.items())
        return f"{given} -> {self.output} ({self.kind})"

    def settings(self) -> str:
        """For people, a line each: `k: int = 8`; long defaults are cut."""
        return "\n".join(map(str, self.parameters))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: strings, numbers, lists and dicts only."""
        return {
            "name": self.name,
            "path": self.path,
            "summary": self.summary,
            "kind": self.kind,
            "inputs": dict(self.inputs),
            "output": self.output,
            "parameters": [p.as_dict() for p in self.parameters],
            "batch": self.batch,
            "accelerated": self.accelerated,
        }


def catalogue(stages: Table) -> tuple[Entry, ...]:
    """An entry for each stage of the table, in its order.

    Imports the stages' modules: raises what they raise, and GraphError for a class that is no stage.
    """
    return tuple(entry(name, stages) for name in stages)


def entry(name: str, stages: Table) -> Entry:
    """The entry of one stage. Raises LookupError with the near miss, else as `catalogue`."""
    stage = find(name, stages, "stage")
    wired = ports(stage)
    doc = _doc(stage)
    traits = _Traits(stage)
    return Entry(
        name=name,
        path=stages[name],
        summary=doc.partition("\n")[0].strip(),
        doc=doc,
        kind=_kind(traits),
        inputs={port: rows.__name__ for port, rows in wired.inputs.items()},
        output=wired.output.__name__,
        parameters=_parameters(stage, doc),
        batch=batch_size(traits),
        accelerated=accelerated(traits),
    )


def hint_name(hint: Any) -> str:
    """A type as people write it: `float | None`, `Path`, `tuple[str, ...]`."""
    if hint is type(None):
        return "None"
    if hint is Ellipsis:
        return "..."
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(map(repr, args))
    names = [hint_name(a) for a in args]
    if origin in (typing.Union, types.UnionType):
        return " | ".join(names)
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(names)}]" if names else name


class _Traits:
    """A stage class seen as a stage: where a trait such as `gathers` is a parameter, its default."""

    def __init__(self, stage: type) -> None:
        self._stage = stage
        self._defaults = {f.name: _default(f) for f in fields(stage)}

    def __getattr__(self, name: str) -> Any:
        found = self._defaults[name] if name in self._defaults else getattr(self._stage, name)
        if found is MISSING:
            raise AttributeError(name)
        return found


def _kind(traits: _Traits) -> str:
    depth = gathers(traits)
    if depth is not None:
        return f"many to one (depth {depth})"
    return "one to many" if expands(traits) else "one to one"


def _parameters(stage: type, doc: str) -> tuple[Parameter, ...]:
    hints = typing.get_type_hints(stage)
    return tuple(
        Parameter(f.name, hints[f.name], _default(f), _about(f.name, doc)) for f in fields(stage) if f.init
    )


def _default(f: Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _doc(stage: type) -> str:
    """The docstring that the class itself has; the one that dataclass makes up says nothing."""
    doc = inspect.cleandoc(stage.__doc__ or "")
    return "" if doc.startswith(f"{stage.__name__}(") else doc


def _about(name: str, doc: str) -> str:
    """The sentences of `doc` that name the parameter in backticks, on one line; not what they raise."""
    sentences = re.split(r"(?<=[.!?])\s+|\n\n+", doc)
    found = [s for s in sentences if f"`{name}`" in s and not s.startswith("Raises")]
    return " ".join(" ".join(s.split()) for s in found)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, PurePath) else repr(value)
