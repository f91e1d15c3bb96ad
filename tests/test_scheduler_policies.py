"""The Scheduler under every policy and pair of them: the same results, and what lanes and the window owe."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.board import QUEUED
from pipeline.errors import PlanError
from pipeline.events import Event, Submit
from pipeline.graph import Graph, Node, node
from pipeline.holds import LIGHT, Weights
from pipeline.local import run_local
from pipeline.machine import Device, Machine
from pipeline.plan import place
from pipeline.policies import POLICIES
from pipeline.program import flatten
from pipeline.scheduler import Scheduler
from tests.driving import LANES, Driver, essence
from tests.graphs import alike, graphs, inputs_for
from tests.plans import CHOICES, QUEUES, plans
from tests.toys import Collatz, Fan, Numbers, Plus, Total, numbers

MIXED = Machine((Device("cpu:0"), Device("cpu:1"), Device("cuda:0")))
SHARED = Machine(
    (
        Device("cpu:0", 2, cores=(0, 1)),
        Device("cpu:1", cores=(0,)),
        Device("cpu:2", cores=(1,)),
        Device("cpu:3", cores=(2,)),
    )
)
machines = st.sampled_from([LANES, MIXED, SHARED])
windows = st.sampled_from([1, 400, 1 << 30])


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_under_any_policies_the_outcome_is_that_of_the_plain_loop(data: st.DataObject) -> None:
    graph = data.draw(graphs() | alike())
    inputs = data.draw(inputs_for(graph))
    chosen = data.draw(st.sampled_from(CHOICES))
    plan = data.draw(plans(graph, data.draw(machines), data.draw(windows), chosen))
    rng = random.Random(data.draw(st.integers(0, 99)))
    driver = Driver(graph, plan=plan)
    lost = data.draw(st.dictionaries(st.integers(0, 12), st.just("cpu:1"), max_size=1))
    if any(p.devices == ("cpu:1",) for p in plan.placements.values()):
        lost = {}
    outcome, local = driver.run(inputs, lambda w: rng.randrange(len(w)), lost), run_local(graph, inputs)
    assert essence(outcome) == essence(local)
    for output in graph.outputs:
        assert [r.id for r in outcome[output]] == [r.id for r in local[output]]


def test_all_policies_are_among_the_choices() -> None:
    assert {name for names in CHOICES for name in names} == set(POLICIES)
    assert len(CHOICES) > 60


@pytest.mark.parametrize("pair", [("coalesce", "slices"), ("cut", "cut")])
def test_two_that_say_how_rows_wait_are_refused(pair: tuple[str, str]) -> None:
    assert set(pair) <= QUEUES
    program = flatten(Graph({"docs": Numbers}, (node("a", Plus(), a="docs"),), {"out": "a"}))
    with pytest.raises(PlanError, match="both say how rows wait"):
        Scheduler(program, place(program, LANES, policies=pair))


# deterministic


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_same_events_give_the_same_instructions(data: st.DataObject) -> None:
    graph = data.draw(graphs() | alike())
    inputs = data.draw(inputs_for(graph))
    plan = data.draw(plans(graph, data.draw(machines), 400, data.draw(st.sampled_from(CHOICES))))
    driver = Driver(graph, plan=plan)
    driver.run(inputs, lambda waiting: len(waiting) // 2)
    again = Scheduler(driver.program, plan)
    said = [s for e in driver.log if isinstance(e, Event) for s in (e, *again.handle(e))]
    assert said == driver.log


def digest() -> str:
    """All that is said in a run under each choice of policies, in one number."""
    nodes = (
        node("fan", Fan(5), a="docs", batch=2),
        node("plus", Plus(1, bad=31), a="fan", batch=3),
        node("each", Total(1), a="plus"),
        node("go", Collatz(5), a="each", batch=2),
        node("all", Total(0), a="plus"),
    )
    graph = Graph({"docs": Numbers}, nodes, {"go": "go", "all": "all", "plus": "plus"})
    found = hashlib.sha256()
    for names in CHOICES:
        driver = Driver(graph, plan=place(flatten(graph), SHARED, 500, names))
        driver.run({"docs": numbers(**{f"r{i}": i for i in range(12)})}, lose={4: "cpu:1"})
        found.update(repr(driver.log).encode())
    return found.hexdigest()


@pytest.mark.slow
def test_processes_that_hash_differently_decide_alike() -> None:
    code = "from tests.test_scheduler_policies import digest; print(digest())"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {f"{digest()}\n"}


# lanes


def flying(driver: Driver) -> Counter[str]:
    """Tasks under way on each lane."""
    return Counter(t.device for t in driver.waiting)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lanes_that_share_cores_never_have_tasks_at_once(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = data.draw(plans(graph, SHARED, data.draw(windows), data.draw(st.sampled_from(CHOICES))))
    cores = {d.name: set(d.cores) for d in SHARED.devices}

    class Watched(Driver):
        def check(self, task: Submit) -> None:
            super().check(task)
            others = {t.device for t in self.waiting} - {task.device}
            assert not any(cores[task.device] & cores[other] for other in others)

    Watched(graph, plan=plan).run(data.draw(inputs_for(graph)), lambda waiting: len(waiting) // 2)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_lane_gets_a_second_task_while_its_like_has_none(data: st.DataObject) -> None:
    graph = data.draw(graphs())

    class Watched(Driver):
        def check(self, task: Submit) -> None:
            super().check(task)
            counts = flying(self)
            assert counts[task.device] < QUEUED or all(counts[lane] for lane in self.plan.machine.names)

    driver = Watched(graph, data.draw(windows))
    driver.run(data.draw(inputs_for(graph)), lambda waiting: len(waiting) // 2)


# the window


@dataclass(frozen=True, slots=True)
class Grow:
    """A heavy row of each light one."""

    def run(self, state: Any, a: Numbers) -> Texts:
        return Texts(a.ids, tuple("x" * 20_000 for _ in a.x))


@dataclass(frozen=True, slots=True)
class Texts(Numbers):
    """Rows of twenty thousand bytes."""

    x: tuple[str, ...]  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Shrink:
    """What is left of a heavy row."""

    def run(self, state: Any, a: Texts) -> Numbers:
        return Numbers(a.ids, tuple(len(x) for x in a.x))


@dataclass(frozen=True, slots=True)
class Copy:
    """As heavy as before."""

    def run(self, state: Any, a: Texts) -> Texts:
        return a


EIGHT = Machine(tuple(Device(f"cpu:{i}") for i in range(8)))
HEAVY = (node("grow", Grow(), a="docs", batch=4), node("shrink", Shrink(), a="grow", batch=1))
BATCH = Grow().run(None, numbers(r100=1, r101=1, r102=1, r103=1)).nbytes


class Measured(Driver):
    """Notes the most bytes that lived, and how many tasks of a step there were at once over the window."""

    most = 0
    crowd: Counter[str]

    def tell(self, event: Event) -> None:
        super().tell(event)
        self.most = max(self.most, self.scheduler.live_bytes)
        if self.scheduler.live_bytes > self.plan.window:
            for step, number in Counter(t.step for t in self.waiting).items():
                self.crowd[step] = max(self.crowd[step], number)


def first_grown(waiting: Sequence[Submit]) -> int:
    """What grows is done sooner than what shrinks."""
    return next((i for i, t in enumerate(waiting) if t.step == "grow"), 0)


def measured(window: int, *nodes: Node, rows: int = 400) -> Measured:
    graph = Graph({"docs": Numbers}, nodes, {"out": nodes[-1].name})
    driver = Measured(graph, window, ordered=False, machine=EIGHT)
    driver.crowd = Counter()
    driver.run({"docs": numbers(**{f"r{i}": i % 9 + 1 for i in range(rows)})}, first_grown)
    return driver


def source_bytes(rows: int = 400) -> int:
    return numbers(**{f"r{i}": 1 for i in range(rows)}).nbytes


def test_once_it_is_known_what_a_step_makes_batches_under_way_count_as_made() -> None:
    """The first batches, of which nothing is known, fit; after them one batch is all that may be too much."""
    window = source_bytes() + 2 * len(EIGHT.devices) * QUEUED * BATCH
    driver = measured(window, HEAVY[0], replace(HEAVY[1], device="cpu:7"))
    assert window - 2 * BATCH < driver.most <= window + BATCH


def test_the_first_batches_may_all_come_at_once() -> None:
    driver = measured(source_bytes() + BATCH, HEAVY[0], replace(HEAVY[1], device="cpu:7"))
    assert driver.most <= source_bytes() + BATCH + len(EIGHT.devices) * QUEUED * BATCH


def test_a_step_that_makes_little_of_what_it_reads_runs_on_all_lanes_over_the_window() -> None:
    """Else a value of many heavy rows, which goes only as a whole, would be worked off by one lane."""
    driver = measured(1, replace(HEAVY[0], batch=40), HEAVY[1])
    assert driver.crowd["shrink"] >= len(EIGHT.devices)


def test_a_step_that_makes_as_much_as_it_reads_goes_on_one_by_one_over_the_window() -> None:
    heavy = (HEAVY[0], node("copy", Copy(), a="grow", batch=1), node("shrink", Shrink(), a="copy", batch=1))
    driver = measured(1, *heavy)
    assert driver.crowd["copy"] == 1


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_over_the_window_only_light_steps_start_and_what_lies_behind_all_that_runs(
    data: st.DataObject,
) -> None:
    graph = data.draw(graphs())
    driver = Narrow(graph, data.draw(st.sampled_from([1, 300, 1000])))
    driver.run(data.draw(inputs_for(graph)), lambda waiting: len(waiting) // 2)


class Narrow(Driver):
    """Checks who starts while the window is full."""

    def tell(self, event: Event) -> None:
        before = list(self.waiting)
        super().tell(event)
        if self.scheduler.live_bytes <= self.plan.window:
            return
        depth = {name: i for i, name in enumerate(self.steps)}
        deepest = max((depth[t.step] for t in before), default=-1)
        for task in self.waiting[len(before) :]:
            assert self.scheduler.board.weights.is_light(task.step) or depth[task.step] > deepest
            deepest = max(deepest, depth[task.step])


def test_light_is_an_eighth_or_less() -> None:
    weights = Weights()
    assert not weights.is_light("a")
    weights.see("a", rows=1, read=LIGHT * 10, made=10)
    assert weights.is_light("a")
    assert weights.expected("a", 3) == 30
    weights.see("a", rows=1, read=LIGHT * 10, made=11)
    assert not weights.is_light("a")
