"""Whether a draft model is worth its work: how often it is right, and what it saves against what it takes.

The idea: what is not known yet is taken to be good. A draft model is tried until it has shown how often its
tokens stand and what its passes take; from then on it drafts where that pays (`draft_length.lengths`), and
reads a prompt only where the answer still to come repays it (`saved`).

When not: short answers to long prompts. A draft model with caches of its own must read the prompt first, and
a few tokens do not repay that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from pipeline.gates import Curve
from stages.llm.draft_length import expected

__all__ = ["HOPE", "Pace", "Trust", "saved"]

HOPE = 0.9
"""How often a draft model is taken to be right before anything is known."""

_NEWEST = 9
"""Passes that are remembered."""

_ROWS_LIKE_THIS = 8.0
"""Drafted tokens of a row that count as much as what all rows have shown."""

_TRIED_BEFORE = 4.0
"""Drafted tokens that count as much as hope."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How drafts of a model have fared: tokens that were compared, and those of them that stood."""

    tried: int = 0
    stood: int = 0

    def after(self, drafted: int, accepted: int) -> Trust:
        """With one more draft of which `accepted` tokens stood; what follows a refusal says nothing."""
        return Trust(self.tried + accepted + (accepted < drafted), self.stood + accepted)

    @property
    def rate(self) -> float:
        """The probability that a drafted token stands if those before it do, over all rows.

        The mean of a beta distribution whose prior is `HOPE`, worth four tokens (ours).
        """
        return (self.stood + HOPE * _TRIED_BEFORE) / (self.tried + _TRIED_BEFORE)

    def rate_of(self, row: Trust) -> float:
        """The same for one row, whose prior is what all rows have shown, worth eight tokens (ours)."""
        return (row.stood + self.rate * _ROWS_LIKE_THIS) / (row.tried + _ROWS_LIKE_THIS)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of something that is done again and again: the median of the last times, 0 before the first."""

    _taken: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST))

    def add(self, seconds: float) -> None:
        """It took so long."""
        self._taken.append(seconds)

    @property
    def seconds(self) -> float:
        """What it takes."""
        return median(self._taken) if self._taken else 0.0


def saved(curve: Curve, rows: int, rate: float, most: int, drafting: float, beside: int = 0) -> float:
    """Seconds that drafts of a model save for each token of a batch of `rows` that draft nothing else.

    Ours: a step with k tokens drafted a row emits `rows` times `expected(rate, k)` tokens, and takes what
    reading them takes and k passes of `drafting` seconds. What is saved is the time for a token without
    drafts, less that with the best k up to `most`; 0 where none is better. `curve`, `beside`: see
    `draft_length.View`.
    """

    def each(k: int) -> float:
        taken = curve.seconds(rows * (1 + k) + beside) + k * drafting
        return taken / (rows * expected(rate, k) + beside)

    return each(0) - min(each(k) for k in range(most + 1))
