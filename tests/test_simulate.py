"""Simulations against a pencil, and what holds of any of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from pipeline.candidates import job
from pipeline.estimate import Estimates
from pipeline.events import Meta, Submit
from pipeline.graph import Graph, Loop, node
from pipeline.invent import given
from pipeline.learned import Learned
from pipeline.machine import Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.roofline import Flow
from pipeline.simulate import Simulated, Simulation, simulate
from pipeline.timeline import Stall
from tests.costed import Busy, Case, Many, One, Round, chain, lanes, linked, profile
from tests.graphs import graphs
from tests.toys import Join, Numbers, Strip, Whole


def seconds(found: Simulated) -> float:
    return found.timeline.seconds


def rows(found: Simulated, step: str) -> int:
    return sum(s.rows for s in found.timeline.spans if s.step == step)


# against a pencil


def test_one_lane_does_its_batches_one_after_another() -> None:
    found = Case(chain(Busy(), batch=2), Machine(lanes(1, overhead=0.5)), 5).simulate()
    assert [(s.start, s.end, s.rows) for s in found.timeline.spans] == [(0, 2.5, 2), (2.5, 5, 2), (5, 6.5, 1)]
    assert seconds(found) == 6.5


def test_two_lanes_share_the_batches() -> None:
    found = Case(chain(Busy()), Machine(lanes(2)), 5).simulate()
    assert [found.timeline.busy(d) for d in ("cpu:0", "cpu:1")] == [3, 2]
    assert seconds(found) == 3
    assert found.timeline.stalls == (Stall("cpu:1", 2, 3, "done"),)


def test_each_step_of_a_chain_begins_a_handoff_after_the_one_before() -> None:
    machine = Machine(lanes(2), handoff=0.25)
    case = Case(chain(Busy(), Busy(2.0)), machine, 3, at={"s0": ("cpu:0",), "s1": ("cpu:1",)})
    spans = {(s.step, s.start, s.end) for s in case.simulate().timeline.spans}
    # A lane has its next batch before it ends one, so only what comes first and last waits.
    first = {("s0", 0, 1), ("s0", 1, 2), ("s0", 2, 3)}
    assert spans == first | {("s1", 1.25, 3.25), ("s1", 3.25, 5.25), ("s1", 5.25, 7.25)}
    assert seconds(case.simulate()) == 7.5


def test_bytes_go_over_the_link_before_a_batch_and_the_lane_waits() -> None:
    machine = linked(*lanes(1), *lanes(1, kind="cuda"), bandwidth=5.0, latency=1.0)
    found = Case(chain(Busy(), batch=2), machine, 2, nbytes=10, at={"s0": ("cuda:0",)}).simulate()
    assert Stall("cuda:0", 0, 1 + 20 / 5, "link", "s0") in found.timeline.stalls
    assert (seconds(found), found.moved) == (7, {"s0": 20})


def test_what_comes_in_is_in_main_memory_wherever_the_first_lane_is() -> None:
    machine = linked(*lanes(1, kind="cuda"), *lanes(1), bandwidth=5.0)
    found = Case(chain(Busy(), batch=2), machine, 2, nbytes=10, at={"s0": ("cuda:0",)}).simulate()
    assert seconds(found) == 20 / 5 + 2


def test_lanes_of_one_memory_hand_over_for_nothing() -> None:
    case = Case(
        chain(Busy(nbytes=1e9), Busy()), Machine(lanes(2)), 1, at={"s0": ("cpu:0",), "s1": ("cpu:1",)}
    )
    assert (seconds(case.simulate()), case.simulate().moved) == (2, {})


def test_a_stage_is_opened_once_on_each_lane() -> None:
    found = Case(chain(Busy(opening=3.0)), Machine(lanes(2)), 4).simulate()
    assert [s.opening for s in found.timeline.spans] == [3, 3, 0, 0]
    assert seconds(found) == 5


@pytest.mark.parametrize(("name", "expected"), [("", 5), ("another", 8)])
def test_stages_that_are_equal_are_opened_together(name: str, expected: float) -> None:
    case = Case(chain(Busy(opening=3.0), Busy(opening=3.0, name=name)), Machine(lanes(1)), 1)
    assert seconds(case.simulate()) == expected


def test_what_a_lost_lane_had_runs_again_elsewhere() -> None:
    found = Case(chain(Busy()), Machine(lanes(2)), 5).simulate(lose={"cpu:1": 1.5})
    # cpu:1 has done one row and lost one; cpu:0 does the other four.
    assert [found.timeline.busy(d) for d in ("cpu:0", "cpu:1")] == [4, 1]
    assert (rows(found, "s0"), seconds(found)) == (5, 4)


def test_a_lane_lost_after_the_end_changes_nothing() -> None:
    case = Case(chain(Busy()), Machine(lanes(2)), 5)
    assert case.simulate(lose={"cpu:1": 99.0}) == case.simulate()


def test_rows_go_round_a_loop_as_often_as_they_did() -> None:
    nodes = (node("go", Round(), a="n", batch=1), node("bare", Strip(), a="go", batch=1))
    loop = Loop(Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"}), {"n": "next"}, "flags", 4)
    graph = Graph({"rows": Numbers}, (node("l", loop, n="rows"),), {"out": "l.next"})
    case = Case(graph, Machine(lanes(2)), 10, learned=Learned(rounds={"l": 1.5}))
    assert rows(case.simulate(), "l/go") == 15
    assert rows(replace(case, learned=Learned()).simulate(), "l/go") == 40


def test_a_long_row_has_more_children_and_all_have_as_many_as_expected() -> None:
    case = Case(chain(Many(fan=2.5), Busy()), Machine(lanes(2)), 100, length=10)
    lengths = (1,) * 90 + (10,) * 5 + (172,) * 5  # a mean of 10
    sources = {"rows": Meta(tuple((i,) for i in range(100)), 0, lengths)}
    found = simulate(case.plan(), case.estimates(), sources)
    made = {s.length: s.made for s in found.timeline.spans if s.step == "s0"}
    assert (made[172], made[1] <= 1, rows(found, "s1")) == (43, True, 250)


def test_a_batch_takes_as_long_as_its_own_rows_are() -> None:
    case = Case(chain(Busy(0.0, by_length=1.0), batch=2), Machine(lanes(1)), 4, length=4)
    sources = {"rows": Meta(tuple((i,) for i in range(4)), 0, (1, 9, 2, 4))}
    found = simulate(case.plan(), case.estimates(), sources)
    assert [(s.length, s.seconds) for s in found.timeline.spans] == [(13, 13), (3, 3)]


@dataclass(frozen=True, slots=True)
class Pads(Busy):
    """A batch is a rectangle, as long as its longest row."""

    pads: ClassVar[bool] = True


UNLIKE = {"rows": Meta(tuple((i,) for i in range(6)), 0, (9, 1, 1, 9, 9, 1))}


def test_a_batch_that_is_padded_takes_as_long_as_its_longest_row_for_each() -> None:
    case = Case(chain(Pads(0.0, by_length=1.0), batch=4), Machine(lanes(1)), 6, length=5)
    found = simulate(case.plan(), case.estimates(), UNLIKE)
    assert [(s.rows, s.length, s.seconds) for s in found.timeline.spans] == [(4, 36, 36), (2, 2, 2)]


@pytest.mark.parametrize(("kind", "gain"), [(Pads, 36 + 2 - 27 - 3), (Busy, 0)])
def test_batches_of_like_length_gain_what_they_are_not_padded(kind: type[Busy], gain: float) -> None:
    case = Case(chain(kind(0.0, by_length=1.0), batch=4), Machine(lanes(1)), 6, length=5)
    estimates = case.estimates()
    jobs = (job("s0", case.plan().placements, estimates),)
    plain, like = (
        simulate(replace(case.plan(), policies=p, jobs=jobs), estimates, UNLIKE) for p in ((), ("lengths",))
    )
    assert seconds(plain) - seconds(like) == gain


def test_what_came_of_a_batch_follows_from_the_lengths_it_began_with() -> None:
    asked: list[str] = []

    class Counted(Simulation):
        def _lengths(self, task: Submit) -> list[int]:
            asked.append(task.step)
            return super()._lengths(task)

    case = Case(chain(Busy(by_length=1.0), batch=2), Machine(lanes(1)), 6, length=5)
    found = Counted(case.plan(), case.estimates(), UNLIKE).run()
    assert len(asked) == len(found.timeline.spans) == 3, "once for each batch"


def test_rows_stay_on_the_near_side_of_a_slow_link_where_the_way_costs_more() -> None:
    """A card that is eight times as fast, behind a link that takes 40 s a row; `guided` knows of both."""
    machine = linked(*lanes(1), *lanes(1, 8.0, kind="cuda"), bandwidth=1.0)
    case = Case(chain(Busy(), batch=8), machine, 16, nbytes=40.0)
    estimates = case.estimates()
    known = job("s0", case.plan().placements, estimates)
    blind = replace(known, lanes={n: replace(lane, link=0.0) for n, lane in known.lanes.items()})
    sources = given(case.sources, {"rows": False})
    aware, unaware = (
        simulate(replace(case.plan(), policies=("guided",), jobs=(j,)), estimates, sources)
        for j in (known, blind)
    )
    assert (seconds(aware), aware.moved) == (16, {})
    assert seconds(unaware) > 8 * 40


def test_a_group_takes_as_long_as_its_rows_in_sum() -> None:
    found = Case(chain(One(0.5, by_length=1.0)), Machine(lanes(1)), 4, length=3).simulate()
    assert [(s.length, s.seconds) for s in found.timeline.spans] == [(12, 4 * (0.5 + 3))]


def test_a_row_that_all_share_does_not_make_batches_longer() -> None:
    graph = Graph({"rows": Numbers, "all": Whole}, (node("s0", Join(), b="all", a="rows"),), {"out": "s0"})
    sources = {"rows": Meta((("a",), ("b",)), 0, (3, 4)), "all": Meta(((),), 0, (1000,))}
    case = Case(graph, Machine(lanes(1)), 2, length=3.5)
    found = simulate(case.plan(), case.estimates(), sources)
    assert sorted(s.length for s in found.timeline.spans) == [3, 4]


def test_energy_and_money_are_those_of_work_and_of_idling() -> None:
    rates = replace(profile(), joules_per_flop=2.0, idle_watts=10.0, price=3600.0)
    machine = Machine(tuple(replace(d, profile=rates) for d in lanes(2)))
    found = Case(chain(Busy()), machine, 3).simulate()
    assert (found.bill.joules, found.bill.dollars) == (3 * 2 + 2 * 10 * 2, 2 * 2)


def test_the_most_bytes_that_wait_are_kept() -> None:
    case = Case(chain(Busy(nbytes=5.0), One()), Machine(lanes(1)), 4, nbytes=10)
    # What came in is let go as a whole, with its fourth row; by then three are made.
    assert case.simulate().peak == 4 * 10 + 3 * 5


# whatever the graph


def run(graph: Graph, count: int, machine: Machine, **options: Any) -> Simulated:
    program = flatten(graph)
    sources = {n: Flow(1 if kind.whole else count, 3.0, 8.0) for n, kind in program.sources.items()}
    estimates = Estimates(program, machine, sources)
    invented = given(sources, {n: kind.whole for n, kind in program.sources.items()})
    return simulate(place(program, machine), estimates, invented, **options)


@hypothesis_given(graphs(), st.integers(0, 7), st.integers(1, 4))
@settings(max_examples=60)
def test_every_moment_of_a_lane_is_work_or_a_stall(graph: Graph, count: int, width: int) -> None:
    found = run(graph, count, Machine(lanes(width))).timeline
    for lane in (d.name for d in lanes(width)):
        stalls = [s for s in found.stalls if s.device == lane]
        idle = sum(s.end - s.start for s in stalls)
        assert found.busy(lane) + idle == pytest.approx(found.seconds, abs=1e-9)
        parts = sorted(
            [(s.start, s.end) for s in found.spans if s.device == lane] + [(s.start, s.end) for s in stalls]
        )
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(parts))


@hypothesis_given(graphs(), st.integers(0, 7), st.floats(0, 0.1))
@settings(max_examples=40)
def test_the_same_rows_give_the_same_timeline(graph: Graph, count: int, at: float) -> None:
    machine = Machine(lanes(3), handoff=0.001)
    assert run(graph, count, machine, lose={"cpu:1": at}) == run(graph, count, machine, lose={"cpu:1": at})


def test_estimates_that_were_asked_before_give_the_same_timeline() -> None:
    case = Case(
        chain(Busy(0.0, by_length=1.0), Busy(by_length=0.3), batch=3), Machine(lanes(2)), 9, length=2.3
    )
    asked = case.estimates()
    for at in (1.6, 2.4, 2.6):
        asked.seconds("s0", case.machine.devices[0], 3, at)
    sources = {"rows": Meta(tuple((i,) for i in range(9)), 0, (1, 2, 3, 4, 5, 1, 2, 2, 1))}
    assert simulate(case.plan(), asked, sources) == simulate(case.plan(), case.estimates(), sources)


# how much work it is


def calls(case: Case) -> int:
    """Python calls of a simulation."""
    plan, estimates = case.plan(), case.estimates()
    sources = given(case.sources, {"rows": False})
    count = 0

    def see(frame: Any, event: str, what: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        simulate(plan, estimates, sources)
    finally:
        sys.setprofile(before)
    return count


def test_the_work_of_a_simulation_grows_with_its_rows_and_no_faster() -> None:
    case = Case(chain(Busy(), Busy(2.0), Busy(), batch=16), Machine(lanes(16)), 2000)
    few, many = calls(case), calls(replace(case, rows=8000))
    assert many <= 4.2 * few
    assert many / 8000 < 120
