"""Why a lane stands still: every one has a reason, and it is the right one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.events import Done, Event, Failed, Instruction, Start, Submit
from pipeline.graph import Graph, Loop, Node, node
from pipeline.machine import Device, Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.scheduler import Scheduler
from pipeline.timeline import REASONS
from pipeline.values import Rows
from pipeline.watch import Watch
from tests.driving import LANES, Driver, meta
from tests.graphs import graphs, inputs_for
from tests.plans import CHOICES, plans
from tests.toys import Collatz, Fan, Join, Numbers, Plus, Strip, Total, Whole

KINDS: dict[str, type[Rows]] = {"docs": Numbers, "asks": Numbers, "all": Whole}
A = node("a", Plus(), a="docs", batch=1, device="cpu:0")
B = node("b", Plus(), a="a", batch=1, device="cpu:0")


class Run:
    """A scheduler that is told by hand what happened."""

    def __init__(self, *nodes: Node, window: int = 1 << 30, machine: Machine = LANES) -> None:
        read = {r.partition(".")[0] for n in nodes for r in n.inputs.values()}
        graph = Graph({k: v for k, v in KINDS.items() if k in read}, nodes, {"out": nodes[-1].name})
        program = flatten(graph)
        self.scheduler = Scheduler(program, place(program, machine, window))
        self.tasks: list[Submit] = []

    def tell(self, event: Event) -> list[Instruction]:
        said = self.scheduler.handle(event)
        self.tasks += [s for s in said if isinstance(s, Submit)]
        return said

    def start(self, **sources: str) -> Run:
        self.tell(Start(tuple((name, meta(*rows)) for name, rows in sources.items())))
        return self

    def done(self, step: str) -> None:
        """The oldest task of a step is done."""
        task = next(t for t in self.tasks if t.step == step)
        self.tasks.remove(task)
        self.tell(Done(task.task, meta(*(str(i[0]) for i in task.owed))))

    def stall(self, lane: str) -> tuple[str, str]:
        assert lane in self.scheduler.board.standing()
        return self.scheduler.stall(lane)


# constructed


def test_a_lane_is_starved_by_the_nearest_step_that_moves() -> None:
    run = Run(A, B, node("c", Plus(), a="b", device="cpu:1")).start(docs="ab")
    assert run.stall("cpu:1") == ("starved", "a")
    run.done("a")
    assert run.stall("cpu:1") == ("starved", "b")


def test_a_lane_whose_rows_wait_for_a_full_batch_is_filling_it() -> None:
    run = Run(A, node("b", Plus(), a="a", batch=5, device="cpu:1")).start(docs="abc")
    run.done("a")
    assert run.stall("cpu:1") == ("filling", "b")


def test_a_lane_whose_rows_may_not_run_as_too_much_waits_is_held_by_the_window() -> None:
    run = Run(A, node("b", Plus(), a="a", batch=1, device="cpu:1"), window=1).start(docs="abcd")
    run.done("a")
    assert [t.step for t in run.tasks] == ["b"]
    assert run.stall("cpu:0") == ("window", "a")


def test_a_lane_for_which_nothing_comes_any_more_is_done() -> None:
    run = Run(A, node("b", Plus(), a="a", device="cpu:1")).start(docs="a")
    run.done("a")
    assert run.stall("cpu:0") == ("done", "")
    run.done("b")
    assert run.stall("cpu:1") == ("done", "")
    assert run.scheduler.finished


def test_rows_that_wait_for_a_shared_one_are_starved_by_who_makes_it() -> None:
    index = node("index", Total(0), a="docs", device="cpu:0")
    run = Run(index, node("search", Join(), a="asks", b="index", device="cpu:1")).start(docs="a", asks="pq")
    assert run.stall("cpu:1") == ("starved", "index")
    assert len(run.tasks) == 1


def test_a_group_is_starved_by_what_may_still_join_it() -> None:
    nodes = (node("f", Fan(4), a="docs", device="cpu:0"), node("t", Total(1), a="f", device="cpu:1"))
    assert Run(*nodes).start(docs="a").stall("cpu:1") == ("starved", "f")


def test_a_lane_without_steps_is_done_from_the_start() -> None:
    assert Run(A).start(docs="ab").stall("cpu:1") == ("done", "")


def loop(*nodes: Node) -> Node:
    body = Graph({"n": Numbers}, nodes, {"next": nodes[-1].name, "flags": "go"})
    return node("turn", Loop(body, {"n": "next"}, "flags", 5), n="docs")


def test_rows_that_go_round_may_come_back_from_a_later_step() -> None:
    inner = (
        node("go", Collatz(), a="n", device="cpu:0"),
        node("bare", Strip(), a="go", device="cpu:1"),
    )
    run = Run(loop(*inner), node("last", Plus(), a="turn.next", device="cpu:1")).start(docs="a")
    assert run.stall("cpu:1") == ("starved", "turn/go")
    task = run.tasks.pop()
    run.tell(Done(task.task, replace(meta("a"), done=(False,))))
    assert run.stall("cpu:0") == ("starved", "turn/bare")


def test_a_later_step_from_which_no_way_leads_back_starves_nobody() -> None:
    run = Run(A, node("b", Plus(), a="a", device="cpu:1")).start(docs="a")
    run.done("a")
    assert run.scheduler.board.returning("a") is None
    assert run.scheduler.board.returning("b") is None


def test_a_lane_whose_cores_work_for_another_does_not_stand_still() -> None:
    shared = Machine((Device("cpu:0", cores=(0, 1)), Device("cpu:1", cores=(1,)), Device("cpu:2")))
    run = Run(node("a", Plus(), a="docs", batch=1, device="cpu:0"), machine=shared).start(docs="ab")
    assert run.scheduler.board.standing() == ["cpu:2"]


# always


class Asked(Driver):
    """Asks every lane that stands still for its reason, after each event."""

    done: dict[str, str]

    def tell(self, event: Event) -> None:
        super().tell(event)
        board = self.scheduler.board
        if isinstance(event, Failed):
            self.done.clear()  # what failed may run again elsewhere
        for task in self.waiting:
            assert task.device not in self.done, "there was something left"
        for lane in board.standing():
            reason, step = self.scheduler.stall(lane)
            assert reason in REASONS
            if reason == "done":
                assert step == ""
                self.done[lane] = step
            elif reason == "starved":
                assert board.flying(step) or board.has_rows(step)
            else:
                assert board.has_rows(step)
                assert lane in self.plan.placements[step].devices


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_lane_that_stands_still_has_a_reason_that_holds(data: st.DataObject) -> None:
    """And one that is done gets nothing more, unless something fails."""
    graph = data.draw(graphs())
    driver = Asked(graph, plan=data.draw(plans(graph, LANES, data.draw(st.sampled_from([1, 400, 1 << 30])))))
    driver.done = {}
    driver.run(data.draw(inputs_for(graph)), lambda waiting: len(waiting) // 2)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_a_watch_notes_is_every_second_in_which_a_lane_had_nothing(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    driver = Watched(graph, plan=data.draw(plans(graph, LANES, policies=data.draw(st.sampled_from(CHOICES)))))
    driver.run(data.draw(inputs_for(graph)), lambda waiting: len(waiting) // 2)
    for lane in LANES.names:
        noted = [(s.start, s.end) for s in driver.watch.stalls(driver.now) if s.device == lane]
        seconds = [t for start, end in noted for t in range(int(start), int(end))]
        assert seconds == driver.idle[lane]


class Watched(Driver):
    """A clock that goes on by one with each event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watch = Watch(self.scheduler)
        self.now = 0
        self.idle: dict[str, list[int]] = {name: [] for name in self.plan.machine.names}

    def tell(self, event: Event) -> None:
        super().tell(event)
        self.watch.see(self.now)
        for lane, seconds in self.idle.items():
            if not any(t.device == lane for t in self.waiting):
                seconds.append(self.now)
        self.now += 1
