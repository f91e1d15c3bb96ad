"""Who is doing what: counted by lane and by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.board import QUEUED, Board
from pipeline.events import Done, Lost, Meta, Start, Submit
from pipeline.machine import Device, Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.scheduler import Scheduler
from pipeline.tasks import Task
from tests.costed import Busy, Case, chain, lanes

PINNED = Machine(
    (Device("cpu:0", 2, cores=(0, 1)), Device("cpu:1", 1, cores=(1,)), Device("cpu:2", 1, cores=(2,)))
)


def board(
    machine: Machine, rows: int = 4, at: dict[str, tuple[str, ...]] | None = None
) -> tuple[Scheduler, list[Submit]]:
    """A run of two steps in batches of one row, just begun."""
    scheduler = Scheduler(
        flatten(chain(Busy(), Busy())), Case(chain(Busy(), Busy()), machine, rows, at=at or {}).plan()
    )
    ids = tuple((i,) for i in range(rows))
    said = scheduler.handle(Start((("rows", Meta(ids, rows)),)))
    return scheduler, [s for s in said if isinstance(s, Submit)]


def task(board: Board, lane: str) -> Task:
    return Task(flatten(chain(Busy(), Busy())).steps[0], lane, {})


def test_lanes_are_free_until_they_have_one_under_way_and_one_behind_it() -> None:
    b = board(Machine(lanes(1)), 0)[0].board
    told = []
    for number in range(QUEUED):
        told.append((b.is_free("cpu:0", 1), b.is_free("cpu:0", QUEUED), b.busy("cpu:0"), b.with_room()))
        b.begin(number, task(b, "cpu:0"))
    assert told == [(True, True, 0, ["cpu:0"]), (False, True, 1, ["cpu:0"])]
    assert (b.is_free("cpu:0", QUEUED), b.with_room(), b.flying("s0")) == (False, [], QUEUED)
    b.retire(0)
    assert (b.busy("cpu:0"), b.with_room(), b.flying("s0")) == (1, ["cpu:0"], 1)


def test_lanes_on_the_same_core_are_never_busy_together() -> None:
    b = board(PINNED, 0)[0].board
    b.begin(1, task(b, "cpu:0"))
    assert [b.is_free(lane, QUEUED) for lane in PINNED.names] == [True, False, True]
    b.retire(1)
    b.begin(2, task(b, "cpu:1"))
    assert [b.is_free(lane, QUEUED) for lane in PINNED.names] == [False, True, True]


def test_lanes_stand_in_the_order_of_the_machine() -> None:
    b = board(Machine(lanes(3)), 0)[0].board
    for number, lane in enumerate(("cpu:2", "cpu:0", "cpu:1")):
        b.begin(number, task(b, lane))
    assert b.standing() == []
    for number in (1, 0, 2):
        b.retire(number)
    assert b.standing() == ["cpu:0", "cpu:1", "cpu:2"]


def test_what_a_lost_lane_had_is_to_run_again() -> None:
    scheduler, _ = board(Machine(lanes(2)))
    b, rows = (
        scheduler.board,
        [b for t in scheduler.board.tasks.values() if t.device == "cpu:1" for b in t.rows],
    )
    b.lose("cpu:1")
    assert [place for batch in b.again["s0"] for place in batch] == rows
    assert (b.left(("cpu:1", "cpu:0")), b.is_free("cpu:1", QUEUED), b.busy("cpu:1")) == (["cpu:0"], False, 0)
    assert "cpu:1" not in b.standing() + b.with_room()


def test_a_lane_is_idle_without_work_that_it_could_do() -> None:
    scheduler, tasks = board(Machine(lanes(3)), rows=2, at={"s0": ("cpu:0",), "s1": ("cpu:1", "cpu:2")})
    b = scheduler.board
    assert [b.idle(lane) for lane in ("cpu:0", "cpu:1", "cpu:2")] == [False, True, True]
    assert (b.waiting("s0"), b.coming("s1"), b.coming("s0")) == (0, True, False)
    scheduler.handle(Done(tasks[0].task, Meta(tasks[0].owed, 1)))
    assert [b.idle(lane) for lane in ("cpu:0", "cpu:1", "cpu:2")] == [False, False, True]


def test_what_comes_is_from_the_nearest_step_that_moves() -> None:
    graph = chain(Busy(), Busy(2.0), Busy(3.0))
    scheduler = Scheduler(flatten(graph), place(flatten(graph), Machine(lanes(1))))
    said = scheduler.handle(Start((("rows", Meta((("a",), ("b",)), 2)),)))
    b, first = scheduler.board, next(s for s in said if isinstance(s, Submit))
    assert (b.source("s2"), b.source("s1"), b.source("s0")) == ("s0", "s0", None)
    scheduler.handle(Done(first.task, Meta(first.owed, 1)))
    assert b.source("s2") == "s1"


def test_a_step_is_open_where_it_has_run() -> None:
    scheduler, _ = board(Machine(lanes(2)), rows=1)
    assert [scheduler.board.opened("s0", lane) for lane in ("cpu:0", "cpu:1")] == [True, False]
    assert not scheduler.board.opened("s1", "cpu:0")


@given(st.integers(1, 12), st.lists(st.integers(0, 5), max_size=30), st.integers(1, 4))
def test_counts_are_those_of_the_tasks(rows: int, picks: list[int], width: int) -> None:
    """However tasks end: lanes and steps are busy with what is under way, and with no more."""
    scheduler, tasks = board(Machine(lanes(width)), rows)
    b = scheduler.board
    for pick in picks:
        if not tasks:
            break
        if pick == 5 and len(b.left(lane.name for lane in lanes(width))) > 1:
            gone = tasks[0].device
            said = scheduler.handle(Lost(gone))
            tasks = [t for t in tasks if t.device != gone]
        else:
            t = tasks.pop(pick % len(tasks))
            said = scheduler.handle(Done(t.task, Meta(t.owed, 1)))
        tasks += [s for s in said if isinstance(s, Submit)]
        for lane in (d.name for d in lanes(width)):
            assert b.busy(lane) == sum(t.device == lane for t in tasks) <= QUEUED
            assert (lane in b.standing()) == (lane in b.left([lane]) and not b.busy(lane))
        for step in ("s0", "s1"):
            assert b.flying(step) == sum(t.step == step for t in tasks)
