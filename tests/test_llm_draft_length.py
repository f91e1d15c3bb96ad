"""How many tokens to draft: the most tokens a second, and none where they do not pay."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.gates import Curve
from stages.llm.draft_length import (
    Acceptance,
    Drafting,
    Row,
    View,
    affordable,
    expected,
    fitted,
    lengths,
)

FLAT = Curve("cpu:0", ((0, 0.01), (1000, 0.01)))
PROPORTIONAL = Curve("cpu:0", ((0, 0.0), (1, 0.001)))
ROOFLINE = Curve("cpu:0", ((0, 0.016), (16, 0.016), (17, 0.017)))
"""Bound by memory up to 16 tokens, by arithmetic beyond."""

rates = st.floats(0, 1)
rows = st.builds(Row, rates, st.integers(0, 4), st.floats(0, 2), st.booleans())


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    steps = draw(st.lists(st.floats(0, 0.01), min_size=2, max_size=5))
    seconds = 0.001 + np.cumsum(steps)
    return Curve("cpu:0", tuple((3 * i, float(t)) for i, t in enumerate(seconds)))


def speed(view: View, drafted: tuple[int, ...]) -> float:
    """Expected tokens a second, prompts included; a draft model makes as many passes as its longest draft."""
    passes = max((k for r, k in zip(view.rows, drafted, strict=True) if r.by_model), default=0)
    emitted = view.beside + sum(expected(r.acceptance, k) for r, k in zip(view.rows, drafted, strict=True))
    reading = view.curve.seconds(len(drafted) + view.beside + sum(drafted))
    return emitted / (reading + passes * view.drafting)


def best_by_trying(view: View) -> float:
    caps = [0 if r.entropy > view.certain else min(r.proposed, view.most) for r in view.rows]
    ways = itertools.product(*(range(cap + 1) for cap in caps))
    return max(speed(view, way) for way in ways if sum(way) <= view.budget)


@given(
    st.lists(rows, min_size=1, max_size=4).map(tuple),
    curves(),
    st.integers(0, 4),
    st.integers(0, 12),
    st.floats(0, 2),
    st.integers(0, 5),
    st.floats(0, 0.01),
)
def test_no_other_lengths_give_more_tokens_a_second(
    batch: tuple[Row, ...],
    curve: Curve,
    most: int,
    budget: int,
    certain: float,
    beside: int,
    drafting: float,
) -> None:
    view = View(batch, curve, most, budget, certain, beside, drafting)
    found = lengths(view)
    assert sum(found) <= budget
    assert all(k <= min(r.proposed, most) for k, r in zip(found, batch, strict=True))
    assert speed(view, found) == pytest.approx(best_by_trying(view), rel=1e-9)


def test_drafts_are_as_long_as_may_be_where_reading_costs_nothing() -> None:
    assert lengths(View((Row(0.3, 5), Row(0.9, 20)), FLAT, most=8)) == (5, 8)


@given(st.lists(st.builds(Row, rates, st.integers(0, 4)), min_size=1, max_size=6).map(tuple))
def test_nothing_is_drafted_where_each_token_costs_the_same(batch: tuple[Row, ...]) -> None:
    assert lengths(View(batch, PROPORTIONAL)) == (0,) * len(batch)


def test_a_batch_that_is_bound_by_arithmetic_drafts_nothing_a_small_one_does() -> None:
    assert lengths(View((Row(0.8, 8),) * 16, ROOFLINE)) == (0,) * 16
    assert lengths(View((Row(0.8, 8),) * 4, ROOFLINE)) == (3,) * 4


def test_beside_a_piece_of_a_prompt_that_fills_the_step_nothing_is_drafted() -> None:
    assert lengths(View((Row(0.8, 8),) * 4, ROOFLINE, beside=300)) == (0,) * 4


def test_where_there_is_little_room_it_goes_to_rows_that_copy() -> None:
    assert lengths(View((Row(0.2, 8), Row(0.95, 8)), ROOFLINE, budget=5)) == (0, 5)


def test_a_row_that_is_uncertain_drafts_nothing() -> None:
    batch = (Row(0.9, 4, entropy=2.1), Row(0.9, 4, entropy=1.9))
    assert lengths(View(batch, FLAT, certain=2.0)) == (0, 4)
    assert lengths(View(batch, FLAT)) == (4, 4)


def test_a_pass_of_the_draft_model_must_pay_for_all_its_rows_together() -> None:
    one, more = (Row(0.8, 6, by_model=True),), (Row(0.8, 6, by_model=True),) * 4
    assert lengths(View(one, FLAT, drafting=0.009)) == (0,)
    assert lengths(View(one, FLAT, drafting=0.001)) == (6,)
    assert lengths(View(more, ROOFLINE, drafting=0.0)) == (3,) * 4
    assert lengths(View(more, ROOFLINE, drafting=0.006)) == (2,) * 4
    assert lengths(View((*one, Row(0.8, 6)), FLAT, drafting=0.009)) == (0, 6)


def test_a_batch_of_no_rows_drafts_nothing() -> None:
    assert lengths(View((), FLAT)) == ()


@given(rates, st.integers(0, 12))
def test_expected_tokens_are_the_sum_of_how_likely_each_is(rate: float, drafted: int) -> None:
    assert expected(rate, drafted) == pytest.approx(math.fsum(rate**j for j in range(drafted + 1)))


@given(rates, st.integers(0, 8), st.data())
def test_acceptance_is_an_average_over_tokens_up_to_the_first_refusal(
    rate: float, drafted: int, data: st.DataObject
) -> None:
    accepted = data.draw(st.integers(0, drafted))
    stepwise = Acceptance(rate)
    for _ in range(accepted):
        stepwise = stepwise.after(1, 1)
    if accepted < drafted:
        stepwise = stepwise.after(1, 0)
    found = Acceptance(rate).after(drafted, accepted)
    assert found.rate == pytest.approx(stepwise.rate, abs=1e-12)
    assert 0 <= found.rate <= 1


def test_acceptance_comes_near_what_happens_and_forgets_what_was() -> None:
    random = np.random.default_rng(0)
    for truth in (0.9, 0.2):
        found, seen = Acceptance(), []
        for _ in range(400):
            stood = int(np.argmin([*(random.random(4) < truth), False]))
            found = found.after(4, stood)
            seen.append(found.rate)
        assert np.mean(seen[50:]) == pytest.approx(truth, abs=0.05)


@given(st.integers(-100, 10**7), st.integers(1, 10**5), st.integers(1, 10**5), st.integers(0, 10**5))
def test_drafts_fit_into_memory_and_one_more_would_not(
    free: int, cache: int, vocabulary: int, activations: int
) -> None:
    each = cache + 8 * vocabulary + activations
    tokens = affordable(free, cache, vocabulary, activations)
    assert tokens * each <= max(free, 0)
    assert (tokens + 1) * each > free
    assert affordable(free + each, cache, vocabulary, activations) >= tokens


def test_a_curve_goes_through_points_that_rise() -> None:
    assert fitted("cpu:0", [(4, 0.02), (1, 0.01), (8, 0.05)]).points == ((1, 0.01), (4, 0.02), (8, 0.05))


def test_points_that_fall_are_drawn_together_with_their_weight() -> None:
    found = fitted("cpu:0", [(1, 0.01), (2, 0.04), (3, 0.02), (3, 0.03), (9, 0.08)])
    assert [n for n, _ in found.points] == [1, 2, 3, 9]
    assert [t for _, t in found.points] == pytest.approx([0.01, 0.03, 0.03, 0.08])


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=2, max_size=12).filter(
        lambda p: len({n for n, _ in p}) > 1
    ),
    st.lists(st.integers(0, 5), min_size=5, max_size=5),
)
def test_no_other_curve_that_never_falls_is_nearer(points: list[tuple[int, int]], steps: list[int]) -> None:
    def error(at: dict[int, float]) -> float:
        return sum((at[n] - t) ** 2 for n, t in points)

    found = dict(fitted("cpu:0", [(n, float(t)) for n, t in points]).points)
    other = dict(enumerate(np.cumsum(steps).astype(float), 1))
    assert error(found) <= error(other) + 1e-9


def test_a_curve_needs_two_numbers_of_tokens() -> None:
    with pytest.raises(PlanError, match=r"steps of \[4\] tokens"):
        fitted("cpu:0", [(4, 0.1), (4, 0.2)])


def test_while_one_size_is_known_a_row_drafts_one_token_to_learn_more() -> None:
    drafting, batch = Drafting(8), (Row(0.9, 5), Row(0.1, 5), Row(0.9, 0))
    assert drafting.lengths(batch) == (1, 1, 0)
    drafting.learn(3, 0.02)
    assert drafting.lengths(batch, budget=1) == (1, 0, 0)
    assert Drafting(0).lengths(batch) == (0, 0, 0)


@pytest.mark.parametrize("curve", [FLAT, PROPORTIONAL, ROOFLINE])
def test_what_steps_have_taken_decides(curve: Curve) -> None:
    drafting, batch = Drafting(6, certain=1.0), (Row(0.7, 8), Row(0.9, 8), Row(0.9, 8, entropy=2.0))
    for tokens in range(1, 32):
        for _ in range(3):
            drafting.learn(tokens, curve.seconds(tokens))
        drafting.learn(tokens, 10.0)  # something else was running
    assert drafting.lengths(batch) == lengths(View(batch, curve, most=6, certain=1.0))
    drafted = [replace(r, by_model=True) for r in batch]
    found = lengths(View(tuple(drafted), curve, most=6, certain=1.0, drafting=0.003))
    assert drafting.lengths(drafted, drafting=0.003) == found
    assert drafting.lengths(batch, 12, 2) == lengths(View(batch, curve, 6, 2, 1.0, beside=12))


def test_what_steps_took_long_ago_is_forgotten() -> None:
    drafting, batch = Drafting(4), (Row(0.9, 4),)
    for tokens in (1, 2, 3, 4, 5):
        drafting.learn(tokens, FLAT.seconds(tokens))
    assert drafting.lengths(batch) == (4,)
    for tokens in (1, 2, 3, 4, 5) * 9:
        drafting.learn(tokens, PROPORTIONAL.seconds(tokens))
    assert drafting.lengths(batch) == (0,)


def test_large_steps_of_nearly_one_size_are_one_size() -> None:
    drafting = Drafting(4)
    for tokens in range(512, 544):
        drafting.learn(tokens, 0.5)
    assert drafting.lengths((Row(0.9, 4),)) == (1,)
    drafting.learn(544, 0.5)
    assert drafting.lengths((Row(0.9, 4),)) == (4,)
