"""Many small calls become few large ones, of rows of one size class, so that little of them is padding.

After the packing of many small problems into one launch (Gurung and Ray, "Simultaneous solving of batched
linear programs on a GPU", 2018): rows are kept by size class, and a batch is filled from one. Classes are
so narrow that padding is at most `WASTE` of a batch, however it is made up (ours: see `floors`).

When not: rows of equal or unknown length are one class, first come first served. A class that would wait
too long is served out of turn and filled up with others, so a thin stream of very unequal rows is padded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic

from pipeline.policy import Job, Waiting, What

WASTE = 0.25
"""The share of a batch that may be padding."""
PATIENCE = 32
"""Batches that a class may see pass it by before it is served whatever else waits."""


def floors(bound: float) -> Iterator[int]:
    """The least length of each size class: 0, 1, ... without end.

    Ours: a class that begins at b ends at floor(b / (1 - bound)). A row is then at least (1 - bound) of the
    longest in its class, and so is the mean: padding is at most `bound`. Lengths of 0 are unknown.
    """
    yield 0
    least = 1
    while True:
        yield least
        least = int(least / (1 - bound)) + 1


class Pack:
    """Batches of one size class."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Costs do not matter: padding is a share."""

    def queue(self, step: str) -> PackQueue[Any]:
        """The queue of a step, empty."""
        return PackQueue()


class PackQueue(Generic[What]):
    """Rows by size class, in each first come first served.

    With C classes in use (70 for lengths up to a billion): a row in O(log C), a batch in O(C). A row that
    has p before it in its class waits at most (PATIENCE + C) * (p // most + 1) batches.
    """

    def __init__(self, bound: float = WASTE, patience: int = PATIENCE) -> None:
        self._patience = patience
        self._more = floors(bound)
        self._floors = [next(self._more)]
        self._classes: dict[int, deque[What]] = {}
        self._served: dict[int, int] = {}
        self._batches = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Waiting[What]) -> None:
        """One more row."""
        while self._floors[-1] <= row.length:
            self._floors.append(next(self._more))
        size = bisect_right(self._floors, row.length) - 1
        if size not in self._classes:
            self._classes[size] = deque()
            self._served[size] = self._batches
        self._classes[size].append(row.what)
        self._count += 1

    def take(self, most: int, lane: str) -> list[What]:
        """Rows of the fullest class; of one that waited too long, filled up with its neighbours."""
        if not self._classes:
            return []
        oldest = min(self._classes, key=lambda c: (self._served[c], c))
        forced = self._batches - self._served[oldest] >= self._patience
        self._batches += 1
        fullest = max(self._classes, key=lambda c: (min(most, len(self._classes[c])), c))
        chosen = oldest if forced else fullest
        self._served[chosen] = self._batches
        taken: list[What] = []
        for size in self._near(oldest) if forced else (fullest,):
            taken += self._pop(size, most - len(taken))
        return taken

    def _near(self, size: int) -> list[int]:
        """All classes: itself, then the shorter, which fit into its padding, then the longer."""
        return sorted(self._classes, key=lambda c: (c > size, abs(c - size)))

    def _pop(self, size: int, most: int) -> list[What]:
        rows = self._classes[size]
        taken = [rows.popleft() for _ in range(min(most, len(rows)))]
        self._count -= len(taken)
        if not rows:
            del self._classes[size], self._served[size]
        return taken
