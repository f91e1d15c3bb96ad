"""Whether a draft model is worth its work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.gates import Curve
from stages.llm.draft_length import expected
from stages.llm.draft_worth import HOPE, Pace, Trust, saved

FLAT = Curve("cpu:0", ((0, 0.01), (1000, 0.01)))
PROPORTIONAL = Curve("cpu:0", ((0, 0.0), (1, 0.001)))
rates = st.floats(0, 0.99)


def test_a_model_that_nobody_has_tried_is_hoped_to_be_right() -> None:
    assert Trust().rate == Trust().rate_of(Trust()) == pytest.approx(HOPE)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted), max_size=30))
def test_tokens_are_counted_up_to_the_first_refusal(drafts: list[list[int]]) -> None:
    trust, seen = Trust(), []
    for right, drafted in drafts:
        trust = trust.after(drafted, right)
        seen += [True] * right + [False] * (right < drafted)
    assert (trust.tried, trust.stood) == (len(seen), sum(seen))


@pytest.mark.parametrize("truth", [0.05, 0.5, 0.97])
def test_trust_comes_near_what_happens(truth: float) -> None:
    random, all_ = np.random.default_rng(0), Trust()
    for _ in range(500):
        all_ = all_.after(4, int(np.argmin([*(random.random(4) < truth), False])))
    assert all_.rate == pytest.approx(truth, abs=0.05)
    assert all_.rate_of(Trust()) == pytest.approx(all_.rate)


def test_a_row_that_is_unlike_the_others_is_soon_known() -> None:
    all_, row = Trust(1000, 900), Trust()
    found = [all_.rate_of(row := row.after(1, 0)) for _ in range(20)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.7
    assert found[-1] < 0.3


def test_a_pace_is_the_median_of_the_last_times_and_nothing_at_first() -> None:
    pace = Pace()
    assert pace.seconds == 0
    for taken in (9.0, 9.0, 9.0, 9.0, 9.0, *(1.0,) * 5, 50.0, *(1.0,) * 3):
        pace.add(taken)
    assert pace.seconds == 1.0


@given(
    st.integers(1, 20), rates, st.integers(0, 6), st.floats(0, 0.02), st.integers(0, 9), st.floats(0, 0.002)
)
def test_what_is_saved_is_what_the_best_draft_saves(
    rows: int, rate: float, most: int, drafting: float, beside: int, slope: float
) -> None:
    curve = Curve.affine("cpu:0", 0.01, slope)

    def each(k: int) -> float:
        return (0.01 + slope * (rows * (k + 1) + beside) + k * drafting) / (rows * expected(rate, k) + beside)

    found = saved(curve, rows, rate, most, drafting, beside)
    assert found >= 0
    assert found == pytest.approx(max(each(0) - each(k) for k in range(most + 1)), abs=1e-12)


def test_nothing_is_saved_where_each_token_costs_the_same_or_passes_take_a_step() -> None:
    assert saved(PROPORTIONAL, 4, 0.9, 8, 0.0) == 0
    assert saved(FLAT, 4, 0.9, 8, 0.01) == 0
    assert saved(FLAT, 4, 0.9, 8, 0.0) > 0
