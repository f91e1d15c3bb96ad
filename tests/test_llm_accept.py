"""What stands of a draft: the answer is the one that would have come without it."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.llm.accept import accept_greedy, accept_sampled, acceptance, inverse, residual

Floats = NDArray[np.float64]
NEXT = Callable[[tuple[int, ...]], Floats]
"""A language model: the distribution of the next token after those that were said."""


def model(seed: int, size: int = 3, eighths: bool = False) -> NEXT:
    """A random model over a tiny vocabulary; some tokens are impossible here and there."""

    def after(said: tuple[int, ...]) -> Floats:
        random = np.random.default_rng([seed, *said])
        if eighths:
            return random.multinomial(8, [1 / size] * size) / 8
        found = random.random(size) * (random.random(size) < 0.8)
        found[random.integers(size)] += 0.1
        return np.asarray(found / found.sum())

    return after


def certain(seed: int, size: int = 3) -> NEXT:
    """A draft that is looked up: all on one token."""
    return lambda said: np.eye(size)[np.random.default_rng([seed, 1, *said]).integers(size)]


def said_without_drafts(target: NEXT, length: int) -> dict[tuple[int, ...], float]:
    """The probability of each text of `length` tokens, one token after the other."""
    found = {}
    for text in itertools.product(range(3), repeat=length):
        found[text] = math.prod(target(text[:i])[t] for i, t in enumerate(text))
    return found


def emitted(target: NEXT, draft: NEXT, k: int) -> dict[tuple[int, ...], float]:
    """The probability of each outcome of one step with k drafted tokens, summed over drafts and verdicts."""
    found: Counter[tuple[int, ...]] = Counter()

    def go(said: tuple[int, ...], probability: float) -> None:
        p = target(said)
        if len(said) == k:
            for t in range(3):
                found[(*said, t)] += probability * p[t]
            return
        q = draft(said)
        for x in np.flatnonzero(q).tolist():
            stands = acceptance(p, q, x)
            for t in range(3):
                if stands < 1:
                    found[(*said, t)] += probability * q[x] * (1 - stands) * residual(p, q)[t]
            go((*said, x), probability * q[x] * stands)

    go((), 1.0)
    return dict(found)


def filled_up(short: dict[tuple[int, ...], float], target: NEXT, length: int) -> dict[tuple[int, ...], float]:
    """Outcomes of one step, continued token by token to `length`."""
    found: Counter[tuple[int, ...]] = Counter()
    for text, probability in short.items():
        for rest in itertools.product(range(3), repeat=length - len(text)):
            whole = text + rest
            more = math.prod(target(whole[:i])[whole[i]] for i in range(len(text), length))
            found[whole] += probability * more
    return dict(found)


@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [model, certain])
def test_texts_are_as_probable_as_without_drafts(kind: Callable[[int], NEXT], seed: int, k: int) -> None:
    target = model(seed)
    found = filled_up(emitted(target, kind(seed + 100), k), target, k + 1)
    expected = said_without_drafts(target, k + 1)
    assert all(found.get(text, 0.0) == pytest.approx(expected[text], abs=1e-12) for text in expected)


@pytest.mark.parametrize("seed", range(40))
def test_numbers_on_a_grid_give_each_outcome_as_often_as_the_sums_say(seed: int) -> None:
    # With probabilities in eighths, and residuals in parts of 840 = lcm(1..8), a grid of numbers is exact.
    p, q, after = (model(seed + n, eighths=True)(()) for n in (0, 1000, 2000))
    targets, grid = np.stack([p, after]), (np.arange(840) + 0.5) / 840

    def step(token: int, verdict: float, instead: float) -> list[int]:
        return accept_sampled([token], targets, q[None], np.array([[verdict, instead], [0.5, instead]]))

    for token in np.flatnonzero(q).tolist():
        stood = [len(step(token, u, 0.5)) == 2 for u in grid]
        assert np.mean(stood) == pytest.approx(acceptance(p, q, token), abs=1e-12)
        last = Counter(step(token, 0.0, u)[-1] for u in grid)
        refused = Counter(step(token, 1 - 1e-9, u)[-1] for u in grid)
        for t in range(3):
            assert last[t] == pytest.approx(840 * (after if stood[0] else residual(p, q))[t])
            assert refused[t] == pytest.approx(840 * (after if all(stood) else residual(p, q))[t])


def test_a_draft_like_the_model_always_stands() -> None:
    p = model(3)
    targets = np.stack([p(()), p((0,)), p((0, 1))])
    drafted = [int(p(()).argmax()), int(p((0,)).argmax())]
    found = accept_sampled(drafted, targets, targets[:2], np.full((3, 2), 0.999999))
    assert found[:2] == drafted
    assert len(found) == 3


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_greedy_emits_what_greedy_says_step_by_step(drafted: list[int], table: list[int]) -> None:
    def says(said: Sequence[int]) -> int:
        return (table[len(said)] + sum(said)) % 3

    emitted_ = accept_greedy(drafted, [says(drafted[:i]) for i in range(len(drafted) + 1)])
    stepwise: list[int] = []
    for _ in emitted_:
        stepwise.append(says(stepwise))
    assert emitted_ == stepwise
    assert emitted_[:-1] == drafted[: len(emitted_) - 1]
    assert len(emitted_) == len(drafted) + 1 or emitted_[-1] != drafted[len(emitted_) - 1]


@pytest.mark.parametrize("seed", range(30))
def test_numbers_by_position_give_the_same_text_with_drafts_and_without(seed: int) -> None:
    target, draft = model(seed), certain(seed)
    numbers = np.random.default_rng(seed).random(40)
    plain: tuple[int, ...] = ()
    while len(plain) < 30:
        plain += (inverse(target(plain), numbers[len(plain)]),)
    text: tuple[int, ...] = ()
    while len(text) < 30:
        said = [text]
        for _ in range(4):
            said.append((*said[-1], int(draft(said[-1]).argmax())))
        chosen = [inverse(target(s), numbers[len(s)]) for s in said]
        text += tuple(accept_greedy(said[-1][len(text) :], chosen))
    assert text[:30] == plain


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any), st.floats(0, 1, exclude_max=True))
def test_the_inverse_is_a_possible_token_whose_sum_passes_the_number(parts: list[int], number: float) -> None:
    p = np.array(parts) / sum(parts)
    token = inverse(p, number)
    assert p[token] > 0
    assert p[:token].sum() <= number + 1e-12
    assert p[: token + 1].sum() >= number - 1e-12


def test_equal_distributions_leave_the_model_itself() -> None:
    p = np.array([0.25, 0.75])
    assert residual(p, p).tolist() == [0.25, 0.75]
