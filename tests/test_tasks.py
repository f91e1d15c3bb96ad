"""A batch under way: what it reads, whose its rows are, what becomes of them."""

from __future__ import annotations

import pytest

from pipeline.apply import Fault
from pipeline.events import Done, Meta, Part, Submit
from pipeline.graph import Graph, node
from pipeline.holds import Item
from pipeline.program import flatten
from pipeline.tasks import Batch, Task, bad_rows, left_of, made_by, merged, submit, task_of
from tests.toys import Fan, Numbers, Plus

NODES = (node("a", Plus(), a="docs"), node("b", Plus(), a="a"), node("f", Fan(), a="docs"))
STEPS = {s.name: s for s in flatten(Graph({"docs": Numbers}, NODES, {"b": "b", "f": "f"})).steps}


def batch(key: str, *rows: int) -> Batch:
    """Rows of a value, under ids q0, q1, ..."""
    return {((), (f"q{row}",)): {"a": (Item(key, row),)} for row in rows}


def task(step: str, key: str, *rows: int) -> Task:
    return task_of(STEPS[step], "cpu:0", batch(key, *rows), {"a"}, lambda part: 10 * len(part.rows), 7)


BOTH = merged([task("a", "docs", 0, 1), task("b", "made", 0)])


def test_a_task_knows_what_it_reads() -> None:
    found = task("a", "docs", 0, 2)
    assert (found.ports, found.read, found.promised) == ((("a", (Part("docs", (0, 2)),)),), 20, 7)
    assert submit(1, found) == Submit(1, "a", "cpu:0", found.ports, (("q0",), ("q2",)))


def test_the_rows_of_one_step_lie_behind_those_of_another() -> None:
    ports = (("a", (Part("docs", (0, 1)), Part("made", (0,)))),)
    assert submit(1, BOTH) == Submit(
        1, "a", "cpu:0", ports, (("q0",), ("q1",), ("q0",)), (("a", 2), ("b", 1))
    )


def test_what_is_made_is_handed_back_by_position() -> None:
    found = made_by(BOTH, Done(5, Meta((("q0",), ("q1",), ("q0",)), 31)))
    assert [(t.step.name, at, [i.row for i in items], n) for t, at, items, n in found] == [
        ("a", [((), ("q0",)), ((), ("q1",))], [0, 1], 20), ("b", [((), ("q0",))], [2], 10),
    ]  # fmt: skip


def test_children_of_a_row_are_in_its_round() -> None:
    rows: Batch = {((3,), ("q0",)): {"a": (Item("docs", 0),)}}
    ((_, at, items, nbytes),) = made_by(Task(STEPS["f"], "", rows), Done(5, Meta((("q0", 0), ("q0", 1)), 8)))
    assert (at, len(items), nbytes) == ([((3,), ("q0", 0)), ((3,), ("q0", 1))], 2, 8)


@pytest.mark.parametrize(
    ("rows", "named", "bad", "left"),
    [
        ((0, 1, 2), None, [], [["q0"], ["q1", "q2"]]),
        ((0, 1, 2), {("q1",): ("bug", "")}, ["q1"], [["q0", "q2"]]),
        ((0, 1), {("z",): ("bug", "")}, [], [["q0"], ["q1"]]),
        ((4,), None, ["q4"], []),
        ((0, 1), {("q0",): ("bug", ""), ("q1",): ("bug", "")}, ["q0", "q1"], []),
    ],
)
def test_named_rows_are_bad_or_the_only_one_else_halves_run_again(
    rows: tuple[int, ...], named: dict[tuple[str, ...], tuple[str, str]] | None, bad: list[str], left: object
) -> None:
    found = task("a", "docs", *rows)
    condemned = bad_rows(found, Fault("bug", "", named))  # type: ignore[arg-type]
    assert [i for _, (i,) in condemned] == bad
    assert [[i for _, (i,) in rows] for _, rows in left_of(found, condemned)] == left


def test_of_several_steps_nobody_is_bad_and_each_goes_on_its_own() -> None:
    assert bad_rows(BOTH, Fault("bug", "", {("q0",): ("bug", "")})) == {}
    assert list(left_of(BOTH, ())) == [("a", batch("docs", 0, 1)), ("b", batch("made", 0))]
