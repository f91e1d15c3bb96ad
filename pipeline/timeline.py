"""What happened: spans of work, predicted or measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.errors import RowId


@dataclass(frozen=True, slots=True)
class Span:
    """One batch of one step on one device; times in seconds from the start of the run."""

    step: str
    device: str
    start: float
    end: float
    rows: int


@dataclass(frozen=True, slots=True)
class Total:
    """All spans of a step: batches, rows, and busy seconds."""

    step: str
    batches: int
    rows: int
    seconds: float


def totals(spans: Iterable[Span]) -> tuple[Total, ...]:
    """The sums by step, in order of first appearance."""
    found: dict[str, Total] = {}
    for s in spans:
        t = found.get(s.step, Total(s.step, 0, 0, 0.0))
        found[s.step] = Total(s.step, t.batches + 1, t.rows + s.rows, t.seconds + s.end - s.start)
    return tuple(found.values())


@dataclass(slots=True)
class Tally:
    """What a step has made so far: rows, rows that had any children, and the distinct inputs behind them."""

    rows: int = 0
    parents: int = 0
    roots: set[RowId] = field(default_factory=set)

    def add(self, ids: tuple[RowId, ...]) -> None:
        """Count a value of an expanding step, whose parents come in one batch each."""
        self.rows += len(ids)
        self.parents += len({i[:-1] for i in ids})
        self.roots |= {i[:1] for i in ids}
