"""Search with few evaluations, on tables of scores and on real placements."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.candidates import Candidate
from pipeline.planner import EFFORTS, Planner
from pipeline.search import halving, shaken
from tests.costed import random_case

seeds = st.integers(0, 10**6)


def table(seed: int, size: int, noise: float) -> tuple[list[float], Callable[[int, float], float]]:
    """True scores, and how they look at an effort: off by `noise` at most, less with more effort."""
    draw = Random(seed)
    true = [draw.uniform(1, 10) for _ in range(size)]

    def score(candidate: int, effort: float) -> float:
        off = Random(f"{seed} {candidate} {effort}").uniform(-noise, noise)
        return true[candidate] * (1 + off * (1 - effort))

    return true, score


def test_the_better_part_goes_on_to_more_effort() -> None:
    asked: list[tuple[int, float]] = []

    def score(candidate: int, effort: float) -> float:
        asked.append((candidate, effort))
        return {7: 0.5, 3: 0.2}.get(candidate, candidate + 1.0) if effort < 1 else float(candidate)

    found = halving(range(16), score, (0.1, 0.5, 1.0))
    assert [c for c, e in asked if e == 0.1] == list(range(16))
    assert [c for c, e in asked if e == 0.5] == [3, 7, 0, 1]
    assert [c for c, e in asked if e == 1.0] == [3, 7]
    assert (found.best, found.score, found.ranking) == (3, 3, ((3, 3), (7, 7)))
    assert found.evaluations == pytest.approx(16 * 0.1 + 4 * 0.5 + 2)


def test_two_at_least_are_looked_at_in_full() -> None:
    assert [c for c, _ in halving([5, 4, 3], lambda c, _: c, EFFORTS).ranking] == [3, 4]
    assert halving([5], lambda c, _: c, EFFORTS).ranking == ((5, 5),)


def test_equal_scores_keep_the_order_of_the_candidates() -> None:
    assert halving("dbca", lambda c, e: 1.0, EFFORTS).best == "d"


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="no candidates"):
        halving([], lambda c, e: 1.0, EFFORTS)


@given(seeds, st.integers(1, 200))
@settings(max_examples=60)
def test_where_a_cheap_look_is_right_within_a_percent_the_best_is_found_within_five(
    seed: int, size: int
) -> None:
    """Who is dropped looked worse than some who stayed: (1.01 / 0.99) for each of two levels."""
    true, score = table(seed, size, 0.01)
    assert halving(range(size), score, EFFORTS).score <= 1.05 * min(true)


def test_where_a_cheap_look_is_off_by_a_third_the_best_is_nearly_always_found() -> None:
    missed = 0
    for seed in range(300):
        true, score = table(seed, 128, 1 / 3)
        missed += halving(range(128), score, EFFORTS).score > 1.05 * min(true)
    assert missed <= 3, "of 300"


@pytest.mark.parametrize("size", [32, 100, 1000, 4096])
def test_it_takes_about_a_quarter_of_the_work_of_looking_at_all(size: int) -> None:
    _, score = table(1, size, 0.1)
    assert halving(range(size), score, EFFORTS).evaluations <= 0.27 * size


@given(seeds)
@settings(max_examples=20)
def test_the_same_question_has_the_same_answer(seed: int) -> None:
    _, score = table(seed, 50, 0.3)
    assert halving(range(50), score, EFFORTS) == halving(range(50), score, EFFORTS)


def test_random_restarts_are_those_of_their_seed() -> None:
    options = [("a", "b", "c"), ("d",), ("e", "f")]
    assert shaken(options, 3, 20) == shaken(options, 3, 20) != shaken(options, 4, 20)
    assert all(x in o for found in shaken(options, 3, 20) for x, o in zip(found, options, strict=True))


# real placements


@pytest.mark.parametrize("seed", [5, 56, 65, 80, 92, 186])
def test_a_plan_is_within_five_percent_of_the_best_placement_for_a_quarter_of_the_work(seed: int) -> None:
    """On spaces of 64 placements or more: a run of few rows has its 16 finalists simulated in full."""
    case = random_case(seed)
    planner = Planner(case.program, case.machine, case.sources, divide=False)
    here = planner.spaces[0]
    best = min(planner.score(Candidate(0, c), 1.0) for c in product(*here.choices))
    found = planner.best()
    assert here.size >= 64
    assert found.evaluations <= here.size / 4
    assert found.simulated.timeline.seconds <= 1.05 * best


def test_the_same_seed_gives_the_same_plan() -> None:
    case = random_case(7)
    first, again = (
        Planner(case.program, case.machine, case.sources, divide=False, seed=3).best() for _ in range(2)
    )
    assert (first.plan.placements, first.seconds, first.others) == (
        again.plan.placements,
        again.seconds,
        again.others,
    )
