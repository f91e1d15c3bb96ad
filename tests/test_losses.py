"""Lanes that go away, at any moment: the rest does their work, and what nobody can do is told as such."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.board import QUEUED
from pipeline.events import Done, Fail, Instruction, Lost, Start, Submit
from pipeline.graph import Graph, Node, node
from pipeline.local import Outcome, run_local
from pipeline.machine import Device, Machine
from pipeline.plan import Plan, place
from pipeline.program import Program, flatten
from pipeline.scheduler import GONE, Scheduler
from pipeline.wiring import Wiring, produces
from tests.driving import Driver, essence, meta
from tests.graphs import graphs, inputs_for
from tests.plans import plans
from tests.toys import Fan, Join, Numbers, Plus, Total, numbers

LANES = ("cpu:0", "cpu:1", "cpu:2")
THREE = Machine(tuple(map(Device, LANES)))
losses = st.dictionaries(st.integers(0, 12), st.sampled_from(LANES), max_size=3)


def bearable(plan: Plan, losses: Mapping[int, str]) -> dict[int, str]:
    """Those losses, first to last, after which every step still has a planned lane."""
    kept: dict[int, str] = {}
    for when, lane in sorted(losses.items()):
        gone = {lane, *kept.values()}
        if all(set(p.devices) - gone for p in plan.placements.values()):
            kept[when] = lane
    return kept


def in_order(graph: Graph, outcome: Outcome, inputs: Mapping[str, Any]) -> None:
    """Each input left exactly once at each output, in order."""
    local = run_local(graph, inputs)
    for output in graph.outputs:
        assert [r.id for r in outcome[output]] == [r.id for r in local[output]]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_while_every_step_has_a_lane_the_outcome_is_that_of_the_plain_loop(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    inputs = data.draw(inputs_for(graph))
    plan = data.draw(plans(graph, THREE, data.draw(st.sampled_from([1, 400, 1 << 30]))))
    rng = random.Random(data.draw(st.integers(0, 99)))
    driver = Driver(graph, plan=plan)
    lost = bearable(plan, data.draw(losses))
    outcome = driver.run(inputs, lambda waiting: rng.randrange(len(waiting)), lost)
    assert essence(outcome) == essence(run_local(graph, inputs))
    in_order(graph, outcome, inputs)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_lost_the_run_ends_and_what_does_not_need_it_is_whole(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    inputs = data.draw(inputs_for(graph))
    plan = data.draw(plans(graph, THREE))
    rng = random.Random(data.draw(st.integers(0, 99)))
    driver = Driver(graph, plan=plan)
    outcome = driver.run(inputs, lambda waiting: rng.randrange(len(waiting)), data.draw(losses))
    in_order(graph, outcome, inputs)
    dead = {f.stage for f in outcome.failures if f.category == GONE[0]}
    assert all(not set(plan.placements[step].devices) - driver.lost for step in dead)
    local = run_local(graph, inputs)
    touched = below(driver.program, dead)
    for output, producer in driver.program.outputs.items():
        if producer not in touched:
            assert essence(Outcome(outcome[output], ())) == essence(Outcome(local[output], ()))
    assert {f for f in outcome.failures if f.stage not in touched} == {
        f for f in local.failures if f.stage not in touched
    }


def below(program: Program, steps: set[str]) -> set[str]:
    """All producers, and names of nodes, that the steps can influence."""
    wiring = Wiring(program)
    names = {name for step in steps for name in wiring.below[step]}
    return names | {p for name in names for p in produces(wiring.nodes[name])}


# one by one


def graph(*nodes: Node) -> Graph:
    read = {r for n in nodes for r in n.inputs.values()} & {"docs", "asks"}
    return Graph(dict.fromkeys(sorted(read), Numbers), nodes, {"out": nodes[-1].name})


def started(*nodes: Node, rows: str = "abcd", machine: Machine = THREE) -> tuple[Scheduler, list[Submit]]:
    program = flatten(graph(*nodes))
    scheduler = Scheduler(program, place(program, machine))
    said = scheduler.handle(Start((("docs", meta(*rows)),)))
    return scheduler, submits(said)


def submits(said: list[Instruction]) -> list[Submit]:
    return [s for s in said if isinstance(s, Submit)]


def test_what_a_lost_lane_had_runs_next_on_whichever_is_free_first() -> None:
    scheduler, tasks = started(node("a", Plus(), a="docs", batch=2), rows="abcdefgh")
    assert [t.device for t in tasks] == list(LANES)
    assert submits(scheduler.handle(Lost("cpu:0"))) == []
    said = submits(scheduler.handle(Done(tasks[2].task, meta("e", "f"))))
    assert [(t.owed, t.device) for t in said] == [(tasks[0].owed, "cpu:2")]


def test_the_last_lane_of_several_is_kept_as_busy_as_an_only_one() -> None:
    scheduler, _ = started(node("a", Plus(), a="docs", batch=2), rows="abcdefgh")
    scheduler.handle(Lost("cpu:0"))
    (said,) = submits(scheduler.handle(Lost("cpu:1")))
    assert said.device == "cpu:2"
    assert scheduler.board.busy("cpu:2") == QUEUED


def test_a_lane_that_is_lost_gets_nothing_more() -> None:
    driver = Driver(graph(node("a", Plus(), a="docs", batch=1)), machine=THREE)
    driver.run({"docs": numbers(**{f"r{i}": i for i in range(20)})}, lose={3: "cpu:1"})
    at = next(i for i, e in enumerate(driver.log) if isinstance(e, Lost))
    assert Counter(s.device for s in driver.log[at:] if isinstance(s, Submit)).keys() == {"cpu:0", "cpu:2"}


def test_the_last_lane_of_a_step_takes_its_rows_along_and_nothing_else() -> None:
    nodes = (node("a", Plus(), a="docs", device="cpu:0"), node("b", Plus(), a="a", device="cpu:1"))
    driver = Driver(Graph({"docs": Numbers}, nodes, {"a": "a", "b": "b"}), machine=THREE)
    outcome = driver.run({"docs": numbers(x=1, y=2)}, lose={1: "cpu:1"})
    assert [r.rows for r in outcome["a"]] == [numbers(x=2), numbers(y=3)]
    assert [[f.category for f in r.failures] for r in outcome["b"]] == [["worker died"]] * 2
    assert {f.stage for f in outcome.failures} == {"b"}


def test_rows_that_come_later_to_a_step_without_lanes_fail_as_they_come() -> None:
    nodes = (node("a", Plus(), a="docs", device="cpu:0", batch=1), node("b", Plus(), a="a", device="cpu:1"))
    scheduler, tasks = started(*nodes, rows="ab")
    scheduler.handle(Lost("cpu:1"))
    said = scheduler.handle(Done(tasks[0].task, meta("a")))
    assert [(s.failure.id, s.failure.stage) for s in said if isinstance(s, Fail)] == [(("a",), "b")]
    assert not scheduler.finished


def test_a_group_whose_lane_is_gone_fails_once_for_all_who_read_it() -> None:
    nodes = (node("index", Total(0), a="docs", device="cpu:2"), node("search", Join(), a="asks", b="index"))
    driver = Driver(graph(*nodes), machine=THREE)
    outcome = driver.run({"docs": numbers(d=1), "asks": numbers(p=1, q=2)}, lose={0: "cpu:2"})
    assert [(f.id, f.stage, f.category) for f in outcome.failures] == [((), "index", "worker died")]
    assert [len(r.failures) for r in outcome.results] == [1, 1]


def test_when_all_lanes_are_lost_every_input_still_leaves() -> None:
    driver = Driver(graph(node("f", Fan(4), a="docs"), node("t", Total(1), a="f")), machine=THREE)
    outcome = driver.run({"docs": numbers(a=3, b=2)}, lose=dict(enumerate(LANES)))
    assert driver.lost == set(LANES)
    assert [r.id for r in outcome.results] == [("a",), ("b",)]
    assert sorted((len(r.rows), len(r.failures)) for r in outcome.results) == [(0, 1), (1, 0)]


def test_a_lane_that_is_lost_with_its_rivals_cores_leaves_them_to_the_rival() -> None:
    shared = Machine((Device("cpu:0", cores=(0, 1)), Device("cpu:1", cores=(1,))))
    scheduler, tasks = started(node("a", Plus(), a="docs", batch=1), machine=shared)
    assert {t.device for t in tasks} == {"cpu:0"}
    assert {t.device for t in submits(scheduler.handle(Lost("cpu:0")))} == {"cpu:1"}
