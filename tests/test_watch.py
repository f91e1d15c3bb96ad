"""When lanes stand still, and why."""

from __future__ import annotations

import pytest

from pipeline.events import Done, Event, Lost, Meta, Start, Submit
from pipeline.machine import Machine
from pipeline.program import flatten
from pipeline.scheduler import Scheduler
from pipeline.timeline import Stall
from pipeline.watch import Watch
from tests.costed import Busy, Case, chain, lanes

AT = {"s0": ("cpu:0",), "s1": ("cpu:1",)}


class Run:
    """Two steps on a lane each, driven by hand."""

    def __init__(self, rows: int, batch: int = 1, window: int = 1 << 60, nbytes: int = 1) -> None:
        case = Case(chain(Busy(), Busy(2.0), batch=(1, batch)), Machine(lanes(2)), rows, at=AT)
        self.scheduler = Scheduler(flatten(case.graph), case.plan(window))
        self.watch = Watch(self.scheduler)
        self.tasks: dict[str, list[Submit]] = {"s0": [], "s1": []}
        self.nbytes = nbytes
        self.tell(0.0, Start((("rows", Meta(tuple((i,) for i in range(rows)), rows)),)))

    def tell(self, now: float, event: Event) -> None:
        for said in self.scheduler.handle(event):
            if isinstance(said, Submit):
                self.tasks[said.step].append(said)
        self.watch.see(now)

    def end(self, now: float, step: str) -> None:
        """The oldest batch of a step ends."""
        task = self.tasks[step].pop(0)
        self.tell(now, Done(task.task, Meta(task.owed, self.nbytes * len(task.owed))))


def test_a_lane_without_rows_starves_for_the_step_that_makes_them_and_then_is_done() -> None:
    run = Run(1)
    run.end(1.0, "s0")
    run.end(3.0, "s1")
    assert run.watch.stalls(3.0) == (Stall("cpu:1", 0, 1, "starved", "s0"), Stall("cpu:0", 1, 3, "done"))


def test_a_lane_that_waits_for_a_full_batch_is_filling() -> None:
    run = Run(3, batch=2)
    run.end(1.0, "s0")
    run.end(2.0, "s0")
    told = [s for s in run.watch.stalls(2.0) if s.device == "cpu:1"]
    assert told == [Stall("cpu:1", 0, 1, "starved", "s0"), Stall("cpu:1", 1, 2, "filling", "s1")]


def test_over_the_window_a_lane_with_rows_is_held_back() -> None:
    run = Run(6, window=10, nbytes=9)
    for now in (1.0, 2.0):  # one value is read, one waits, and a third row may not start
        run.end(now, "s0")
    told = [s for s in run.watch.stalls(5.0) if s.device == "cpu:0"]
    assert told == [Stall("cpu:0", 2, 5, "window", "s0")]


def test_a_reason_that_changes_begins_another_stall() -> None:
    run = Run(2)
    run.end(1.0, "s0")
    run.end(2.0, "s1")
    run.end(5.0, "s0")
    run.end(6.0, "s1")
    assert [s for s in run.watch.stalls(6.0) if s.device == "cpu:1"] == [
        Stall("cpu:1", 0, 1, "starved", "s0"),
        Stall("cpu:1", 2, 5, "starved", "s0"),
    ]


def test_looking_again_changes_nothing() -> None:
    once, often = Run(2), Run(2)
    for now in (0.2, 0.4, 0.9):
        often.watch.see(now)
    for run in (once, often):
        run.end(1.0, "s0")
    assert once.watch.stalls(1.5) == often.watch.stalls(1.5)


def test_no_time_is_no_stall() -> None:
    run = Run(1)
    run.end(0.0, "s0")
    assert [s for s in run.watch.stalls(0.0) if s.device == "cpu:1"] == []


def test_a_lost_lane_stands_no_longer() -> None:
    run = Run(2)
    run.tell(0.5, Lost("cpu:1"))
    assert [s for s in run.watch.stalls(4.0) if s.device == "cpu:1"] == [
        Stall("cpu:1", 0, 0.5, "starved", "s0")
    ]


@pytest.mark.parametrize("at", [0.0, 1.0, 9.0])
def test_stalls_that_others_saw_stand_in_their_order(at: float) -> None:
    run = Run(1)
    noted = Stall("cpu:0", at, at + 1, "link", "s0")
    run.watch.note(noted)
    run.end(2.0, "s0")
    found = run.watch.stalls(10.0)
    assert noted in found
    assert list(found) == sorted(found, key=lambda s: (s.start, s.device))
