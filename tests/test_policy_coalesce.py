"""All who wait share a batch, as evenly as their rows allow."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.policies.coalesce import Coalesce, CoalesceQueue, Line, shares
from pipeline.policy import Waiting

sizes = st.lists(st.integers(0, 40), max_size=12)


def one_at_a_time(waiting: list[int], most: int) -> list[int]:
    """A row for each in turn, until the batch is full."""
    given = [0] * len(waiting)
    while sum(given) < min(most, sum(waiting)):
        for i, rows in enumerate(waiting):
            if given[i] < rows and sum(given) < most:
                given[i] += 1
    return given


def queued(waiting: list[int]) -> CoalesceQueue[tuple[int, int]]:
    rows: CoalesceQueue[tuple[int, int]] = CoalesceQueue()
    for root, count in enumerate(waiting):
        for number in range(count):
            rows.add(Waiting((root, number), root=(root,)))
    return rows


@given(sizes, st.integers(1, 50))
def test_shares_are_those_of_taking_turns(waiting: list[int], most: int) -> None:
    assert shares(waiting, most) == one_at_a_time(waiting, most)


@given(sizes, st.integers(1, 50))
def test_calls_are_as_few_as_can_be(waiting: list[int], most: int) -> None:
    rows, calls = queued(waiting), 0
    while rows:
        rows.take(most, "")
        calls += 1
    assert calls == -(-sum(waiting) // most)


@given(sizes, st.integers(1, 50))
def test_nobody_has_more_than_a_fair_part_while_others_wait(waiting: list[int], most: int) -> None:
    rows, left = queued(waiting), Counter(dict(enumerate(waiting)))
    while rows:
        tenants = sum(1 for n in left.values() if n)
        taken = Counter(root for root, _ in rows.take(most, ""))
        left -= taken
        for root in left:
            assert max(taken.values()) <= taken[root] + 1
        if all(root in left for root in taken):
            assert max(taken.values()) <= max(1, -(-most // tenants))


@given(sizes, st.integers(1, 50))
def test_rows_of_an_input_keep_their_order(waiting: list[int], most: int) -> None:
    rows, seen = queued(waiting), dict.fromkeys(range(len(waiting)), 0)
    while rows:
        for root, number in rows.take(most, ""):
            assert number == seen[root]
            seen[root] += 1


def test_what_one_leaves_over_the_others_take() -> None:
    taken = Counter(root for root, _ in queued([1, 100, 2]).take(8, ""))
    assert taken == {0: 1, 1: 5, 2: 2}


def test_the_odd_row_goes_round() -> None:
    rows = queued([20, 20, 20])
    taken = [Counter(root for root, _ in rows.take(8, "")) for _ in range(3)]
    assert taken == [{0: 3, 1: 3, 2: 2}, {2: 3, 0: 3, 1: 2}, {1: 3, 2: 3, 0: 2}]


def test_more_inputs_than_rows_in_a_batch_take_turns() -> None:
    rows = queued([3] * 5)
    assert [root for _ in range(5) for root, _ in rows.take(3, "")] == [0, 1, 2, 3, 4] * 3


def test_a_small_input_that_comes_late_is_in_the_next_batch() -> None:
    rows = queued([1000])
    rows.take(8, "")
    rows.add(Waiting((1, 0), root=(1,)))
    assert (1, 0) in rows.take(8, "")


def test_one_input_is_first_come_first_served() -> None:
    rows = Coalesce([]).queue("s")
    for number in range(6):
        rows.add(Waiting(number, length=number % 3))
    assert [rows.take(4, "") for _ in range(2)] == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize("most", [1, 3, 64])
def test_a_line_gives_at_both_ends_what_a_list_would(most: int) -> None:
    line: Line[int] = Line()
    plain: list[int] = []
    for number in range(400):
        line.append(number)
        plain.append(number)
        if number % 7 == 6:
            count = min(most, len(plain))
            assert line.first(count) == plain[:count]
            del plain[:count]
        if number % 11 == 10:
            count = min(2, len(plain))
            assert line.last(count) == plain[len(plain) - count :]
            del plain[len(plain) - count :]
        assert len(line) == len(plain)
