"""Whoever was served least is served next, so a small input is not stuck behind a large one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.policies.slices import Slices, SlicesQueue, tag
from pipeline.policy import Waiting

lengths = st.lists(st.lists(st.integers(0, 50), max_size=15), max_size=6)


def queued(inputs: list[list[int]]) -> SlicesQueue[tuple[int, int]]:
    rows: SlicesQueue[tuple[int, int]] = SlicesQueue()
    for root, of in enumerate(inputs):
        for length in of:
            rows.add(Waiting((root, length), length, (root,)))
    return rows


def least_served(inputs: list[list[int]]) -> list[tuple[int, int]]:
    """Always the next row of the input that had least; of those that had the same, that which came first."""
    left, served, order = [list(of) for of in inputs], [0] * len(inputs), []
    while any(left):
        stamps = [
            sum(len(x) for x in inputs[:root]) + len(of) - len(left[root]) for root, of in enumerate(inputs)
        ]
        root = min((r for r in range(len(left)) if left[r]), key=lambda r: (served[r], stamps[r]))
        length = left[root].pop(0)
        served[root] += max(1, length)
        order.append((root, length))
    return order


@given(lengths, st.integers(1, 9))
def test_rows_leave_in_the_order_of_service_received(inputs: list[list[int]], most: int) -> None:
    rows = queued(inputs)
    taken = [row for _ in iter(lambda: len(rows), 0) for row in rows.take(most, "")]
    assert taken == least_served(inputs)


def test_a_row_stands_after_its_input_and_after_what_was_taken() -> None:
    assert tag(5.0, None) == 5.0
    assert tag(5.0, 3.0) == 5.0
    assert tag(5.0, 9.0) == 9.0


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 16), st.integers(0, 5))
def test_a_small_input_is_done_within_as_many_batches_as_there_are_inputs(
    sizes: list[int], most: int, before: int
) -> None:
    rows = queued([[1] * size for size in sizes])
    for _ in range(before):
        rows.take(most, "")
    small = len(sizes)
    for _ in range(most):
        rows.add(Waiting((small, 1), 1, (small,)))
    taken = [row for _ in range(len(sizes) + 1) for row in rows.take(most, "")]
    assert Counter(root for root, _ in taken)[small] == most


@given(lengths, st.integers(1, 9))
def test_two_inputs_that_wait_never_differ_by_more_than_a_row_of_each(
    inputs: list[list[int]], most: int
) -> None:
    rows, served = queued(inputs), [0] * len(inputs)
    left = [sum(1 for _ in of) for of in inputs]
    while rows:
        for root, length in rows.take(most, ""):
            served[root] += max(1, length)
            left[root] -= 1
        waiting = [served[root] for root, count in enumerate(left) if count]
        if waiting:
            assert max(waiting) - min(waiting) <= 50


def test_a_small_document_does_not_wait_for_a_large_one() -> None:
    rows = queued([[1] * 5000])
    rows.take(32, "")
    for _ in range(5):
        rows.add(Waiting((1, 1), 1, (1,)))
    assert Counter(root for root, _ in rows.take(32, ""))[1] == 5


def test_an_input_that_comes_late_claims_nothing_for_the_time_before() -> None:
    rows = queued([[1] * 1000])
    for _ in range(20):
        rows.take(32, "")
    for _ in range(100):
        rows.add(Waiting((1, 1), 1, (1,)))
    assert Counter(root for root, _ in rows.take(32, "")) == {0: 16, 1: 16}


def test_rows_that_cost_more_count_for_more() -> None:
    rows = queued([[100] * 50, [10] * 500])
    taken = [rows.take(11, "") for _ in range(10)]
    assert Counter(root for batch in taken for root, _ in batch) == {0: 10, 1: 100}


def test_who_was_served_while_nobody_waited_owes_nothing() -> None:
    rows = queued([[100]])
    rows.take(4, "")
    for root in (0, 1):
        rows.add(Waiting((root, 1), 1, (root,)))
    assert rows.take(2, "") == [(0, 1), (1, 1)]


def test_one_input_is_first_come_first_served() -> None:
    rows = Slices([]).queue("s")
    for number in range(6):
        rows.add(Waiting(number, length=9 - number))
    assert [rows.take(4, "") for _ in range(2)] == [[0, 1, 2, 3], [4, 5]]
