"""The choice of tokens: exact in distribution, and each row for itself."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.errors import RidgewayError
from stages.llm.sampling import INVALID, Sampling, choose, distribution, entropies, uniform

ROW = ("q3", 7)


def logits(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (rows, size))).float()


def tokens(found: Any) -> list[int]:
    return [int(t) for t in found]


def kept_by_hand(p: NDArray[np.float64], top_p: float) -> set[int]:
    """One token after the other, the most probable first, until their sum is enough; ties are kept."""
    kept: set[int] = set()
    for value in sorted(set(p.tolist()), reverse=True):
        for i in np.flatnonzero(p == value):
            if sum(p[j] for j in kept) < top_p or any(p[j] == value for j in kept):
                kept.add(int(i))
    return kept


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"stop": "\n"}, "stop"),
        ({"stop": ("a", "")}, "stop"),
    ],
)
def test_what_means_nothing_is_refused_and_named(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(RidgewayError, match=f"^{said} is "):
        Sampling(**bad)


def test_greedy_is_the_default_and_takes_the_most_probable_token() -> None:
    given_ = logits(5, 300)
    assert Sampling().greedy
    assert tokens(choose(given_, [Sampling()] * 5, [0.99] * 5)) == tokens(given_.argmax(-1))
    assert distribution(given_[0].numpy(), Sampling())[given_[0].argmax()] == 1


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.5), Sampling(1.3, top_p=0.8), Sampling(2, 0.3)]
)
def test_drawn_tokens_are_distributed_as_the_reference_says(sampling: Sampling) -> None:
    one, n = logits(1, 600, seed=4), 20_000
    drawn = choose(one.expand(n, -1), [sampling] * n, [uniform(5, ROW, i) for i in range(n)])
    counts = np.bincount(drawn.numpy(), minlength=600)
    expected = n * distribution(one[0].numpy(), sampling)
    assert not counts[expected == 0].any()
    many = expected >= 5
    seen = np.append(counts[many], counts[~many].sum())
    wanted = np.append(expected[many], expected[~many].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    degrees = len(seen) - 1
    assert ((seen - wanted) ** 2 / wanted).sum() < degrees + 5 * math.sqrt(2 * degrees)


@given(st.integers(0, 10**6), st.integers(2, 700), st.floats(0.1, 3), st.floats(0.01, 1), st.data())
def test_a_token_is_the_inverse_of_the_running_sum(
    seed: int, size: int, temperature: float, top_p: float, data: st.DataObject
) -> None:
    one, sampling = logits(1, size, seed), Sampling(temperature, top_p)
    sums = np.cumsum(distribution(one[0].numpy(), sampling))
    number = data.draw(st.floats(0, 1, exclude_max=True))
    token = int(choose(one, [sampling], [number])[0])
    assert sums[token] >= number - 1e-5
    assert token == 0 or sums[token - 1] <= number + 1e-5


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=12), st.floats(0.01, 0.999))
def test_the_nucleus_equals_brute_force(values: list[int], top_p: float) -> None:
    # Whole multiples of log 2 make exact ties.
    found = np.array(values) * math.log(2)
    whole = distribution(found, Sampling(1.0))
    kept = np.flatnonzero(distribution(found, Sampling(1.0, top_p)))
    borders = np.cumsum(np.sort(whole)[::-1])
    if np.abs(borders - top_p).min() > 1e-9:
        assert set(kept.tolist()) == kept_by_hand(whole, top_p)


@pytest.mark.parametrize("spread", [8.0, 1.5, 0.1])
def test_a_nucleus_of_any_size_is_found_in_a_large_vocabulary(spread: float) -> None:
    one = logits(1, 5000, seed=2) * (spread / 3)
    sampling = Sampling(1.0, top_p=0.9)
    allowed = np.flatnonzero(distribution(one[0].numpy(), sampling))
    n = 400
    drawn = choose(one.expand(n, -1), [sampling] * n, [(i + 0.5) / n for i in range(n)])
    assert set(tokens(drawn)) <= set(allowed.tolist())
    assert min(tokens(drawn)) < allowed[len(allowed) // 50 + 1]
    assert max(tokens(drawn)) > allowed[-len(allowed) // 50 - 2]


@given(st.permutations(range(6)))
def test_a_row_does_not_depend_on_its_batch_mates(order: list[int]) -> None:
    mixed = [Sampling(), Sampling(0.7), Sampling(1, 0.5), Sampling(1.2), Sampling(2, 0.9), Sampling()]
    batch = logits(6, 333, seed=3)
    numbers = [uniform(s.seed, (f"q{i}",), 11) for i, s in enumerate(mixed)]
    alone = [int(choose(batch[i : i + 1], [mixed[i]], [numbers[i]])[0]) for i in range(6)]
    together = choose(batch[order], [mixed[i] for i in order], [numbers[i] for i in order])
    assert tokens(together) == [alone[i] for i in order]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8), Sampling(1.0, 0.7)])
def test_a_row_that_is_not_finite_is_invalid_alone(poison: float, sampling: Sampling) -> None:
    batch = logits(4, 400)
    whole = tokens(choose(batch, [sampling] * 4, [0.3] * 4))
    batch[1, 17] = poison
    batch[2] = -math.inf
    assert tokens(choose(batch, [sampling] * 4, [0.3] * 4)) == [whole[0], INVALID, INVALID, whole[3]]


@given(st.floats(0, 1, exclude_max=True), st.sampled_from([1e-320, 0.5, 1.0, 50.0]))
def test_a_token_that_is_not_allowed_is_never_drawn(number: float, temperature: float) -> None:
    one = torch.full((1, 700), -math.inf)
    one[0, [3, 300, 650]] = torch.tensor([0.0, 2.0, 2.0])
    for sampling in (Sampling(temperature), Sampling(temperature, 0.99)):
        assert int(choose(one, [sampling], [number])[0]) in (3, 300, 650)


def test_the_ends_of_the_unit_interval_are_tokens_too() -> None:
    one = torch.full((1, 700), -math.inf)
    one[0, 5:600] = 0.0
    ends = choose(one.expand(2, -1), [Sampling(1.0)] * 2, [0.0, math.nextafter(1, 0)])
    assert tokens(ends) == [5, 599]


def test_half_precision_is_chosen_from_as_it_is() -> None:
    batch = logits(3, 500).bfloat16()
    samplings = [Sampling(), Sampling(1.0), Sampling(1.0, 0.5)]
    assert tokens(choose(batch, samplings, [0.4] * 3)) == tokens(choose(batch.float(), samplings, [0.4] * 3))


def test_numbers_are_uniform_and_depend_on_seed_row_position_and_use_alone() -> None:
    found = np.array([uniform(1, ROW, i) for i in range(20_000)])
    assert found.min() >= 0
    assert found.max() < 1
    counts = np.histogram(found, 50, (0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 49 + 5 * math.sqrt(98)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03
    assert uniform(1, ROW, 3) == found[3]
    others = [uniform(2, ROW, 3), uniform(1, ("q3", 8), 3), uniform(1, ROW, 4), uniform(1, ROW, 3, use=1)]
    assert len({found[3], *others}) == 5


def test_the_number_of_a_row_stays_what_it_is_between_versions() -> None:
    assert uniform(0, ("a", 1), 2) == pytest.approx(0.8926205556995337, abs=0)


def test_entropy_is_that_of_the_softmax() -> None:
    batch = logits(3, 50)
    batch[2] = -math.inf
    batch[2, :4] = 1.0
    expected = []
    for row in batch.numpy():
        p = distribution(row, Sampling(1.0))
        expected.append(-sum(x * math.log(x) for x in p if x > 0))
    assert entropies(batch).tolist() == pytest.approx(expected, rel=1e-5)
    assert expected[2] == pytest.approx(math.log(4))


def test_a_sampling_is_a_value() -> None:
    assert dataclasses.replace(Sampling(0.5), seed=3) == Sampling(0.5, seed=3)
    assert hash(Sampling(stop=("\n",))) == hash(Sampling(stop=("\n",)))
