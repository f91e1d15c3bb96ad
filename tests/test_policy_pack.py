"""A batch of one size class wastes at most its share, and no class waits for ever."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.policies.pack import PATIENCE, WASTE, Pack, PackQueue, floors
from pipeline.policy import Waiting

lengths = st.integers(0, 9) | st.integers(0, 10**9)


def waste(batch: list[int]) -> float:
    """The share of a batch that is padding, if all rows are padded to the longest."""
    padded = max(batch) * len(batch)
    return 1 - sum(batch) / padded if padded else 0.0


def packed(rows: list[int], bound: float = WASTE, patience: int = PATIENCE) -> PackQueue[int]:
    queue: PackQueue[int] = PackQueue(bound, patience)
    for length in rows:
        queue.add(Waiting(length, length))
    return queue


@given(st.lists(lengths, min_size=1, max_size=20), st.sampled_from([0.05, 0.25, 0.5]))
def test_rows_of_one_class_never_waste_more_than_the_bound(rows: list[int], bound: float) -> None:
    starts = list(itertools.takewhile(lambda b: b <= max(rows), floors(bound)))
    for low, high in itertools.pairwise([*starts, max(rows) + 1]):
        inside = [r for r in rows if low <= r < high]
        assert not inside or waste(inside) <= bound + 1e-12


def test_with_a_bound_of_a_half_classes_are_the_powers_of_two() -> None:
    assert list(itertools.islice(floors(0.5), 7)) == [0, 1, 3, 7, 15, 31, 63]


def test_a_quarter_needs_70_classes_up_to_a_billion() -> None:
    assert sum(1 for _ in itertools.takewhile(lambda b: b <= 10**9, floors(WASTE))) == 70


@given(st.lists(lengths, max_size=60), st.integers(1, 8))
def test_batches_stay_below_the_bound_as_long_as_no_class_waited_too_long(rows: list[int], most: int) -> None:
    queue = packed(rows, patience=1000)
    while queue:
        assert waste(queue.take(most, "")) <= WASTE + 1e-12


def test_the_fullest_class_goes_first() -> None:
    queue = packed([100, 10, 10, 1000, 10, 101])
    assert queue.take(4, "") == [10, 10, 10]
    assert queue.take(4, "") == [100, 101]
    assert queue.take(4, "") == [1000]


def test_a_class_that_was_passed_by_too_often_is_served_and_filled_up_with_its_neighbours() -> None:
    queue = packed([500, 20, 9000, *[10] * 12], patience=3)
    assert [queue.take(4, "") for _ in range(3)] == [[10] * 4] * 3
    queue.add(Waiting(10, 10))
    assert queue.take(4, "") == [20, 10, 500, 9000]


def test_the_places_that_are_left_go_to_shorter_rows_before_longer_ones() -> None:
    queue = packed([100, *[5000] * 8], patience=2)
    for _ in range(2):
        assert queue.take(4, "") == [5000] * 4
    queue.add(Waiting(140, 140))
    queue.add(Waiting(10, 10))
    assert queue.take(3, "") == [100, 10, 140]


@given(
    st.lists(st.lists(st.sampled_from([1, 10, 100, 1000]), max_size=6), min_size=1, max_size=60),
    st.integers(1, 5),
)
def test_nobody_waits_longer_than_the_bound(arrivals: list[list[int]], most: int) -> None:
    patience, classes = 4, 4
    queue: PackQueue[tuple[int, int, int]] = PackQueue(WASTE, patience)
    ahead = dict.fromkeys([1, 10, 100, 1000], 0)
    for batch, come in enumerate(itertools.chain(arrivals, itertools.repeat([], 400))):
        for length in come:
            queue.add(Waiting((length, batch, ahead[length]), length))
            ahead[length] += 1
        for length, since, before in queue.take(most, ""):
            assert batch - since <= (patience + classes) * (before // most + 1)
            ahead[length] -= 1
    assert not queue


def test_classes_that_never_run_dry_all_have_their_turn() -> None:
    queue = packed([])
    seen = []
    for _ in range(6 * PATIENCE):
        for length in (1, 30, 1000):
            for _ in range(8):
                queue.add(Waiting(length, length))
        seen.append(queue.take(8, "")[0])
    assert min(seen.count(length) for length in (1, 30, 1000)) >= 4


def test_a_class_of_many_does_not_shut_out_a_single_row() -> None:
    queue = packed([7])
    batches = 0
    while True:
        for _ in range(8):
            queue.add(Waiting(1000, 1000))
        batches += 1
        if 7 in queue.take(8, ""):
            break
    assert batches == PATIENCE + 1


@pytest.mark.parametrize("length", [0, 5])
def test_rows_of_one_length_fill_every_batch(length: int) -> None:
    queue = Pack([]).queue("s")
    for number in range(10):
        queue.add(Waiting(number, length))
    assert [queue.take(4, "") for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
