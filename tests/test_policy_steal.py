from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine import Device
from pipeline.policies import POLICIES
from pipeline.policies.steal import Steal, backlog, pays
from pipeline.policy import Job, Lane, build
from pipeline.timeline import Timeline
from tests.fake_view import FakeView
from tests.minisim import MiniSim


def jobs(there: float = 2.0, fixed: float = 0.0, homes: int = 1) -> list[Job]:
    """Vision, bound by arithmetic on gpu:9, before decode, bound by memory traffic on gpu:0 and so on."""
    big = tuple(f"gpu:{i}" for i in range(homes))
    decode = {n: Lane(Device(n), fixed, 1.0, "memory") for n in big}
    decode["gpu:9"] = Lane(Device("gpu:9"), fixed, there, "memory")
    vision = {n: Lane(Device(n), 0.0, 1.0, "compute") for n in (*big, "gpu:9")}
    return [Job("vision", 4, ("gpu:9",), vision), Job("decode", 4, big, decode)]


OPEN = frozenset({("decode", "gpu:9"), ("vision", "gpu:0")})
PILE = FakeView({"decode": 100}, there=OPEN)


def run(found: list[Job], rows: int, policy: Steal | None = None) -> Timeline:
    sim = MiniSim(found, dict.fromkeys(range(rows), ("vision", "decode")), OPEN)
    timeline = sim.run(policy)
    assert sorted(sim.done) == list(range(rows))
    return timeline


def test_an_idle_compute_lane_takes_a_backlog_bound_by_memory() -> None:
    assert Steal(jobs()).lanes("decode", PILE) == ("gpu:0", "gpu:9")


def test_stealing_is_one_way() -> None:
    view = FakeView({"vision": 1000}, there=OPEN)
    assert Steal(jobs(0.001)).lanes("vision", view) == ("gpu:9",)


def test_a_busy_lane_does_not_steal() -> None:
    view = FakeView({"decode": 100}, there=OPEN, at_work={"gpu:9": 1})
    assert Steal(jobs()).lanes("decode", view) == ("gpu:0",)


@pytest.mark.parametrize(("opening", "steals"), [(10.0, True), (1000.0, False)])
def test_a_lane_where_the_stage_is_not_open_steals_if_opening_pays(opening: float, steals: bool) -> None:
    """At home the backlog takes 500 seconds."""
    found = jobs()
    lane = dataclasses.replace(found[1].lanes["gpu:9"], opening=opening)
    found[1] = dataclasses.replace(found[1], lanes={**found[1].lanes, "gpu:9": lane})
    assert ("gpu:9" in Steal(found).lanes("decode", FakeView({"decode": 100}))) is steals


@pytest.mark.parametrize(("rows", "more"), [(8, False), (9, True)])
def test_a_backlog_is_more_than_two_batches_for_each_lane_at_home(rows: int, more: bool) -> None:
    view = FakeView({"decode": rows}, there=OPEN)
    assert backlog(rows, 4, 1) is more
    assert ("gpu:9" in Steal(jobs(1.0)).lanes("decode", view)) is more
    assert not backlog(16, 4, 2)


@pytest.mark.parametrize(("transfer", "steals"), [(0.5, True), (1.0, False)])
def test_rows_stay_that_take_as_long_to_move_as_to_be_worked_on(transfer: float, steals: bool) -> None:
    vision, decode = jobs()
    moved = dataclasses.replace(decode, transfer=transfer)
    assert ("gpu:9" in Steal([vision, moved]).lanes("decode", PILE)) is steals


@pytest.mark.parametrize(("seconds", "rows", "yes"), [(3.0, 12, False), (3.0, 13, True), (30.0, 100, False)])
def test_it_pays_where_a_batch_ends_before_the_backlog_does_at_home(
    seconds: float, rows: int, yes: bool
) -> None:
    home, there = Lane(Device("gpu:0"), 0, 1.0), Lane(Device("gpu:9"), 0, seconds)
    assert pays(rows, 4, [home], there) is yes  # 4 * seconds against 1.0 * rows


def test_it_does_not_pay_where_a_speed_is_unknown() -> None:
    assert not pays(1000, 4, [Lane(Device("gpu:0"))], Lane(Device("gpu:9"), 0, 1.0))
    assert not pays(1000, 4, [Lane(Device("gpu:0"), 0, 1.0)], Lane(Device("gpu:9")))


@pytest.mark.parametrize("bound", ["memory", "scalar", "overhead", ""])
def test_only_lanes_whose_own_steps_are_bound_by_arithmetic_steal(bound: str) -> None:
    vision, decode = jobs()
    other = {n: dataclasses.replace(lane, bound=bound) for n, lane in vision.lanes.items()}
    assert Steal([Job("vision", 4, ("gpu:9",), other), decode]).lanes("decode", PILE) == ("gpu:0",)
    second = Job("rank", 4, ("gpu:9",), other)
    assert Steal([vision, second, decode]).lanes("decode", PILE) == ("gpu:0",)


@pytest.mark.parametrize("bound", ["compute", "scalar", "overhead", ""])
def test_only_steps_bound_by_memory_at_home_are_stolen(bound: str) -> None:
    vision, decode = jobs()
    other = {n: dataclasses.replace(lane, bound=bound) for n, lane in decode.lanes.items()}
    assert Steal([vision, Job("decode", 4, ("gpu:0",), other)]).lanes("decode", PILE) == ("gpu:0",)


def test_a_lane_without_steps_of_its_own_does_not_steal() -> None:
    _, decode = jobs()
    assert Steal([decode]).lanes("decode", PILE) == ("gpu:0",)


def test_once_vision_has_drained_the_run_ends_sooner() -> None:
    slow = jobs()
    slow = [slow[0], dataclasses.replace(slow[1], lanes=_slower(slow[1]))]
    plain, stolen = run(slow, 80), run(slow, 80, Steal(slow))
    assert stolen.seconds < 0.85 * plain.seconds
    assert {s.device for s in stolen.spans if s.step == "vision"} == {"gpu:9"}


def _slower(job: Job) -> dict[str, Lane]:
    """Decode takes three times as long as vision, and six times on the small lane."""
    return {n: dataclasses.replace(lane, per_row=3 * lane.per_row) for n, lane in job.lanes.items()}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([0.3, 1.0, 2.0, 5.0, 11.0]),
    st.sampled_from([0.0, 0.7, 4.0]),
    st.integers(1, 3),
    st.data(),
)
def test_a_backlog_is_never_worked_off_later_for_what_is_stolen(
    there: float, fixed: float, homes: int, data: st.DataObject
) -> None:
    found = jobs(there, fixed, homes)
    routes = dict.fromkeys(range(data.draw(st.integers(1, 80))), ("decode",))
    plain, stolen = (MiniSim(found, routes, OPEN).run(p).seconds for p in (None, Steal(found)))
    assert stolen <= plain + 1e-9


def test_it_is_built_by_name() -> None:
    (made,) = build(["steal"], POLICIES, jobs())
    assert isinstance(made, Steal)
