"""Groups of like length cost the least of all groupings, and the queue serves them longest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine import Device
from pipeline.policies.lengths import WINDOW, Lengths, LengthsQueue, Padded, groups
from pipeline.policy import Job, Lane, Waiting

costs = st.builds(
    Padded,
    st.sampled_from([0.0, 1.0, 50.0, 1e4]),
    st.sampled_from([0.0, 1.0, 0.3]),
    st.sampled_from([0.0, 0.01]),
)
falling = st.lists(st.integers(0, 400) | st.integers(0, 4), max_size=8).map(lambda x: sorted(x, reverse=True))


def compositions(count: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut `count` rows into groups."""
    for cuts in itertools.product([False, True], repeat=max(0, count - 1)):
        at = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
        sizes = tuple(b - a for a, b in itertools.pairwise(at))
        if count and max(sizes) <= most:
            yield sizes


def total(lengths: Sequence[int], sizes: Sequence[int], cost: Padded) -> float:
    starts = itertools.accumulate(sizes, initial=0)
    return sum(cost.seconds(lengths[s], size) for s, size in zip(starts, sizes, strict=False))


def least(lengths: Sequence[int], most: int, cost: Padded) -> float:
    """The plain quadratic recurrence."""
    best = [0.0]
    for end in range(1, len(lengths) + 1):
        starts = range(max(0, end - most), end)
        best.append(min(best[s] + cost.seconds(lengths[s], end - s) for s in starts))
    return best[-1]


@given(falling, st.integers(1, 8), costs)
def test_groups_cost_what_the_best_of_all_groupings_costs(
    lengths: list[int], most: int, cost: Padded
) -> None:
    sizes = groups(lengths, most, cost)
    assert sum(sizes) == len(lengths)
    assert all(1 <= size <= most for size in sizes)
    every = [total(lengths, s, cost) for s in compositions(len(lengths), most)]
    assert total(lengths, sizes, cost) == pytest.approx(min(every, default=0.0))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=40, max_size=150), st.integers(1, 40), costs)
def test_many_rows_cost_what_the_recurrence_says(lengths: list[int], most: int, cost: Padded) -> None:
    lengths.sort(reverse=True)
    assert total(lengths, groups(lengths, most, cost), cost) == pytest.approx(least(lengths, most, cost))


def test_a_dear_batch_keeps_rows_together_and_a_cheap_one_parts_them() -> None:
    lengths = [100, 99, 98, 10, 9, 8]
    assert groups(lengths, 6, Padded(1000, 1)) == [6]
    assert groups(lengths, 6, Padded(50, 1)) == [3, 3]
    assert groups(lengths, 6, Padded(0, 1)) == [1] * 6


def test_rows_of_one_length_fill_batches_from_the_first() -> None:
    assert groups([7] * 100, 32, Padded(1, 1)) == [32, 32, 32, 4]
    assert groups([9] * 20 + [1] * 20, 8, Padded(0.1, 1)) == [8, 8, 4, 8, 8, 4]


# the queue

CPU, CUDA = Lane(Device("cpu:0"), 1.0, 1.0), Lane(Device("cuda:0"), 1e6, 1e-6)
JOB = Job("s", 4, ("cpu:0",), {"cpu:0": CPU, "cuda:0": CUDA})


def costing(cost: Padded, lengths: Sequence[int]) -> Job:
    """A job on a lane where batches cost so much."""
    mean = sum(lengths) / max(len(lengths), 1)
    per_row = cost.row(mean)
    bend = cost.gamma * mean * mean / per_row if per_row else 0.0
    return Job("s", 4, ("cpu:0",), {"cpu:0": Lane(Device("cpu:0"), cost.alpha, per_row, bend=bend)})


def filled(lengths: Sequence[int], job: Job = JOB) -> LengthsQueue[int]:
    rows: LengthsQueue[int] = LengthsQueue(job)
    for length in lengths:
        rows.add(Waiting(length, length))
    return rows


def drain(rows: LengthsQueue[int], most: int, lane: str = "cpu:0") -> list[list[int]]:
    return [rows.take(most, lane) for _ in iter(lambda: len(rows), 0)]


def test_batches_are_the_groups_of_all_rows_that_fit_into_the_window() -> None:
    lengths = [10, 900, 11, 905, 910, 12, 300, 9]
    assert drain(filled(lengths), 4) == [[910, 905, 900], [300], [12, 11, 10, 9]]


def test_a_group_that_the_window_cut_short_is_made_anew() -> None:
    lengths = [900] * 3 + [800] * 4 + [700] * 4 + [600] * 4 + [500] * 4
    assert [len(batch) for batch in drain(filled(lengths, costing(Padded(1, 1), lengths)), 4)] == [
        3,
        4,
        4,
        4,
        4,
    ]


def test_a_lane_whose_batches_are_dear_takes_full_ones() -> None:
    lengths = [10, 900, 11, 905, 910, 12, 300, 9]
    assert drain(filled(lengths), 4, "cuda:0") == [[910, 905, 900, 300], [12, 11, 10, 9]]


def test_a_lane_of_which_nothing_is_known_takes_the_longest_in_full_batches() -> None:
    assert drain(filled([3, 1, 4, 1, 5, 9, 2, 6]), 3, "pim:0") == [[9, 6, 5], [4, 3, 2], [1, 1]]


def test_where_long_rows_cost_their_square_they_are_kept_from_short_ones() -> None:
    """Two rows of 10 beside one of 20 cost 20 more by length alone, and 600 by its square."""
    lengths = [20, 10, 10]
    assert drain(filled(lengths, costing(Padded(100.0, 1.0), lengths)), 4) == [[20, 10, 10]]
    assert drain(filled(lengths, costing(Padded(100.0, 0.0, 1.0), lengths)), 4) == [[20], [10, 10]]


def test_it_is_made_for_each_step() -> None:
    rows = Lengths([JOB]).queue("s")
    rows.add(Waiting(3, 3))
    assert rows.take(4, "cpu:0") == [3]


def test_a_lane_that_takes_less_gets_the_head_of_a_group_and_the_next_the_rest() -> None:
    rows = filled([910, 905, 900, 10, 9])
    assert rows.take(4, "cpu:0") == [910, 905, 900]
    rows = filled([910, 905, 900, 10, 9])
    rows.add(Waiting(901, 901))
    assert rows.take(4, "cpu:0") == [910, 905, 901, 900]
    assert rows.take(1, "cpu:0") == [10]
    assert rows.take(4, "cpu:0") == [9]


def test_a_lane_that_takes_more_has_the_groups_made_anew() -> None:
    rows = filled([5] * 12)
    assert len(rows.take(2, "cpu:0")) == 2
    assert len(rows.take(8, "cpu:0")) == 8
    assert len(rows) == 2


@given(st.lists(st.integers(1, 1000), max_size=80), st.integers(1, 6), costs)
def test_rows_leave_longest_first_and_a_batch_is_never_dearer_than_it_must(
    lengths: list[int], most: int, cost: Padded
) -> None:
    batches = drain(filled(lengths, costing(cost, lengths)), most)
    assert list(itertools.chain(*batches)) == sorted(lengths, reverse=True)
    ordered, sizes = sorted(lengths, reverse=True), [len(b) for b in batches]
    full = [min(most, len(ordered) - i) for i in range(0, len(ordered), most)]
    assert total(ordered, sizes, cost) <= total(ordered, full, cost) + cost.alpha + 1e-9
    if len(lengths) <= WINDOW * most:
        assert total(ordered, sizes, cost) == pytest.approx(least(ordered, most, cost))
