"""Groups of like length cost the least of all groupings, and the queue serves them longest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.machine import Device
from pipeline.policies.lengths import WINDOW, Lengths, LengthsQueue, Padded, fit, groups
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


@settings(deadline=None)
@given(st.floats(1e-4, 1), st.floats(1e-7, 1e-3), st.floats(0, 1e-6))
def test_the_fit_finds_the_numbers_that_made_the_batches(alpha: float, beta: float, gamma: float) -> None:
    made = Padded(alpha, beta, gamma)
    seen = [
        (longest, size, made.seconds(longest, size)) for longest in (16, 128, 1024) for size in (1, 8, 32)
    ]
    found = fit(seen)
    assert found.alpha == pytest.approx(alpha, rel=1e-3, abs=1e-6)
    assert found.beta == pytest.approx(beta, rel=1e-3, abs=1e-9)
    assert found.gamma == pytest.approx(gamma, rel=1e-3, abs=1e-12)


def test_no_number_of_a_fit_is_below_nothing() -> None:
    faster_than_a_line = [(10, 1, 1.0), (100, 1, 1.4), (1000, 1, 1.5), (1000, 4, 1.6)]
    found = fit(faster_than_a_line)
    assert min(found.alpha, found.beta, found.gamma) >= 0
    assert found.alpha == pytest.approx(1.3, abs=0.2)


def test_two_batches_do_not_fit_three_numbers() -> None:
    with pytest.raises(PlanError, match="at least three batches, found 2"):
        fit([(1, 1, 1.0), (2, 1, 1.0)])


# the queue

CPU, CUDA = Lane(Device("cpu:0"), 1.0, 1.0), Lane(Device("cuda:0"), 1e6, 1e-6)
JOB = Job("s", 4, ("cpu:0",), {"cpu:0": CPU, "cuda:0": CUDA})


def filled(lengths: Sequence[int], job: Job = JOB, cost: Padded | None = None) -> LengthsQueue[int]:
    rows: LengthsQueue[int] = LengthsQueue(job, cost)
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
    assert [len(batch) for batch in drain(filled(lengths, cost=Padded(1, 1)), 4)] == [3, 4, 4, 4, 4]


def test_a_lane_whose_batches_are_dear_takes_full_ones() -> None:
    lengths = [10, 900, 11, 905, 910, 12, 300, 9]
    assert drain(filled(lengths), 4, "cuda:0") == [[910, 905, 900, 300], [12, 11, 10, 9]]


def test_a_lane_of_which_nothing_is_known_takes_the_longest_in_full_batches() -> None:
    assert drain(filled([3, 1, 4, 1, 5, 9, 2, 6]), 3, "pim:0") == [[9, 6, 5], [4, 3, 2], [1, 1]]


def test_numbers_that_were_fitted_go_before_those_of_the_lane() -> None:
    policy = Lengths([JOB], {"s": Padded(1e6, 1.0)})
    rows = policy.queue("s")
    for length in (900, 1):
        rows.add(Waiting(length, length))
    assert rows.take(4, "cpu:0") == [900, 1]
    assert drain(filled([900, 1]), 4) == [[900], [1]]


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
    batches = drain(filled(lengths, cost=cost), most)
    assert list(itertools.chain(*batches)) == sorted(lengths, reverse=True)
    ordered, sizes = sorted(lengths, reverse=True), [len(b) for b in batches]
    full = [min(most, len(ordered) - i) for i in range(0, len(ordered), most)]
    assert total(ordered, sizes, cost) <= total(ordered, full, cost) + cost.alpha + 1e-9
    if len(lengths) <= WINDOW * most:
        assert total(ordered, sizes, cost) == pytest.approx(least(ordered, most, cost))
