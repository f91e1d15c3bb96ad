"""Stages that compute nothing, with the costs of real ones: what a scenario is made of.

They pass rows on; what they would cost stands in their `cost`, with the sizes of real models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Rows


@dataclass(frozen=True, slots=True)
class Items(Rows):
    """Rows of anything: documents, pages, questions. Their lengths are only in the simulation."""


@dataclass(frozen=True, slots=True)
class Judged(Items):
    """Items of a round of a loop."""

    done: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Parse:
    """Documents to pages, in ordinary code: `seconds` a page at 2.7e7 operations/s, on CPUs only.

    The pages of a document are in proportion to its length; each has `nbytes`.
    """

    pages: int = 8
    seconds: float = 0.05
    nbytes: float = 4e3
    expands: ClassVar[bool] = True
    batch: ClassVar[int] = 4

    def cost(self, work: Work) -> Cost:
        """Scalar only."""
        made = work.rows * self.pages
        return Cost(Flow(made, 0.0, self.nbytes), scalar=2.7e7 * self.seconds * made)

    def run(self, state: Any, items: Items) -> Items:
        """`pages` rows of each."""
        return Items(tuple((*i, page) for i in items.ids for page in range(self.pages)))


@dataclass(frozen=True, slots=True)
class Write:
    """Templates and tokens, in ordinary code: `seconds` a row at 2.7e7 operations/s, on CPUs only."""

    seconds: float = 0.002

    def cost(self, work: Work) -> Cost:
        """Scalar only."""
        flow = work.port("items")
        return Cost(Flow(work.rows, flow.length, 4e3), scalar=2.7e7 * self.seconds * work.rows)

    def run(self, state: Any, items: Items) -> Items:
        """As they came."""
        return items


@dataclass(frozen=True, slots=True)
class Encode:
    """An encoder of `parameters` over `tokens` a row, or over the length of the row: bound by arithmetic."""

    parameters: float = 1e8
    tokens: int = 256
    accelerated: ClassVar[bool] = True

    def cost(self, work: Work) -> Cost:
        """2 FLOP a parameter and token (Kaplan et al., 2020); the weights are read once for each batch."""
        flow = work.port("items")
        tokens = work.rows * (flow.length or self.tokens)
        weights = 4 * self.parameters
        return Cost(
            Flow(work.rows, 0.0, 4096),
            flops=2 * self.parameters * tokens,
            traffic=weights + 2e4 * tokens,
            resident=weights,
            opening=weights,
            dtype=work.dtype,
        )

    def run(self, state: Any, items: Items) -> Items:
        """As they came."""
        return items


@dataclass(frozen=True, slots=True)
class Search:
    """The nearest of `chunks` vectors of 768 numbers, read once for each batch: bound by memory."""

    chunks: float = 1e6
    accelerated: ClassVar[bool] = True
    batch: ClassVar[int] = 16

    def cost(self, work: Work) -> Cost:
        """One product of the queries with all vectors."""
        index = 4 * 768 * self.chunks
        return Cost(
            Flow(work.rows, 0.0, 4e3),
            flops=2 * 768 * self.chunks * work.rows,
            traffic=index,
            resident=index,
            opening=index,
            dtype="float32",
        )

    def run(self, state: Any, items: Items) -> Items:
        """As they came."""
        return items


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompts of `tokens` through a decoder of `parameters`: bound by arithmetic; leaves a large cache."""

    parameters: float = 1e9
    tokens: int = 1000
    accelerated: ClassVar[bool] = True
    batch: ClassVar[int] = 16

    def cost(self, work: Work) -> Cost:
        """As `Encode`; the cache is 32 KiB a token."""
        tokens, weights = work.rows * self.tokens, 2 * self.parameters
        return Cost(
            Flow(work.rows, 0.0, 32768.0 * self.tokens),
            flops=2 * self.parameters * tokens,
            traffic=weights + 4e4 * tokens,
            resident=weights,
            opening=weights,
            dtype=work.dtype,
        )

    def run(self, state: Any, items: Items) -> Items:
        """As they came."""
        return items


@dataclass(frozen=True, slots=True)
class Decode:
    """`tokens` new tokens a row from a decoder of `parameters`: bound by memory, by all weights for each."""

    parameters: float = 1e9
    tokens: int = 64
    cache: float = 3e7
    accelerated: ClassVar[bool] = True
    batch: ClassVar[int] = 32

    def cost(self, work: Work) -> Cost:
        """A token of the whole batch reads the weights once, and the cache of every row."""
        weights = 2 * self.parameters
        return Cost(
            Flow(work.rows, 0.0, 1e3),
            flops=2 * self.parameters * self.tokens * work.rows,
            traffic=self.tokens * (weights + self.cache * work.rows),
            resident=weights,
            opening=weights,
            dtype=work.dtype,
        )

    def run(self, state: Any, items: Items) -> Items:
        """As they came."""
        return items


@dataclass(frozen=True, slots=True)
class Reason:
    """As `Decode`, and says whether a row needs another round."""

    parameters: float = 1e9
    tokens: int = 32
    accelerated: ClassVar[bool] = True
    batch: ClassVar[int] = 32

    def cost(self, work: Work) -> Cost:
        """As `Decode`."""
        return Decode(self.parameters, self.tokens).cost(work)

    def run(self, state: Any, items: Items) -> Judged:
        """Done at once."""
        return Judged(items.ids, np.ones(len(items), np.bool_))
