"""Reciprocal rank fusion: one ranking out of several whose scores cannot be compared.

    score(row) = sum over rankings of 1 / (constant + rank of the row), rank from 1

Cormack, Clarke and Buettcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning
methods", SIGIR 2009; the constant is 60 there. It deliberately ignores the scores of the rankings.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RowId
from pipeline.rows import row_order


def fuse(
    rankings: Sequence[Sequence[RowId]], k: int, constant: int = 60
) -> tuple[tuple[RowId, ...], NDArray[np.float32]]:
    """The best at most k rows of `rankings` (each best first), and their scores float32 [K].

    Ties are broken by row id; the order of the rankings does not matter.
    """
    shares: dict[RowId, list[float]] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            shares.setdefault(row, []).append(1 / (constant + rank))
    scores = {row: fsum(parts) for row, parts in shares.items()}
    order = sorted(scores, key=lambda row: (-scores[row], row_order(row)))[:k]
    return tuple(order), np.array([scores[row] for row in order], np.float32)
