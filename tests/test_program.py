"""How rows meet: lineages, and what cannot meet."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, Node, node
from pipeline.program import Edge, Program, Turn, flatten
from tests.toys import Collatz, Fan, Flags, Join, Numbers, Plus, Strip, Total, Whole


def program(*nodes: Node, **outputs: str) -> Program:
    read = {r.partition(".")[0] for n in nodes for r in n.inputs.values()}
    kinds: dict[str, Any] = {"docs": Numbers, "asks": Numbers, "all": Whole}
    inputs = {k: v for k, v in kinds.items() if k in read}
    return flatten(Graph(inputs, nodes, outputs or {"out": nodes[-1].name}))


def step(made: Program, name: str) -> Any:
    return next(n for n in made.nodes if n.name == name)


def test_a_fan_lengthens_ids_and_a_gathering_stage_cuts_them() -> None:
    made = program(
        node("fan", Fan(), a="docs"),
        node("each", Total(1), a="fan"),
        node("all_", Total(0), a="fan"),
        each="each",
        all_="all_",
    )
    assert {k: made.depths[k] for k in ("docs", "fan", "each", "all_")} == {
        "docs": 1, "fan": 2, "each": 1, "all_": 0,
    }  # fmt: skip
    assert made.roots == {"each": "docs", "all_": ""}


def test_a_gathering_step_knows_whose_rows_it_makes_whole() -> None:
    nodes = (node("one", Fan(), a="docs"), node("two", Fan(), a="one"))
    made = program(*nodes, node("outer", Total(1), a="two"), node("inner", Total(2), a="two"),
                   node("top", Total(0), a="two"), outer="outer", inner="inner", top="top")  # fmt: skip
    assert [step(made, n).origin for n in ("outer", "inner", "top")] == ["one", "two", "docs"]


def test_the_row_of_a_document_meets_its_pages() -> None:
    made = program(node("fan", Fan(), a="docs"), node("both", Join(), a="fan", b="docs"))
    assert step(made, "both").edges == (Edge("a", "fan", 2, 0), Edge("b", "docs", 1, 0))
    assert step(made, "both").depth == 2


def test_the_row_of_the_whole_corpus_meets_every_question() -> None:
    made = program(node("index", Total(0), a="docs"), node("search", Join(), a="asks", b="index"))
    assert step(made, "search").edges[1].depth == 0
    assert made.roots == {"out": "asks"}


def test_an_input_of_whole_rows_has_no_lineage() -> None:
    made = program(node("search", Join(), a="asks", b="all"))
    assert step(made, "search").edges[1] == Edge("b", "all", 0, 0)


def test_rows_of_different_inputs_never_meet() -> None:
    with pytest.raises(
        GraphError, match=r"rows of port 'b' \(per asks\) and of port 'a' .*never meet: gather"
    ):
        program(node("both", Join(), a="docs", b="asks"))


def test_rows_of_two_fans_never_meet() -> None:
    with pytest.raises(GraphError, match=r"\(per docs / two\).*\(per docs / one\).*never meet"):
        program(
            node("one", Fan(), a="docs"), node("two", Fan(), a="docs"), node("both", Join(), a="one", b="two")
        )


def test_gathering_more_than_there_is_is_refused() -> None:
    with pytest.raises(GraphError, match="gathers rows that share 1 id elements, but they have 1"):
        program(node("each", Total(1), a="docs"))


# loops


def loop(*nodes: Node, **inputs: str) -> Loop:
    """A loop over `n` with these nodes before the Collatz round, which reads the last of them."""
    last = nodes[-1].name if nodes else "n"
    read = {r for m in nodes for r in m.inputs.values()}
    given = {"n": Numbers, **({"k": Numbers} if "k" in read else {})}
    go = (node("go", Collatz(), a=last), node("bare", Strip(), a="go"))
    return Loop(Graph(given, (*nodes, *go), {"next": "bare", "flags": "go"}), {"n": "next"}, "flags", 3)


def test_a_loop_becomes_a_turn_and_steps_that_know_it() -> None:
    made = program(node("turn", loop(), n="docs"), out="turn.next")
    assert [n.name for n in made.nodes] == ["turn", "turn/go", "turn/bare"]
    turn = step(made, "turn")
    assert isinstance(turn, Turn)
    assert turn.carried == {"turn/n": "turn/bare"}
    assert turn.outputs == {"turn.next": "turn/bare", "turn.flags": "turn/go"}
    assert step(made, "turn/go").scope == ("turn",)


def test_a_loop_with_one_output_is_called_by_its_name() -> None:
    body = Graph({"n": Flags}, (node("bare", Strip(), a="n"), node("go", Collatz(), a="bare")), {"f": "go"})
    turn = node("turn", Loop(body, {"n": "f"}, "f", 2), n="start")
    made = program(node("start", Collatz(), a="docs"), turn, node("end", Strip(), a="turn"))
    assert step(made, "end").edges == (Edge("a", "turn.f", 1, 0),)


def test_a_row_from_outside_is_the_same_in_every_round() -> None:
    made = program(
        node("k", Plus(), a="docs"),
        node("turn", loop(node("j", Join(), a="n", b="k")), n="docs", k="k"),
        out="turn.next",
    )
    assert step(made, "turn/j").edges == (Edge("a", "turn/n", 1, 1), Edge("b", "k", 1, 0))


def test_a_fan_in_a_loop_is_gathered_in_the_loop() -> None:
    fan = (node("fan", Fan(), a="n"), node("all_", Total(1), a="fan"))
    made = program(node("turn", loop(*fan), n="docs"), out="turn.next")
    assert step(made, "turn/all_").origin == "turn/fan"


def test_a_fan_that_leaves_a_loop_is_refused() -> None:
    with pytest.raises(GraphError, match="output 'next' must have one row per row that enters"):
        program(node("turn", loop(node("fan", Fan(), a="n")), n="docs"), out="turn.next")


def test_gathering_across_the_rows_of_a_loop_is_refused() -> None:
    with pytest.raises(GraphError, match=r"gathers across the rows of loop 'turn'.*gather after the loop"):
        program(node("turn", loop(node("all_", Total(0), a="n")), n="docs"), out="turn.next")


def test_a_node_that_is_the_same_in_every_round_belongs_before_the_loop() -> None:
    with pytest.raises(GraphError, match=r"node 'turn/p' is the same in every round: put it before the loop"):
        program(
            node("turn", loop(node("p", Plus(), a="k"), node("j", Join(), a="n", b="p")), n="docs", k="docs"),
            out="turn.next",
        )


def test_what_is_carried_has_the_rows_of_the_loop() -> None:
    with pytest.raises(GraphError, match=r"carried 'n' is per docs, the loop per docs / fan"):
        program(
            node("fan", Fan(), a="docs"),
            node("turn", loop(node("j", Join(), a="n", b="k")), n="docs", k="fan"),
            out="turn.next",
        )


def test_loops_nest() -> None:
    inner = loop()
    outer = Loop(
        Graph({"n": Numbers}, (node("inner", inner, n="n"), node("go", Collatz(), a="inner.next"),
              node("bare", Strip(), a="go")), {"next": "bare", "flags": "go"}),
        {"n": "next"}, "flags", 2,
    )  # fmt: skip
    made = program(node("outer", outer, n="docs"), out="outer.next")
    assert step(made, "outer/inner/go").scope == ("outer", "outer/inner")
