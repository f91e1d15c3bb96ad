from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine import Device
from pipeline.policies import POLICIES
from pipeline.policies.guided import Guided, chunk
from pipeline.policy import Job, Lane, Sizes, build
from pipeline.timeline import Timeline
from tests.fake_view import FakeView
from tests.minisim import MiniSim

LANES = ("gpu:0", "cpu:0", "cpu:1", "cpu:2")


def waits(rows: int, *more: str) -> FakeView:
    return FakeView({"ocr": rows}, frozenset(more))


def job(per_row: list[float], batch: int, fixed: float = 0.0) -> Job:
    lanes = {n: Lane(Device(n), fixed, p) for n, p in zip(LANES, per_row, strict=False)}
    return Job("ocr", batch, tuple(lanes), lanes)


def run(one: Job, rows: int, policy: Sizes | None = None, planned: tuple[str, ...] = ()) -> Timeline:
    one = Job(one.name, one.batch, planned or one.planned, one.lanes)
    sim = MiniSim([one], dict.fromkeys(range(rows), ("ocr",)))
    timeline = sim.run(policy)
    assert sorted(sim.done) == list(range(rows))
    return timeline


@given(st.integers(1, 64), st.integers(1, 20), st.integers(1, 8), st.one_of(st.none(), st.integers(1, 1000)))
def test_one_fast_lane_and_n_slow_ones_get_the_chunks_of_the_paper(
    batch: int, f: int, n: int, r: int | None
) -> None:
    slow = Fraction(batch, f) if r is None else min(Fraction(batch, f), Fraction(r, f + n))
    speeds = [0.1 * f] + [0.1] * n
    assert chunk(batch, speeds[0], speeds, r) == batch
    assert chunk(batch, 0.1, speeds, r) == (max(1, slow.__floor__()) if f > 1 else batch)


def test_a_slow_lane_takes_what_it_does_in_the_time_of_the_fast_ones_batch() -> None:
    policy = Guided([job([1, 4], 32)])
    assert policy.size("ocr", "gpu:0", 32, waits(1000)) == 32
    assert policy.size("ocr", "cpu:0", 32, waits(1000)) == 8


def test_the_end_limits_the_slow_lane_only_once_nothing_more_comes() -> None:
    policy = Guided([job([1, 4], 32)])
    assert policy.size("ocr", "cpu:0", 32, waits(10)) == 2  # 10 / (4 + 1)
    assert policy.size("ocr", "cpu:0", 32, waits(10, "ocr")) == 8


def test_a_lane_that_would_outlast_the_others_has_no_part_in_the_end() -> None:
    policy = Guided([job([1, 100], 8)])
    assert policy.lanes("ocr", waits(99)) == ["gpu:0"]
    assert policy.lanes("ocr", waits(100)) == ["gpu:0", "cpu:0"]
    assert list(policy.lanes("ocr", waits(99, "ocr"))) == ["gpu:0", "cpu:0"]


@pytest.mark.parametrize("speeds", [[1], [1, 0], [2, 2, 2]])
def test_nothing_changes_on_one_lane_on_unknown_and_on_equal_lanes(speeds: list[float]) -> None:
    policy = Guided([job(speeds, 8)])
    for name in LANES[: len(speeds)]:
        assert policy.size("ocr", name, 8, waits(3)) == 8
    assert tuple(policy.lanes("ocr", waits(3))) == LANES[: len(speeds)]


def test_a_lane_that_helps_out_unplanned_gets_its_chunk_too() -> None:
    one = job([1, 4], 8)
    policy = Guided([Job("ocr", 8, ("gpu:0",), one.lanes)])
    assert policy.size("ocr", "cpu:0", 8, waits(100)) == 2


def test_it_is_sooner_done_than_full_batches_for_all() -> None:
    one = job([1, 8], 16)
    plain, guided = run(one, 64), run(one, 64, Guided([one]))
    assert plain.seconds == 128  # the last full batch of the slow lane
    assert guided.seconds < 60


SPEEDS = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0, 20.0, 300.0]), min_size=2, max_size=4)


class OnlySizes:
    """Guided without its say on lanes: none stops before the rows are gone."""

    def __init__(self, one: Job) -> None:
        self.size = Guided([one]).size


@settings(max_examples=150, deadline=None)
@given(SPEEDS, st.integers(1, 12), st.sampled_from([0.0, 0.25, 3.0]), st.integers(1, 90))
def test_lanes_end_within_one_chunk_of_the_slowest(
    per_row: list[float], batch: int, fixed: float, rows: int
) -> None:
    one = job(per_row, batch, fixed)
    speeds = [batch / lane.seconds(batch) for lane in one.lanes.values()]
    slowest = max(
        lane.seconds(chunk(batch, v, speeds, None))
        for lane, v in zip(one.lanes.values(), speeds, strict=True)
    )
    spans = run(one, rows, OnlySizes(one)).spans
    ends = [max((s.end for s in spans if s.device == name), default=0.0) for name in one.lanes]
    assert max(ends) - min(ends) <= slowest + 1e-9


@settings(max_examples=150, deadline=None)
@given(SPEEDS, st.integers(1, 12), st.sampled_from([0.0, 0.25, 3.0]), st.integers(1, 90))
def test_it_never_takes_longer_than_the_fastest_lane_alone(
    per_row: list[float], batch: int, fixed: float, rows: int
) -> None:
    one = job(per_row, batch, fixed)
    alone = min(run(one, rows, planned=(name,)).seconds for name in one.lanes)
    assert run(one, rows, Guided([one])).seconds <= alone + 1e-9


# links


def linked_job(link: float) -> Job:
    """A card that computes ten times as fast as the CPU, behind a link."""
    lanes = {"gpu:0": Lane(Device("gpu:0"), 0.0, 0.1, link=link), "cpu:0": Lane(Device("cpu:0"), 0.0, 1.0)}
    return Job("ocr", 10, tuple(lanes), lanes)


def test_a_lane_is_as_slow_as_the_way_to_it() -> None:
    near, far = (Guided([linked_job(link)]) for link in (0.0, 9.9))
    sizes = [[p.size("ocr", lane, 10, waits(1000)) for lane in ("cpu:0", "gpu:0")] for p in (near, far)]
    assert sizes == [[1, 10], [10, 1]]


def test_no_row_goes_over_a_link_on_which_it_would_be_late() -> None:
    """In 9 s the CPU has done nine rows itself."""
    one = linked_job(9.0)
    plain, guided = run(one, 9), run(one, 9, Guided([one]))
    assert [s.device for s in plain.spans] == ["gpu:0"]
    assert plain.seconds == pytest.approx(9 * 9.1)
    assert ({s.device for s in guided.spans}, guided.seconds) == ({"cpu:0"}, 9)


def test_it_is_built_by_name() -> None:
    (made,) = build(["guided"], POLICIES, [job([1, 4], 8)])
    assert isinstance(made, Guided)
