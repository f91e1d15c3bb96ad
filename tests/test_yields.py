"""What comes of rows: by their number, or by their length where that has been less wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.yields import Yield, summed

sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 900)), min_size=2, max_size=9)


def batches(found: list[tuple[int, int]], of_row: int, of_length: int) -> list[Yield]:
    """Of so many rows, so long in sum, with what comes of each."""
    return [Yield(n, n * of_row + x * of_length, 0, 0, x) for n, x in found]


@given(sizes)
def test_where_longer_rows_make_more_the_length_predicts(found: list[tuple[int, int]]) -> None:
    known = summed(batches(found, 0, 3))
    assert known.off_read == pytest.approx(0, abs=1e-6)
    apart = len({n / x for n, x in found}) > 1
    assert known.expected(10, 700) == pytest.approx(2100 if apart else known.made / known.rows * 10)


@given(sizes)
def test_where_all_rows_make_as_many_their_number_predicts(found: list[tuple[int, int]]) -> None:
    known = summed(batches(found, 4, 0))
    assert known.expected(10, 700) == pytest.approx(40)


def test_of_one_batch_nobody_can_tell_and_rows_are_counted() -> None:
    assert summed(batches([(5, 100)], 0, 3)).expected(10, 700) == pytest.approx(600)


def test_a_second_corpus_shows_which_of_both_was_wrong() -> None:
    small, large = (summed(batches([found], 0, 3)) for found in ((10, 100), (10, 900)))
    assert small.plus(large).expected(1, 50) == pytest.approx(150)
    assert small.plus(small).expected(1, 50) == pytest.approx(30), "nothing was wrong with either"


def test_rows_of_unknown_length_are_counted() -> None:
    known = summed(batches([(5, 100), (5, 900)], 0, 3))
    assert known.expected(10, 0.0) == pytest.approx(known.made)


def test_the_older_counts_half() -> None:
    found = Yield(4, 8, 80, 20, 10).plus(Yield(4, 4, 40, 20, 10))
    assert (found.rows, found.made, found.nbytes, found.length, found.read) == (6, 8, 80, 30, 15)


def test_runs_that_knew_lengths_and_runs_that_did_not_are_not_mixed() -> None:
    without, with_lengths = Yield(10, 100), Yield(10, 30, 0, 0, 300, 2, 1)
    assert without.plus(with_lengths) == with_lengths
    assert with_lengths.plus(without) == Yield(15, 115)


def test_nothing_is_made_of_nothing() -> None:
    assert Yield().expected(5, 5) == summed([]).expected(5, 5) == 0
