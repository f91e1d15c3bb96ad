"""Stages whose values are large arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.values import Embeddings, Queries


@dataclass(frozen=True, slots=True)
class Big:
    """A vector of `width` for each query, told by its id."""

    width: int

    def run(self, state: Any, queries: Queries) -> Embeddings:
        first = np.array([[sum(map(ord, str(i)))] for i in queries.ids])
        return Embeddings(queries.ids, (first + np.arange(self.width)).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Half:
    """Half of each vector."""

    def run(self, state: Any, rows: Embeddings) -> Embeddings:
        return Embeddings(rows.ids, (rows.vectors / 2).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Same:
    """The very rows that came in."""

    def run(self, state: Any, rows: Embeddings) -> Embeddings:
        return rows
