"""The plain loop, against results known by heart: everything else is tested equal to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.errors import BadRowsError, Failure, GraphError, ModelError, RowError
from pipeline.graph import Graph, Loop, Node, node
from pipeline.local import Outcome, run_local
from pipeline.machine import Device
from pipeline.values import Rows
from tests.toys import Collatz, Fan, Join, Numbers, Picky, Plus, Strip, Total, Whole, numbers

KINDS: dict[str, type[Rows]] = {"docs": Numbers, "asks": Numbers, "all": Whole}


def outcome(inputs: dict[str, Rows], *nodes: Node, **outputs: str) -> Outcome:
    graph = Graph({k: KINDS[k] for k in inputs}, nodes, outputs or {"out": nodes[-1].name})
    return run_local(graph, inputs)


def results(made: Outcome) -> dict[Any, Any]:
    """Row id to number, or to the category of the failure, over all outputs."""
    found: dict[Any, Any] = {}
    for r in made.results:
        rows: Any = r.rows
        found |= dict(zip(rows.ids, rows.x, strict=True)) | {f.id: f.category for f in r.failures}
    return found


def test_a_stage_maps_rows() -> None:
    assert results(outcome({"docs": numbers(a=1, b=2)}, node("p", Plus(3), a="docs"))) == {
        ("a",): 4,
        ("b",): 5,
    }


def test_a_row_becomes_many_in_one_result() -> None:
    made = outcome({"docs": numbers(a=3, b=4)}, node("f", Fan(4), a="docs"))
    assert [(r.id, r.rows.ids) for r in made["out"]] == [
        (("a",), (("a", 0), ("a", 1), ("a", 2))), (("b",), ()),
    ]  # fmt: skip


def test_many_rows_become_one_in_the_order_of_their_ids() -> None:
    nodes = (node("f", Fan(4), a="docs"), node("t", Total(1), a="f"))
    assert results(outcome({"docs": numbers(a=3, b=4)}, *nodes)) == {("a",): 30 + 2 * 31 + 3 * 32, ("b",): 0}


def test_numbers_in_ids_are_ordered_as_numbers() -> None:
    nodes = (node("f", Fan(100), a="docs", batch=1), node("t", Total(1), a="f"))
    expected = sum((k + 1) * (110 + k) for k in range(11))
    assert results(outcome({"docs": numbers(a=11)}, *nodes)) == {("a",): expected}


def test_everything_becomes_one_also_where_there_is_nothing() -> None:
    total = node("t", Total(0), a="docs")
    assert results(outcome({"docs": numbers(a=1, b=2)}, total)) == {(): 5}
    assert results(outcome({"docs": numbers()}, total)) == {(): 0}


def test_a_shared_row_meets_every_row_below_it() -> None:
    nodes = (node("f", Fan(4), a="docs"), node("j", Join(), a="f", b="docs"))
    assert results(outcome({"docs": numbers(a=2)}, *nodes)) == {("a", 0): 22, ("a", 1): 23}


def test_an_input_of_whole_rows_meets_every_row() -> None:
    inputs: dict[str, Rows] = {"asks": numbers(a=1, b=2), "all": Whole(((),), (10,))}
    assert results(outcome(inputs, node("j", Join(), a="asks", b="all"))) == {("a",): 11, ("b",): 12}


def loop(max_rounds: int, bad: int = -1) -> Node:
    nodes = (node("go", Collatz(bad), a="n"), node("bare", Strip(), a="go"))
    body = Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"})
    return node("turn", Loop(body, {"n": "next"}, "flags", max_rounds), n="docs")


def test_a_row_leaves_its_loop_when_it_is_done() -> None:
    """3 10 5 16 8 4 2 1 are seven rounds, 4 2 1 two, 0 one."""
    made = outcome({"docs": numbers(a=3, b=4, c=0)}, loop(20), out="turn.next")
    assert results(made) == {("a",): 1, ("b",): 1, ("c",): 0}


@pytest.mark.parametrize(("rounds", "x"), [(1, 10), (2, 5), (3, 16)])
def test_a_loop_ends_after_exactly_its_rounds(rounds: int, x: int) -> None:
    assert results(outcome({"docs": numbers(a=3)}, loop(rounds), out="turn.next")) == {("a",): x}


def test_a_row_that_fails_in_a_later_round_leaves_as_a_failure() -> None:
    made = outcome({"docs": numbers(a=3, b=4)}, loop(20, bad=16), out="turn.next")
    assert results(made) == {("a",): "bug", ("b",): 1}
    assert made.failures == (Failure(("a",), "turn/go", "bug", "ValueError: bad"),)


# failures


def test_the_bad_row_alone_fails_where_the_stage_cannot_tell() -> None:
    made = outcome({"docs": numbers(a=1, b=2, c=3)}, node("p", Plus(1, bad=2), a="docs"))
    assert results(made) == {("a",): 2, ("b",): "bug", ("c",): 4}
    assert "ValueError: 2 in a batch of 1" in made.failures[0].message
    assert "Traceback" in made.failures[0].detail


def test_rows_that_the_stage_names_fail_with_its_words() -> None:
    made = outcome({"docs": numbers(a=2, b=3, c=4)}, node("p", Picky(2), a="docs"))
    assert made.failures == tuple(Failure((i,), "p", "unreadable", x) for i, x in (("a", "2"), ("c", "4")))
    assert results(made)["b",] == 3


def test_a_failure_is_told_once_and_stands_for_all_that_depends_on_it() -> None:
    nodes = (node("p", Plus(1, bad=2), a="docs"), node("q", Plus(), a="p"), node("r", Plus(), a="p"))
    made = outcome({"docs": numbers(a=2)}, *nodes, q="q", r="r")
    assert len(made.failures) == 1
    assert [r.failures for r in made.results] == [made.failures, made.failures]


def test_what_gathers_goes_on_without_the_rows_that_failed() -> None:
    nodes = (node("p", Plus(0, bad=2), a="docs"), node("t", Total(0), a="p"))
    assert results(outcome({"docs": numbers(a=1, b=2, c=3)}, *nodes)) == {(): 1 + 2 * 3}


def test_a_group_whose_own_row_failed_is_no_group() -> None:
    """The first total of `a` fails on its way to the second fan: that fan's total must not be zero."""
    nodes = (node("f", Fan(4), a="docs"), node("t", Total(1), a="f"), node("p", Plus(0, bad=62), a="t"),
             node("g", Fan(9), a="p"), node("u", Total(1), a="g"))  # fmt: skip
    assert results(outcome({"docs": numbers(a=2)}, *nodes)) == {("a",): "bug"}
    whole = (node("t", Total(0), a="docs"), node("p", Plus(0, bad=2), a="t"), node("g", Fan(9), a="p"),
             node("u", Total(0), a="g"))  # fmt: skip
    assert results(outcome({"docs": numbers(a=2)}, *whole)) == {(): "bug"}


@dataclass(frozen=True, slots=True)
class Blaming:
    """Blames a row that it never got, or none at all."""

    row: str = ""

    def run(self, state: Any, a: Numbers) -> Numbers:
        raise BadRowsError({(self.row,): RowError("unreadable", "it")} if self.row else {})


@pytest.mark.parametrize("row", ["", "other"])
def test_a_stage_that_blames_no_row_of_the_batch_is_halved(row: str) -> None:
    made = outcome({"docs": numbers(a=1, b=2)}, node("p", Blaming(row), a="docs"))
    assert [(f.id, f.category) for f in made.failures] == [(("a",), "bug"), (("b",), "bug")]


@dataclass(frozen=True, slots=True)
class Unopened:
    def open(self, device: Device) -> Any:
        raise ModelError("no model")

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


def test_what_the_user_can_mend_ends_the_run() -> None:
    with pytest.raises(ModelError, match="no model"):
        outcome({"docs": numbers(a=1)}, node("p", Unopened(), a="docs"))


@dataclass(frozen=True, slots=True)
class WrongType:
    def run(self, state: Any, a: Numbers) -> Numbers:
        return Collatz().run(state, a)  # type: ignore[return-value]


def test_a_stage_that_gives_another_type_than_it_says_is_a_bug_of_each_row() -> None:
    made = outcome({"docs": numbers(a=1)}, node("p", WrongType(), a="docs"))
    assert made.failures[0].message == "TypeError: WrongType owes Numbers, gave Flags"


# a sibling sees the original (B57)


@dataclass(frozen=True, slots=True)
class Appending:
    """A stage that changes what it got."""

    def run(self, state: Any, a: Numbers) -> Numbers:
        a.x.append(1)  # type: ignore[attr-defined]
        return a


def test_a_branch_cannot_change_what_its_sibling_sees() -> None:
    nodes = (node("one", Appending(), a="docs"), node("two", Plus(), a="docs"))
    made = outcome({"docs": numbers(a=1)}, *nodes, one="one", two="two")
    assert made.failures[0].message == "AttributeError: 'tuple' object has no attribute 'append'"
    assert made["two"][0].rows == numbers(a=2)


# inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'docs' is missing"),
        ({"docs": numbers(), "dogs": numbers()}, "the graph has no input 'dogs'; did you mean 'docs'"),
        ({"docs": Numbers((("a",), ("a",)), (1, 2))}, "input 'docs': ids must be distinct"),
        ({"docs": Numbers((("a", 1),), (1,))}, "input 'docs': ids must be distinct and of one element"),
        ({"docs": Collatz().run(None, numbers(a=1))}, "input 'docs' takes Numbers, found Flags"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: dict[str, Rows], message: str) -> None:
    graph = Graph({"docs": Numbers}, (node("p", Plus(), a="docs"),), {"out": "p"})
    with pytest.raises(GraphError, match=message):
        run_local(graph, inputs)


def test_whole_rows_are_one_row() -> None:
    graph = Graph({"all": Whole}, (node("p", Plus(), a="all"),), {"out": "p"})
    with pytest.raises(GraphError, match=r"input 'all': Whole are one row, under the id \(\)"):
        run_local(graph, {"all": Whole((("a",),), (1,))})


def test_results_come_in_the_order_of_the_inputs() -> None:
    made = outcome({"docs": numbers(z=1, a=2, m=3)}, node("p", Plus(), a="docs", batch=1))
    assert [r.id for r in made.results] == [("z",), ("a",), ("m",)]


def test_a_row_that_failed_before_a_loop_is_not_looked_for_inside() -> None:
    again = (
        node("both", Join(), a="n", b="k"),
        node("go", Collatz(), a="both"),
        node("bare", Strip(), a="go"),
    )
    body = Graph({"n": Numbers, "k": Numbers}, again, {"next": "bare", "flags": "go"})
    loop = Loop(body, {"n": "next"}, "flags", 3)
    nodes = (node("p", Plus(0, bad=7), a="docs"), node("loop", loop, n="docs", k="p"))
    found = run_local(Graph({"docs": Numbers}, nodes, {"out": "loop.next"}), {"docs": numbers(a=7, b=2)})
    assert [(r.id, r.rows.ids, len(r.failures)) for r in found.results] == [
        (("a",), (), 1),
        (("b",), (("b",),), 0),
    ]
