"""One sorted queue served from both ends: slow lanes take the hard rows, fast lanes the easy ones in bulk.

After Rossi and Zhou, "Hybrid CPU-GPU framework for network motifs" (2016): CPUs take hard, irregular work
in small pieces from one end of a queue sorted by difficulty, accelerators even batches from the other,
until they meet. No ratio of speeds has to be right: whoever is free takes the next piece.

When not: lanes of one kind all serve the longest first. A slow lane leaves a row alone that would keep it
busy longer than a fast one needs for all others (ours), and takes a short one instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Generic

from pipeline.policy import Job, Waiting, What

LIKE = 2.0
"""Lanes that need less than this many times the seconds of the fastest are of its kind."""
SMALL = 8
"""A slow lane takes one part in so many of a full batch."""


class Shelf(Generic[What]):
    """Rows by length, taken at both ends; of equal ones what came first. O(log n) for each row.

    Two heaps, and the numbers of the rows that were taken from one and still stand in the other.
    """

    def __init__(self) -> None:
        self.total = 0
        self._long: list[tuple[int, int, What]] = []
        self._short: list[tuple[int, int, What]] = []
        self._gone: set[int] = set()
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, length: int, what: What) -> None:
        """One more."""
        number = next(self._numbers)
        heappush(self._long, (-length, number, what))
        heappush(self._short, (length, number, what))
        self._count += 1
        self.total += length

    @property
    def longest(self) -> int:
        """The greatest length; 0 where nothing is."""
        return -self._top(self._long)[0] if self._count else 0

    def take(self, most: int, long: bool) -> list[What]:
        """The `most` longest or shortest, or as many as there are."""
        heap = self._long if long else self._short
        taken: list[What] = []
        for _ in range(min(most, self._count)):
            length, number, what = self._top(heap)
            heappop(heap)
            self._gone.add(number)
            self.total -= abs(length)
            taken.append(what)
        self._count -= len(taken)
        if len(self._gone) > 2 * self._count + 64:
            self._tidy()
        return taken

    def _top(self, heap: list[tuple[int, int, What]]) -> tuple[int, int, What]:
        while heap[0][1] in self._gone:
            self._gone.discard(heappop(heap)[1])
        return heap[0]

    def _tidy(self) -> None:
        """Forget what was taken at the other end: a queue served at one end only would grow for ever."""
        for heap in (self._long, self._short):
            heap[:] = [row for row in heap if row[1] not in self._gone]
            heapify(heap)
        self._gone.clear()


def paces(job: Job) -> dict[str, float]:
    """Seconds per row of a full batch on each lane, in units of the fastest; empty if any is unknown."""
    seconds = {name: lane.seconds(job.batch) for name, lane in job.lanes.items()}
    best = min(seconds.values(), default=0.0)
    return {name: s / best for name, s in seconds.items()} if best else {}


def fast(job: Job) -> dict[str, bool]:
    """Whether each lane is of the fast kind: by its pace, or any that is no CPU if paces are unknown."""
    known = paces(job)
    if known:
        return {name: pace < LIKE for name, pace in known.items()}
    return {name: lane.device.kind != "cpu" for name, lane in job.lanes.items()}


class Ends:
    """Slow lanes take from the hard end, fast ones from the easy end."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}

    def queue(self, step: str) -> EndsQueue[Any]:
        """The queue of a step, empty."""
        return EndsQueue(self._jobs[step])


class EndsQueue(Generic[What]):
    """A shelf. The kinds that count are those of the planned lanes, and of others once they take."""

    def __init__(self, job: Job) -> None:
        self._shelf: Shelf[What] = Shelf()
        self._fast = fast(job)
        self._paces = paces(job)
        self._kinds = {self._fast[name] for name in job.planned if name in self._fast}

    def __len__(self) -> int:
        return len(self._shelf)

    def add(self, row: Waiting[What]) -> None:
        """One more row."""
        self._shelf.add(row.length, row.what)

    def take(self, most: int, lane: str) -> list[What]:
        """Rows from the lane's end."""
        is_fast = self._fast.get(lane, False)
        self._kinds.add(is_fast)
        if len(self._kinds) == 1:
            return self._shelf.take(most, long=True)
        if is_fast:
            return self._shelf.take(most, long=False)
        return self._shelf.take(max(1, most // SMALL), long=not self._is_too_hard(lane))

    def _is_too_hard(self, lane: str) -> bool:
        """Whether the longest row alone takes the slow lane longer than a fast one needs for the others."""
        longest = self._shelf.longest
        return longest * self._paces.get(lane, 1.0) > self._shelf.total - longest
