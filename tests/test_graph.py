"""A graph that exists is well formed; one that is not says where and what to do (B73, B74)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, Node, node
from pipeline.values import Rows
from tests.toys import Collatz, Fan, Flags, Join, Numbers, Plus, Strip, Total, numbers

IN: dict[str, type[Rows]] = {"docs": Numbers}


def graph(*nodes: Node, **outputs: str) -> Graph:
    return Graph(IN, nodes, outputs or {"out": nodes[-1].name})


def body() -> Graph:
    return Graph(
        {"n": Numbers}, (node("go", Collatz(), a="n"), node("bare", Strip(), a="go")),
        {"next": "bare", "flags": "go"},
    )  # fmt: skip


LOOP = Loop(body(), {"n": "next"}, "flags", 3)


def test_nodes_may_come_in_any_order_and_are_kept_in_one_that_works() -> None:
    made = graph(node("c", Plus(), a="b"), node("a", Plus(), a="docs"), node("b", Plus(), a="a"), out="c")
    assert [n.name for n in made.nodes] == ["a", "b", "c"]


def test_nodes_that_do_not_depend_keep_their_order() -> None:
    nodes = [node(name, Plus(), a="docs") for name in "zaq"]
    assert [n.name for n in graph(*nodes, z="z", a="a", q="q").nodes] == ["z", "a", "q"]


def test_a_long_chain_that_joins_itself_is_put_in_order_at_once() -> None:
    """Each node reads the one before twice: as many paths as 2 to the number of nodes."""
    nodes = [node("n0", Plus(), a="docs")]
    nodes += [node(f"n{i}", Join(), a=f"n{i - 1}", b=f"n{i - 1}") for i in range(1, 100)]
    assert len(graph(*nodes).nodes) == 100


def test_a_graph_knows_its_nodes_and_their_types() -> None:
    made = graph(node("go", Collatz(), a="docs"), node("bare", Strip(), a="go"))
    assert made["go"].stage == Collatz()
    assert (made.type_of("docs"), made.type_of("go"), made.type_of("bare")) == (Numbers, Flags, Numbers)


def test_upstream_are_the_nodes_that_feed_a_name() -> None:
    made = graph(
        node("a", Plus(), a="docs"), node("b", Plus(), a="a"), node("c", Plus(), a="a"), b="b", c="c"
    )
    assert [n.name for n in made.upstream("b")] == ["a", "b"]


def test_a_loop_has_the_inputs_and_outputs_of_its_body() -> None:
    made = graph(node("turn", LOOP, n="docs"), out="turn.next", flags="turn.flags")
    assert made.type_of("turn.flags") is Flags


BAD: list[tuple[Callable[[], Any], str, tuple[str, ...]]] = [
    (
        lambda: graph(node("a", Plus(), b="docs")),
        "node 'a': Plus has no port 'b'; did you mean|node 'a': Plus has no port 'b'; known: a",
        ("stages", "a", "b"),
    ),
    (
        lambda: graph(node("a", Plus())),
        "node 'a': port 'a' .Numbers. is not connected: add `a: NODE`",
        ("stages", "a"),
    ),
    (
        lambda: graph(node("a", Plus(), a="dosc")),
        "node 'a', port 'a': no node or input 'dosc'; did you mean 'docs'",
        ("stages", "a", "a"),
    ),
    (
        lambda: graph(node("a", Plus(), a="docs"), node("b", Plus(), a="docs"), out="a"),
        "nothing uses node 'b': connect it, name it in outputs, or remove it",
        ("stages", "b"),
    ),
    (
        lambda: Graph({**IN, "more": Numbers}, (node("a", Plus(), a="docs"),), {"out": "a"}),
        "nothing uses input 'more'",
        ("inputs", "more"),
    ),
    (
        lambda: graph(node("a", Plus(), a="docs"), node("a", Plus(), a="docs")),
        "two nodes or inputs are called 'a'",
        ("stages", "a"),
    ),
    (
        lambda: graph(node("docs", Plus(), a="docs")),
        "two nodes or inputs are called 'docs'",
        ("stages", "docs"),
    ),
    (lambda: Graph(IN, (node("a", Plus(), a="docs"),), {}), "a graph needs an output", ("outputs",)),
    (
        lambda: graph(node("a", Plus(), a="docs"), out="b"),
        "output 'out': no node or input 'b'",
        ("outputs", "out"),
    ),
    (
        lambda: graph(node("go", Strip(), a="docs")),
        "node 'go': port 'a' takes Flags, 'docs' gives Numbers",
        ("stages", "go", "a"),
    ),
    (
        lambda: graph(node("a", Plus(), a="b"), node("b", Plus(), a="a")),
        "the graph goes in a circle: .*a -> b.*; use a loop",
        (),
    ),
    (
        lambda: graph(node("a", Plus(), a="a")),
        "the graph goes in a circle: a -> a; use a loop",
        ("stages", "a"),
    ),
    (lambda: node("a b", Plus()), "a name is letters, digits and _, found 'a b'", ("stages", "a b")),
    (lambda: Graph({"a.b": Numbers}, (), {"o": "a.b"}), "a name is letters.*'a.b'", ("inputs", "a.b")),
    (
        lambda: node("a", Plus(), batch=0),
        "node 'a': batch must be 1 or more, found 0",
        ("stages", "a", "batch"),
    ),
    (
        lambda: graph(node("t", LOOP, n="docs"), out="t"),
        "output 'out': 't' has no output ''; say which: t.next, t.flags",
        ("outputs", "out"),
    ),
    (
        lambda: graph(node("t", LOOP, n="docs"), out="t.nxt"),
        "'t' has no output 'nxt'; did you mean 'next'",
        ("outputs", "out"),
    ),
    (lambda: Loop(body(), {"n": "next"}, "flags", 0), "max_rounds must be 1 or more", ("max_rounds",)),
    (lambda: Loop(body(), {}, "flags", 2), "a loop must carry something", ("carry",)),
    (lambda: Loop(body(), {"m": "next"}, "flags", 2), "the body has no input 'm'", ("carry", "m")),
    (lambda: Loop(body(), {"n": "nxt"}, "flags", 2), "carry: .*no output 'nxt'.*'next'", ("carry",)),
    (
        lambda: Loop(body(), {"n": "flags"}, "flags", 2),
        "input 'n' takes Numbers, output 'flags' gives Flags",
        ("carry", "n"),
    ),
    (
        lambda: Loop(body(), {"n": "next"}, "next", 2),
        "until: the rows of 'next' have no column `done`",
        ("until",),
    ),
    (lambda: Loop(body(), {"n": "next"}, "flag", 2), "until: .* 'flag'; did you mean 'flags'", ("until",)),
    (
        lambda: Loop(
            Graph({"until": Numbers}, (node("go", Collatz(), a="until"),), {"f": "go"}),
            {"until": "f"},
            "f",
            2,
        ),
        r"inputs \['until'\] are words of the loop itself",
        ("loop", "inputs"),
    ),
]


@pytest.mark.parametrize(("make", "message", "at"), BAD, ids=[m[:40] for _, m, _ in BAD])
def test_what_cannot_work_is_refused_with_its_place(
    make: Callable[[], Any], message: str, at: tuple[str, ...]
) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        make()
    assert caught.value.at[: len(at)] == at


@dataclass(frozen=True, slots=True)
class After:
    """Works only behind a Fan."""

    def check(self, upstream: tuple[Any, ...]) -> None:
        if not any(isinstance(s, Fan) for s in upstream):
            raise GraphError("needs a Fan before it")

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def test_a_stage_may_check_what_lies_before_it() -> None:
    graph(node("fan", Fan(), a="docs"), node("mid", Plus(), a="fan"), node("a", After(), a="mid"))
    with pytest.raises(GraphError, match="node 'a': needs a Fan before it") as caught:
        graph(node("mid", Plus(), a="docs"), node("a", After(), a="mid"))
    assert caught.value.at == ("stages", "a")


def test_a_stage_that_cannot_travel_is_refused_with_the_node(tmp_path: Any) -> None:
    with pytest.raises(GraphError, match=r"stage 'a' \(Plus\): parameter 'n' holds a list"):
        graph(node("a", Plus([1]), a="docs"))  # type: ignore[arg-type]


def test_rows_of_a_subtype_pass() -> None:
    @dataclass(frozen=True, slots=True)
    class More(Numbers):
        y: tuple[int, ...]

    Graph({"docs": More}, (node("a", Plus(), a="docs"),), {"out": "a"})
    assert More(numbers(a=1).ids, (1,), (2,)).x == (1,)


def test_a_batch_size_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(GraphError, match="'all': Total gathers all rows of a group at once"):
        node("all", Total(), a="n", batch=4)


def test_policies_are_kept_in_their_order_and_are_part_of_the_graph() -> None:
    nodes = (node("a", Plus(), a="docs"),)
    made = Graph(IN, nodes, {"out": "a"}, policies=("steal", "guided"))
    assert made.policies == ("steal", "guided")
    assert graph(*nodes, out="a").policies == ()
    assert made != graph(*nodes, out="a")
