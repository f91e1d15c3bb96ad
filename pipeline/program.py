"""A graph made flat for those who run it: every step with its edges, and how its rows meet.

Rows meet by id: the *lineage* of a reference is the path of its ids, one name an element. An input
has the lineage `(input,)`, an expanding stage appends itself, a gathering one cuts. A node may join
references of which each lineage is a prefix of the longest; its rows are those of the longest, and
each of them meets the one row of every other whose id is its prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, Node
from pipeline.stage import expands, gathers
from pipeline.values import Rows

Lineage = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """`producer` feeds `port`; rows meet on the first `depth` elements of their ids, `scope` loops deep."""

    port: str
    producer: str
    depth: int
    scope: int


@dataclass(frozen=True, slots=True)
class Step:
    """A stage in its place. `depth`: length of the ids it reads; `made`: of those it gives.

    `scope`: the loops around it, outermost first.
    """

    name: str
    stage: Any
    edges: tuple[Edge, ...]
    depth: int
    made: int
    scope: Lineage
    device: str | None
    batch: int | None
    origin: str
    """For a gathering step, the expanding step (or the input) whose rows it makes whole again."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A loop in its place. `edges` feed it from outside; a row is in it from entry to exit.

    `carried`: entry (a producer inside) to the producer whose row becomes it in the next round.
    `outputs`: what the loop gives, name to the producer inside; `until`: the producer of `done`.
    """

    name: str
    edges: tuple[Edge, ...]
    depth: int
    scope: Lineage
    carried: Mapping[str, str]
    outputs: Mapping[str, str]
    until: str
    max_rounds: int


@dataclass(frozen=True, slots=True)
class Program:
    """All steps and loops in topological order; `outputs`: name to producer; `depths`: of each producer."""

    sources: Mapping[str, type[Rows]]
    nodes: tuple[Step | Turn, ...]
    outputs: Mapping[str, str]
    depths: Mapping[str, int]
    roots: Mapping[str, str]
    """Output to the source whose rows it answers; "" for the whole corpus."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The nodes that are stages."""
        return tuple(n for n in self.nodes if isinstance(n, Step))


def flatten(graph: Graph) -> Program:
    """The program of a whole graph. Raises GraphError where rows cannot meet."""
    build = _Build()
    given: _Refs = {name: (name, () if kind.whole else (name,)) for name, kind in graph.inputs.items()}
    build.lineages |= dict(given.values())
    refs = build.body(graph, given, (), "")
    outputs = {name: refs[ref] for name, ref in graph.outputs.items()}
    return Program(
        sources=dict(graph.inputs),
        nodes=tuple(build.nodes),
        outputs={name: producer for name, (producer, _) in outputs.items()},
        depths={name: len(lineage) for name, lineage in build.lineages.items()},
        roots={o: (set(graph.inputs) & {*lineage[:1]} or {""}).pop() for o, (_, lineage) in outputs.items()},
    )


_Refs = dict[str, tuple[str, Lineage]]


class _Build:
    """Walks a graph and its loops, naming every producer and its lineage."""

    def __init__(self) -> None:
        self.nodes: list[Step | Turn] = []
        self.lineages: dict[str, Lineage] = {}
        self.scopes: dict[str, int] = {}

    def body(self, graph: Graph, given: _Refs, scope: Lineage, prefix: str) -> _Refs:
        """Add the nodes of `graph`, whose inputs are `given`; returns what each of its refs stands for."""
        refs = dict(given)
        for n in graph.nodes:
            if isinstance(n.stage, Loop):
                refs |= self._loop(n, n.stage, refs, scope, prefix)
            else:
                refs[n.name] = self._step(n, refs, scope, prefix)
        return refs

    def _step(self, n: Node, refs: _Refs, scope: Lineage, prefix: str) -> tuple[str, Lineage]:
        name = prefix + n.name
        joined = self._join(n, refs, name)
        depth = gathers(n.stage)
        if depth is not None:
            self._check_gather(n, depth, joined, scope, refs)
            made, origin = joined[:depth], joined[depth]
        else:
            made, origin = (*joined, name) if expands(n.stage) else joined, ""
        self.lineages[name] = made
        self.scopes[name] = len(scope)
        edges = self._edges(n, refs)
        if not any(e.scope == len(scope) and e.depth == len(joined) for e in edges):
            raise GraphError(
                f"node {name!r} is the same in every round: put it before the loop", "stages", n.name
            )
        self.nodes.append(
            Step(name, n.stage, edges, len(joined), len(made), scope, n.device, n.batch, origin)
        )
        return name, made

    def _loop(self, n: Node, loop: Loop, refs: _Refs, scope: Lineage, prefix: str) -> _Refs:
        name = prefix + n.name
        lineage = self._join(n, refs, name)
        given: _Refs = {}
        for port, ref in n.inputs.items():
            if port in loop.carry:
                self._check_carried(n, port, refs[ref][1], lineage)
                given[port] = (f"{name}/{port}", lineage)
                self.lineages[f"{name}/{port}"] = lineage
                self.scopes[f"{name}/{port}"] = len(scope) + 1
            else:
                given[port] = refs[ref]
        at = len(self.nodes)
        inner = self.body(loop.body, given, (*scope, name), f"{name}/")
        outputs = {out: inner[ref] for out, ref in loop.body.outputs.items()}
        for out, (_, made) in outputs.items():
            if made != lineage:
                raise GraphError(
                    f"loop {n.name!r}: output {out!r} must have one row per row that enters", "stages", n.name
                )
        turn = Turn(
            name=name,
            edges=self._edges(n, refs),
            depth=len(lineage),
            scope=scope,
            carried={f"{name}/{i}": outputs[o][0] for i, o in loop.carry.items()},
            outputs={f"{name}.{o}": p for o, (p, _) in outputs.items()},
            until=outputs[loop.until][0],
            max_rounds=loop.max_rounds,
        )
        self.nodes.insert(at, turn)
        found: _Refs = {}
        for out in outputs:
            self.lineages[f"{name}.{out}"] = lineage
            self.scopes[f"{name}.{out}"] = len(scope)
            found[f"{n.name}.{out}"] = (f"{name}.{out}", lineage)
        if len(outputs) == 1:
            found[n.name] = next(iter(found.values()))
        return found

    def _join(self, n: Node, refs: _Refs, name: str) -> Lineage:
        """The longest lineage that `n` reads; the others must be prefixes of it."""
        lineages = {port: refs[ref][1] for port, ref in n.inputs.items()}
        port, longest = max(lineages.items(), key=lambda item: len(item[1]))
        for other, lineage in lineages.items():
            if longest[: len(lineage)] != lineage:
                raise GraphError(
                    f"node {name!r}: rows of port {other!r} (per {_per(lineage)}) and of port {port!r} "
                    f"(per {_per(longest)}) never meet: gather one of them first",
                    "stages", n.name, other,
                )  # fmt: skip
        return longest

    def _edges(self, n: Node, refs: _Refs) -> tuple[Edge, ...]:
        found = []
        for port, ref in n.inputs.items():
            producer, lineage = refs[ref]
            found.append(Edge(port, producer, len(lineage), self.scopes.get(producer, 0)))
        return tuple(found)

    def _check_gather(self, n: Node, depth: int, joined: Lineage, scope: Lineage, refs: _Refs) -> None:
        at = ("stages", n.name)
        if depth >= len(joined):
            raise GraphError(
                f"node {n.name!r} gathers rows that share {depth} id elements, but they have {len(joined)}",
                *at,
            )
        if any(len(refs[ref][1]) < len(joined) for ref in n.inputs.values()):
            raise GraphError(f"node {n.name!r} gathers, so all its ports must be per {_per(joined)}", *at)
        if scope and depth < len(self.lineages[self._entry(scope[-1])]):
            raise GraphError(
                f"node {n.name!r} gathers across the rows of loop {scope[-1]!r}: it would hold each "
                f"row back until the slowest; gather after the loop",
                *at,
            )

    def _entry(self, loop: str) -> str:
        return next(p for p in self.lineages if p.startswith(f"{loop}/"))

    def _check_carried(self, n: Node, port: str, lineage: Lineage, joined: Lineage) -> None:
        if lineage != joined:
            raise GraphError(
                f"loop {n.name!r}: carried {port!r} is per {_per(lineage)}, the loop per {_per(joined)}",
                "stages", n.name, port,
            )  # fmt: skip


def _per(lineage: Lineage) -> str:
    return " / ".join(lineage) if lineage else "whole corpus"
