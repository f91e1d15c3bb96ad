"""How much of a draft stands once the model has read it.

The idea: the model gives k + 1 distributions for k drafted tokens in one step. Tokens are taken as long as
they are what the model would have said; then one more token is its own. So k never costs a token, and the
answer is the one that would have come without drafts: exactly for greedy rows, in distribution otherwise.

A draft that was looked up is certain of itself, and then comparing is all: draw from each distribution as
without a draft (`sampling.choose`, with the number of that position) and take tokens while they agree. A
token x is accepted with probability p(x), and what else is drawn is distributed as p without x: the rule of
Leviathan et al. for such drafts. With numbers that depend on the position alone it even is the same text.
Drafts drawn from distributions of their own, those of a small model, need `accept_sampled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["accept_greedy", "accept_sampled", "acceptance", "inverse", "residual"]

Probabilities = NDArray[np.floating[Any]]


def accept_greedy(drafted: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """The tokens emitted, 1 to k + 1.

    `chosen` [k + 1] is what the model says in place of each of `drafted` [k], and after them: argmaxes, or
    tokens drawn where drafts are certain of themselves.
    """
    same = 0
    while same < len(drafted) and drafted[same] == chosen[same]:
        same += 1
    return list(chosen[: same + 1])


def accept_sampled(
    drafted: Sequence[int], targets: Probabilities, proposals: Probabilities, uniforms: Probabilities
) -> list[int]:
    """The tokens emitted, 1 to k + 1, distributed as if drawn from the model one by one.

    `targets` [k + 1, V] are the model's probabilities before each of `drafted` and after them, `proposals`
    [k, V] those that `drafted` were drawn from; `uniforms` [k + 1, 2] decide, by position, first whether
    the draft stands and then what comes instead. Temperature and top_p belong into both distributions.
    Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; exact by their appendix A.1.
    """
    for i, token in enumerate(drafted):
        if uniforms[i][0] >= acceptance(targets[i], proposals[i], token):
            return [*drafted[:i], inverse(residual(targets[i], proposals[i]), uniforms[i][1])]
    return [*drafted, inverse(targets[len(drafted)], uniforms[len(drafted)][1])]


def acceptance(target: Probabilities, proposal: Probabilities, token: int) -> float:
    """The probability that a token drawn from `proposal` stands: min(1, p / q)."""
    return min(1.0, float(target[token]) / float(proposal[token]))


def residual(target: Probabilities, proposal: Probabilities) -> Probabilities:
    """What a token in place of a refused one is drawn from: the positive part of p - q, as a distribution.

    Where rounding leaves nothing, the two were the same: then p itself.
    """
    left = np.maximum(target - proposal, 0.0)
    total = left.sum()
    return left / total if total > 0 else target


def inverse(probabilities: Probabilities, uniform: float) -> int:
    """The token at which the running sum exceeds `uniform`, in [0, 1). Never one of probability 0."""
    sums = np.cumsum(probabilities, dtype=np.float64)
    aim = min(uniform * sums[-1], np.nextafter(sums[-1], 0.0))
    return int(np.searchsorted(sums, aim, side="right"))
