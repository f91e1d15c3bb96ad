"""Reciprocal rank fusion is its formula, with ties by row id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import RowId
from retrieval.fusion import fuse

A, B, C, D = (("doc", 1, n) for n in range(4))

rankings = st.lists(
    st.lists(st.integers(0, 12), unique=True).map(lambda r: [("d", i) for i in r]), max_size=4
)


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    rows, scores = fuse([[A, B, C], [C, A]], 8)
    assert rows == (A, C, B)
    assert scores.dtype == np.float32
    assert scores.tolist() == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62])


def test_a_small_constant_favours_first_places() -> None:
    lists = [[A, B], [C, B], [D, B]]
    assert fuse(lists, 1, constant=60)[0] == (B,)
    assert fuse([*lists, [A, C]], 1, constant=1)[0] == (A,)


def test_ties_are_broken_by_row_id() -> None:
    assert fuse([[("b", 2), ("a", 10)], [("a", 9), ("b", 1)]], 4)[0] == (
        ("a", 9),
        ("b", 2),
        ("a", 10),
        ("b", 1),
    )


def test_numbers_and_names_in_one_place_of_an_id_can_be_ordered() -> None:
    mixed: list[list[RowId]] = [[("a", "x")], [("a", 3)]]
    assert fuse(mixed, 2)[0] == (("a", 3), ("a", "x"))


@pytest.mark.parametrize("lists", [[], [[]], [[], []]])
def test_nothing_gives_nothing(lists: list[list[RowId]]) -> None:
    rows, scores = fuse(lists, 8)
    assert rows == ()
    assert len(scores) == 0


@settings(deadline=None)
@given(rankings, st.integers(1, 10))
def test_the_order_of_rankings_does_not_matter_and_no_row_comes_twice(
    lists: list[list[RowId]], k: int
) -> None:
    rows, scores = fuse(lists, k)
    again, same = fuse(lists[::-1], k)
    assert (rows, scores.tolist()) == (again, same.tolist())
    assert len(set(rows)) == len(rows) == min(k, len({r for ranking in lists for r in ranking}))
    assert (np.diff(scores) <= 0).all()
