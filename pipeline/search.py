"""Finding a good candidate with few evaluations: successive halving over levels of effort.

After HetRL (arXiv 2512.12476): many candidates are looked at cheaply, the better part of them again with
more effort, and only the last few in full. Deterministic: equal scores keep the order of the candidates,
and random restarts draw from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Found(Generic[C]):
    """The best candidate, its score at full effort, and the work spent in full evaluations.

    `ranking`: those that were evaluated in full, best first.
    """

    best: C
    score: float
    evaluations: float
    ranking: tuple[tuple[C, float], ...]


def halving(
    candidates: Sequence[C], score: Callable[[C, float], float], efforts: Sequence[float], keep: float = 0.25
) -> Found[C]:
    """The candidate with the lowest score.

    `score(candidate, effort)`: at an effort of 1.0 the true one, at less a cheaper guess that costs that
    share of a full evaluation. `efforts` rise to 1.0; after each level but the last, the best share `keep`
    (2 at least) goes on. Raises ValueError without candidates.
    """
    if not candidates:
        raise ValueError("no candidates")
    left, spent = list(candidates), 0.0
    ranked: list[tuple[float, int]] = []
    for level, effort in enumerate(efforts):
        ranked = sorted((score(c, effort), i) for i, c in enumerate(left))
        spent += effort * len(left)
        if level < len(efforts) - 1:
            count = max(2, round(len(left) * keep))
            left = [left[i] for _, i in ranked[:count]]
    ranking = tuple((left[i], value) for value, i in ranked)
    return Found(*ranking[0], spent, ranking)


def shaken(options: Sequence[Sequence[C]], seed: int, count: int) -> list[tuple[C, ...]]:
    """Random choices of one from each of `options`, the same for the same seed."""
    draw = random.Random(seed)
    return [tuple(draw.choice(found) for found in options) for _ in range(count)]
