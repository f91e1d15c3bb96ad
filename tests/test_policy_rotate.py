from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine import Device
from pipeline.policies import POLICIES
from pipeline.policies.rotate import Pool, Rotate, best_parts, round_seconds
from pipeline.policy import Job, Lane, Sizes, View, build
from pipeline.timeline import Timeline
from tests.fake_view import FakeView
from tests.minisim import MiniSim


def step(name: str, lanes: Iterable[str], fixed: float = 0.0, per_row: float = 1.0, loops: int = 1) -> Job:
    made = {n: Lane(Device(n), fixed, per_row) for n in lanes}
    return Job(name, 8, tuple(made), made, loops=loops)


ATTEND, DENSE = step("attend", ["cpu:0"]), step("dense", ["cuda:0"])
PAIR = [ATTEND, DENSE]


def run(jobs: list[Job], rows: int, rounds: int, policy: Sizes | None) -> Timeline:
    sim = MiniSim(jobs, {i: tuple(j.name for j in jobs) * rounds for i in range(rows)})
    timeline = sim.run(policy)
    assert sorted(sim.done) == list(range(rows))
    return timeline


def idle(timeline: Timeline, lane: str) -> float:
    """Share of the middle half of a run in which a lane stood still."""
    a, b = timeline.seconds / 4, timeline.seconds * 3 / 4
    work = sum(max(0.0, min(s.end, b) - max(s.start, a)) for s in timeline.spans if s.device == lane)
    return 1 - work / (b - a)


def test_with_equal_steps_one_batch_leaves_each_pool_idle_half_of_the_time_and_two_none() -> None:
    serial, rotating = run(PAIR, 8, 20, None), run(PAIR, 8, 20, Rotate(PAIR))
    for lane in ("cpu:0", "cuda:0"):
        assert idle(serial, lane) == pytest.approx(0.5, abs=0.05)
        assert idle(rotating, lane) == pytest.approx(0.0, abs=0.01)
    assert rotating.seconds < 0.55 * serial.seconds


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.sampled_from([0.0, 0.5]), st.sampled_from([0.3, 1.0, 4.0]))
def test_the_same_rows_are_processed_however_they_are_cut(
    rows: int, rounds: int, fixed: float, per_row: float
) -> None:
    jobs = [step("attend", ["cpu:0", "cpu:1"], fixed, per_row), step("dense", ["cuda:0"], fixed)]
    for policy in (None, Rotate(jobs)):
        spans = run(jobs, rows, rounds, policy).spans
        for job in jobs:
            assert sum(s.rows for s in spans if s.step == job.name) == rows * rounds


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 16), st.sampled_from([0.0, 0.2, 2.0]), st.sampled_from([0.05, 1.0, 5.0]))
def test_in_the_long_run_it_never_costs_more_than_the_halves_that_it_makes(
    rows: int, fixed: float, per_row: float
) -> None:
    jobs = [step("attend", ["cpu:0"], fixed, per_row), step("dense", ["cuda:0"], fixed)]
    rounds = 20
    plain = run(jobs, rows, rounds, None).seconds
    assert run(jobs, rows, rounds, Rotate(jobs)).seconds <= plain * (1 + 2 / rounds)


def test_half_of_the_rows_are_taken_once_and_not_halved_again() -> None:
    policy = Rotate(PAIR)
    assert policy.size("attend", "cpu:0", 8, FakeView({"attend": 7})) == 4
    assert policy.size("attend", "cpu:0", 8, FakeView({"attend": 3}, batches={"attend": 1})) == 4
    assert policy.size("attend", "cpu:0", 8, FakeView({"attend": 3, "dense": 4})) == 4


def test_a_single_row_is_taken() -> None:
    assert Rotate(PAIR).size("attend", "cpu:0", 8, FakeView({"attend": 1})) == 1


def test_where_two_full_batches_circulate_batches_stay_full() -> None:
    assert Rotate(PAIR).size("attend", "cpu:0", 8, FakeView({"attend": 16})) == 8
    assert Rotate(PAIR).size("attend", "cpu:0", 8, FakeView({"attend": 15})) == 8
    assert Rotate(PAIR).size("attend", "cpu:0", 8, FakeView({"attend": 9})) == 5


def test_a_step_outside_of_loops_keeps_its_batch() -> None:
    jobs = [*PAIR, step("embed", ["cpu:1"], loops=0)]
    assert Rotate(jobs).size("embed", "cpu:1", 8, FakeView({"embed": 4})) == 8


@pytest.mark.parametrize(
    "jobs",
    [
        [ATTEND],
        [ATTEND, step("dense", ["cuda:0"], loops=0)],
        [ATTEND, step("dense", ["cpu:0"])],
        [ATTEND, step("dense", ["cpu:0", "cuda:0"])],
        [ATTEND, step("dense", ["cpu:0", "cuda:0"]), step("rank", ["cuda:0"])],
    ],
)
def test_a_loop_on_shared_lanes_keeps_its_batches(jobs: list[Job]) -> None:
    assert Rotate(jobs).size("attend", "cpu:0", 8, FakeView({"attend": 4})) == 8


def test_where_seconds_per_batch_dominate_batches_stay_whole() -> None:
    view = FakeView({"attend": 4})
    for fixed, size in ((2.0, 2), (2.1, 8)):  # half of the rows' seconds: 1 * 4 / 2
        jobs = [step("attend", ["cpu:0"], fixed), step("dense", ["cuda:0"], fixed)]
        assert Rotate(jobs).size("attend", "cpu:0", 8, view) == size


def test_a_round_that_would_get_longer_is_not_cut() -> None:
    jobs = [step("attend", ["cpu:0"], 1.0), step("dense", ["cuda:0"], 0.0, 0.001)]
    assert Rotate(jobs).size("attend", "cpu:0", 8, FakeView({"attend": 4})) == 8


def test_steps_of_unknown_cost_keep_their_batches() -> None:
    jobs = [step("attend", ["cpu:0"], 0, 0), step("dense", ["cuda:0"], 0, 0)]
    assert Rotate(jobs).size("attend", "cpu:0", 8, FakeView({"attend": 4})) == 8


def test_every_lane_of_larger_pools_gets_a_part() -> None:
    jobs = [step("attend", ["cpu:0", "cpu:1"]), step("dense", ["cuda:0", "cuda:1"])]
    assert Rotate(jobs).size("attend", "cpu:0", 8, FakeView({"attend": 8})) == 2
    rotating = run(jobs, 8, 20, Rotate(jobs))
    assert all(idle(rotating, lane) < 0.01 for lane in ("cpu:0", "cpu:1", "cuda:0", "cuda:1"))


@given(st.floats(0, 3), st.floats(0.01, 3), st.integers(1, 50))
def test_two_equal_pools_take_half_of_the_serial_round_and_the_fixed_seconds(
    fixed: float, per_row: float, rows: int
) -> None:
    pools = [Pool(1, fixed, per_row)] * 2
    assert round_seconds(pools, rows, 1) == pytest.approx(2 * (fixed + per_row * rows))
    assert round_seconds(pools, rows, 2) == pytest.approx(2 * fixed + per_row * rows)


class Cut:
    """Batches of a given size."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def size(self, step: str, lane: str, batch: int, view: View) -> int:
        return min(self.rows, batch)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([0.0, 0.5]), st.sampled_from([0.25, 1.0, 2.0]), st.integers(1, 8))
def test_the_number_of_parts_is_the_best_of_all_that_are_tried(
    fixed: float, per_row: float, half: int
) -> None:
    pools = [Pool(1, fixed, 1.0), Pool(1, fixed, per_row)]
    jobs = [step("attend", ["cpu:0"], fixed), step("dense", ["cuda:0"], fixed, per_row)]
    tried = {k: run(jobs, 2 * half, 40, Cut(2 * half // k)).seconds for k in (1, 2)}
    assert tried[best_parts(pools, 2 * half)] <= min(tried.values()) * 1.05


def test_it_is_built_by_name() -> None:
    (made,) = build(["rotate"], POLICIES, PAIR)
    assert isinstance(made, Rotate)
