"""One sorted queue served from both ends: right without knowing how fast the lanes are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.machine import Device
from pipeline.policies.ends import SMALL, Ends, EndsQueue, Shelf, fast, paces
from pipeline.policy import Job, Lane, Waiting


def job(
    cpu: float = 0.0, cuda: float = 0.0, planned: tuple[str, ...] = ("cpu:0", "cuda:0"), batch: int = 16
) -> Job:
    lanes = {"cpu:0": Lane(Device("cpu:0"), 0.0, cpu), "cuda:0": Lane(Device("cuda:0"), 0.0, cuda)}
    return Job("s", batch, planned, lanes)


def queued(lengths: list[int], of: Job) -> EndsQueue[int]:
    rows: EndsQueue[int] = EndsQueue(of)
    for length in lengths:
        rows.add(Waiting(length, length))
    return rows


trace = st.lists(st.integers(0, 20) | st.tuples(st.integers(1, 5), st.booleans()), max_size=80)


@given(trace)
def test_a_shelf_is_a_sorted_list_taken_at_both_ends(trace: list[int | tuple[int, bool]]) -> None:
    shelf: Shelf[int] = Shelf()
    plain: list[tuple[int, int]] = []
    for number, does in enumerate(trace):
        if isinstance(does, int):
            shelf.add(does, number)
            plain.append((does, number))
        else:
            most, long = does
            plain.sort(key=lambda row: (-row[0] if long else row[0], row[1]))
            assert shelf.take(most, long) == [n for _, n in plain[:most]]
            del plain[:most]
        assert (len(shelf), shelf.total) == (len(plain), sum(length for length, _ in plain))
        assert shelf.longest == max((length for length, _ in plain), default=0)


def test_a_shelf_served_at_one_end_forgets_what_is_gone() -> None:
    shelf: Shelf[int] = Shelf()
    for number in range(5000):
        shelf.add(number % 10, number)
        shelf.take(1, long=True)
    assert len(shelf._short) + len(shelf._gone) < 300


def test_lanes_are_of_the_fast_kind_by_their_pace() -> None:
    assert paces(job(cpu=8e-3, cuda=1e-3)) == {"cpu:0": 8.0, "cuda:0": 1.0}
    assert fast(job(cpu=8e-3, cuda=1e-3)) == {"cpu:0": False, "cuda:0": True}
    assert fast(job(cpu=1e-3, cuda=1.5e-3)) == {"cpu:0": True, "cuda:0": True}
    assert fast(job(cpu=1e-3, cuda=9e-3)) == {"cpu:0": True, "cuda:0": False}


@pytest.mark.parametrize(("cpu", "cuda"), [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_accelerators_are_fast_where_a_pace_is_unknown(cpu: float, cuda: float) -> None:
    assert fast(job(cpu, cuda)) == {"cpu:0": False, "cuda:0": True}
    assert paces(job(cpu, cuda)) == {}


def test_the_slow_lane_takes_few_hard_rows_and_the_fast_one_easy_rows_in_bulk() -> None:
    rows = queued(list(range(100)), job())
    assert rows.take(16, "cpu:0") == [99, 98]
    assert rows.take(16, "cuda:0") == list(range(16))
    assert rows.take(4, "cpu:0") == [97]


@pytest.mark.parametrize("planned", [("cpu:0",), ("cuda:0",)])
def test_lanes_of_one_kind_take_the_longest_in_full_batches(planned: tuple[str, ...]) -> None:
    rows = queued(list(range(20)), job(planned=planned))
    assert rows.take(16, planned[0]) == list(range(19, 3, -1))


def test_a_lane_beyond_the_plan_that_takes_makes_two_kinds() -> None:
    rows = queued(list(range(40)), job(planned=("cuda:0",)))
    assert rows.take(4, "cuda:0") == [39, 38, 37, 36]
    assert rows.take(16, "cpu:0") == [35, 34]
    assert rows.take(4, "cuda:0") == [0, 1, 2, 3]


def test_the_slow_lane_leaves_a_row_that_would_outlast_all_others() -> None:
    rows = queued([1000, *[10] * 200], job(cpu=8e-3, cuda=1e-3))
    assert rows.take(8, "cpu:0") == [10]
    rows = queued([200, *[10] * 200], job(cpu=8e-3, cuda=1e-3))
    assert rows.take(8, "cpu:0") == [200]


# two lanes whose speeds are not what was thought

SPEEDS = {"cpu:0": 1.0, "cuda:0": 8.0}
"""Units of length per second."""
MOST = 32


def pages(seed: int) -> list[int]:
    """Heavy-tailed, as page counts are."""
    draw = random.Random(seed)
    return [min(400, int(10 * draw.paretovariate(1.2))) for _ in range(3000)]


def run(lengths: list[int]) -> tuple[dict[str, float], dict[str, float]]:
    """When each lane is done, and its longest batch."""
    rows = queued(lengths, job(batch=MOST))
    free, longest = dict.fromkeys(SPEEDS, 0.0), dict.fromkeys(SPEEDS, 0.0)
    while rows:
        lane = min(free, key=lambda name: (free[name], name))
        seconds = sum(rows.take(MOST, lane)) / SPEEDS[lane]
        free[lane] += seconds
        longest[lane] = max(longest[lane], seconds)
    return free, longest


def static(lengths: list[int], ratio: float) -> float:
    """The makespan of parts that are right if the accelerator is `ratio` times as fast."""
    part = sum(lengths) / (1 + ratio)
    return max(part / SPEEDS["cpu:0"], (sum(lengths) - part) / SPEEDS["cuda:0"])


@pytest.mark.parametrize("seed", range(4))
def test_both_lanes_finish_within_one_batch(seed: int) -> None:
    free, longest = run(pages(seed))
    assert abs(free["cpu:0"] - free["cuda:0"]) <= max(longest.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ratio", [3.0, 5.0, 14.0, 30.0])
def test_beats_a_static_split_by_mistaken_speeds(seed: int, ratio: float) -> None:
    lengths = pages(seed)
    assert max(run(lengths)[0].values()) < static(lengths, ratio)


@pytest.mark.parametrize("seed", range(4))
def test_is_near_the_split_that_only_hindsight_knows(seed: int) -> None:
    lengths = pages(seed)
    assert max(run(lengths)[0].values()) < 1.03 * static(lengths, 8.0)


def test_small_pieces_are_a_part_of_the_batch_that_was_asked_for() -> None:
    rows = Ends([job()]).queue("s")
    for number in range(100):
        rows.add(Waiting(number, 5))
    assert len(rows.take(5 * SMALL, "cpu:0")) == 5
