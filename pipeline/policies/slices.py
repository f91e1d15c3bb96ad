"""Fair time slices: the input that was served least is served next.

Aqua (Vijaya Kumar et al., 2024) gives prompts time slices in turn instead of running each to its end, so
that nobody waits for a long one. Here a slice is a row: its tag is the service that its input will have had
before it, and the least tag goes first, which is start-time fair queueing (Goyal, Vin, Cheng, 1996).

When not: with one input it is first come first served. The last of all results comes no sooner than
otherwise, so a run whose inputs are only of use together gains nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, Generic

from pipeline.errors import RowId
from pipeline.policy import Job, Waiting, What


def tag(now: float, served: float | None) -> float:
    """Where a row stands: after all its input had, but not before `now`, the tag that was taken last.

    An input that comes late, or had nothing waiting, so claims nothing for the time it was not there.
    """
    return now if served is None else max(now, served)


class Slices:
    """Inputs by least service received."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Costs do not matter: service is counted in lengths."""

    def queue(self, step: str) -> SlicesQueue[Any]:
        """The queue of a step, empty."""
        return SlicesQueue()


class SlicesQueue(Generic[What]):
    """A heap by tag: O(log n) for each row, in and out.

    Service is the sum of lengths, at least 1 a row. With rows of one length and R inputs, an input of k
    rows has them all after at most k * R rows have gone: within R batches, if k is at most a batch.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, What]] = []
        self._served: dict[RowId, float] = {}
        self._numbers = itertools.count()
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, row: Waiting[What]) -> None:
        """One more row, behind those of its input."""
        at = tag(self._now, self._served.get(row.root))
        heappush(self._heap, (at, next(self._numbers), row.what))
        self._served[row.root] = at + max(1, row.length)

    def take(self, most: int, lane: str) -> list[What]:
        """The rows of whoever had least so far."""
        taken: list[What] = []
        for _ in range(min(most, len(self._heap))):
            self._now, _, what = heappop(self._heap)
            taken.append(what)
        if not self._heap:
            self._served.clear()  # nobody waited for anybody
        return taken
