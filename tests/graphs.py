"""Random graphs over the toy stages, with loops, fan-out, fan-in, and rows that fail."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, Node, node
from pipeline.program import flatten
from pipeline.values import Rows
from tests.toys import Collatz, Fan, Join, Numbers, Picky, Plus, Strip, Total, Whole, numbers

bad = st.integers(0, 60)


def plain_body(draw: Any) -> Loop:
    """Round after round on its own."""
    nodes = (node("go", Collatz(draw(bad)), a="n"), node("bare", Strip(), a="go"))
    return Loop(
        Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"}),
        {"n": "next"},
        "flags",
        draw(st.integers(1, 5)),
    )


def fanning_body(draw: Any) -> Loop:
    """Each round fans out, joins a value from outside, and gathers by question."""
    nodes = (
        node("fan", Fan(draw(st.integers(1, 4)), draw(bad)), a="n"),
        node("mine", Plus(1, draw(bad)), a="fan"),
        node("both", Join(), a="mine", b="k"),
        node("all", Total(1), a="both"),
        node("go", Collatz(draw(bad)), a="all"),
        node("bare", Strip(), a="go"),
    )
    graph = Graph({"n": Numbers, "k": Numbers}, nodes, {"next": "bare", "flags": "go"})
    return Loop(graph, {"n": "next"}, "flags", draw(st.integers(1, 3)))


def carrying_body(draw: Any) -> Loop:
    """Two values go round together; inside them, another loop."""
    nodes = (
        node("inner", plain_body(draw), n="n"),
        node("both", Join(), a="inner.next", b="k"),
        node("sum", Join(), a="both", b="m"),
        node("go", Collatz(draw(bad)), a="sum"),
        node("bare", Strip(), a="go"),
        node("more", Plus(1, draw(bad)), a="m"),
    )
    inputs = {"n": Numbers, "m": Numbers, "k": Numbers}
    graph = Graph(inputs, nodes, {"next": "bare", "flags": "go", "more": "more"})
    return Loop(graph, {"n": "next", "m": "more"}, "flags", draw(st.integers(1, 3)))


@st.composite
def graphs(draw: Any) -> Graph:
    """A graph of up to seven nodes over the inputs `docs`, `asks` and `all`, a row of the whole corpus."""
    nodes: list[Node] = []
    refs = ["all", "docs", "asks"]
    for i in range(draw(st.integers(1, 7))):
        made = _node(draw, f"n{i}", st.one_of(st.sampled_from(refs), st.sampled_from(refs[-2:])))
        try:
            _graph([*nodes, made])
        except GraphError:
            continue
        nodes.append(made)
        refs.append(f"{made.name}.next" if isinstance(made.stage, Loop) else made.name)
    if not nodes:
        nodes.append(node("only", Plus(), a="docs"))
    return _graph(nodes)


def _node(draw: Any, name: str, ref: Any) -> Node:
    kind = draw(st.sampled_from(["plus", "picky", "join", "fan", "all", "each", "loop", "fanloop", "carry"]))
    a = draw(ref)
    if kind == "join":
        return node(name, Join(), a=a, b=draw(ref))
    if kind == "loop":
        return node(name, plain_body(draw), n=a)
    if kind == "fanloop":
        return node(name, fanning_body(draw), n=a, k=draw(ref))
    if kind == "carry":
        return node(name, carrying_body(draw), n=a, m=draw(st.one_of(st.just(a), ref)), k=draw(ref))
    stage = {
        "plus": Plus(1, draw(bad)), "picky": Picky(draw(st.integers(2, 9))), "fan": Fan(4, draw(bad)),
        "all": Total(0), "each": Total(1),
    }[kind]  # fmt: skip
    batch = None if isinstance(stage, Total) else draw(st.sampled_from([None, 1, 2, 3]))
    return node(name, stage, a=a, batch=batch)


def _graph(nodes: list[Node]) -> Graph:
    """The nodes with all loose ends as outputs. Raises GraphError where rows cannot meet."""
    read = {r.partition(".")[0] for n in nodes for r in n.inputs.values()}
    kinds: dict[str, type[Rows]] = {"docs": Numbers, "asks": Numbers, "all": Whole}
    inputs = {name: kind for name, kind in kinds.items() if name in read}
    ends = {
        n.name: (f"{n.name}.next" if isinstance(n.stage, Loop) else n.name)
        for n in nodes
        if n.name not in read
    }
    graph = Graph(inputs, tuple(nodes), ends)
    flatten(graph)
    return graph


@st.composite
def inputs_for(draw: Any, graph: Graph) -> dict[str, Rows]:
    """Rows for each input of the graph, sometimes none."""
    values = st.lists(bad, max_size=6)
    return {
        name: Whole(((),), (draw(bad),)) if kind.whole else _rows(name, draw(values))
        for name, kind in graph.inputs.items()
    }


def _rows(name: str, values: list[int]) -> Numbers:
    return numbers(**{f"{name}{i}": x for i, x in enumerate(values)})


@st.composite
def alike(draw: Any) -> Graph:
    """A graph whose branches and loops hold equal stages, at one depth of ids or another."""
    plus, picky, twice = Plus(1, draw(bad | st.just(-1))), Picky(draw(st.integers(5, 9))), plain_body(draw)
    nodes = [node("pages", Fan(4, draw(bad)), a="docs")]
    refs = {"docs": ["docs"], "asks": ["asks"], "pages": ["pages"]}
    for i in range(draw(st.integers(2, 7))):
        line = draw(st.sampled_from(sorted(refs)))
        ref = st.sampled_from(refs[line])
        kind = draw(st.sampled_from(["plus", "plus", "picky", "join", "join", "loop"]))
        if kind == "loop":
            nodes.append(node(f"n{i}", twice, n=draw(ref)))
            refs[line].append(f"n{i}.next")
            continue
        ports = {"a": draw(ref), "b": draw(ref)} if kind == "join" else {"a": draw(ref)}
        stage = {"plus": plus, "picky": picky, "join": Join()}[kind]
        nodes.append(node(f"n{i}", stage, batch=draw(st.sampled_from([None, None, 1, 3])), **ports))
        refs[line].append(f"n{i}")
    return _graph(nodes)
