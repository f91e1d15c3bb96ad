"""A graph as a pipeline file: the way back of `pipeline.config`, which reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

from pipeline.document import escape
from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, Node
from pipeline.lookup import Table
from pipeline.values import Rows

VERSION = 1
"""What `ridgeway:` says in a file that this version reads."""


def dump(graph: Graph, stages: Table) -> str:
    """The pipeline file of a graph: `loads(dump(graph, stages), ...)` equals `graph`.

    Raises GraphError for a stage that a file cannot name, such as one that is defined in a function.
    """
    from ruamel.yaml import YAML

    out = StringIO()
    yaml = YAML()
    yaml.width = 100
    policies = {"policies": list(graph.policies)} if graph.policies else {}
    yaml.dump({"ridgeway": VERSION, **_graph(graph, {v: k for k, v in stages.items()}), **policies}, out)
    return out.getvalue()


def _graph(graph: Graph, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "inputs": {name: _kind_name(kind) for name, kind in graph.inputs.items()},
        "stages": {n.name: _node(n, names) for n in graph.nodes},
        "outputs": dict(graph.outputs),
    }


def _node(n: Node, names: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any]
    if isinstance(n.stage, Loop):
        found = {"loop": _graph(n.stage.body, names), "carry": dict(n.stage.carry)}
        found |= {"until": n.stage.until, "max_rounds": n.stage.max_rounds}
    else:
        path = _path(type(n.stage))
        found = {"stage": names.get(path, path), **_parameters(n.stage)}
    found |= {k: v for k, v in (("device", n.device), ("batch", n.batch)) if v is not None}
    return found | dict(n.inputs)


def _parameters(stage: Any) -> dict[str, Any]:
    given = {f.name: getattr(stage, f.name) for f in fields(stage)}
    return {f.name: _plain(given[f.name]) for f in fields(stage) if given[f.name] != f.default}


def _plain(value: Any) -> Any:
    if isinstance(value, Path | str):
        return _text(escape(str(value)))
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _text(text: str) -> str:
    """Quoted where a character could not stand as it is, such as a line end that YAML folds."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    return text if text.isprintable() else DoubleQuotedScalarString(text)


def _kind_name(kind: type[Rows]) -> str:
    return kind.__name__ if kind.__module__ == "pipeline.values" else _path(kind)


def _path(kind: type) -> str:
    if "<locals>" in kind.__qualname__:
        raise GraphError(f"{kind.__qualname__} is defined in a function: a pipeline file cannot name it")
    return f"{kind.__module__}:{kind.__qualname__}"
