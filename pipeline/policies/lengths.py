"""Rows of like length share a batch, where the padding saved is worth the batches added.

LoongServe (Wu et al., SOSP 2024), its batching by dynamic programming with a quadratic cost, for one
lane: rows sorted by length are cut into contiguous groups of least total seconds. The groups are made
for a window of the longest rows at a time, and served longest first.

    seconds(group) = alpha + size * (beta * longest + gamma * longest^2)        padded: ours, after theirs

When not: where all lengths are equal or unknown, or nothing is known of the lane, batches are full, the
longest rows first. Batches of a stage that pads nothing gain nothing.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Generic

from pipeline.policy import Job, Waiting, What

WINDOW = 4
"""Rows to group at a time, in full batches: more plans further, and costs as much for each row."""


@dataclass(frozen=True, slots=True)
class Padded:
    """Seconds of a batch whose rows are padded to the longest: all of 0 or more."""

    alpha: float
    beta: float
    gamma: float = 0.0

    def row(self, length: float) -> float:
        """What a row of a batch costs if `length` is that of the longest."""
        return self.beta * length + self.gamma * length * length

    def seconds(self, longest: float, size: int) -> float:
        """A batch of `size` rows."""
        return self.alpha + size * self.row(longest)


def groups(lengths: Sequence[int], most: int, cost: Padded) -> list[int]:
    """Sizes of the contiguous groups of `lengths` (longest first), each 1 to `most`, of least total seconds.

    least(i) = min over ends j of least(j) + seconds(length i, j - i). The cost is Monge, so the best end
    falls with the start, and candidates are kept in a queue (Hirschberg and Larmore, "The least weight
    subsequence problem", 1987): O(n log n). Of equal sums the first group is the larger.
    """
    count = len(lengths)
    if not count or lengths[0] == lengths[-1]:
        return [min(most, count - i) for i in range(0, count, most)]
    rows = [cost.row(length) for length in lengths]
    ends = _ends(rows, most, cost.alpha)
    starts = [0]
    while starts[-1] < count:
        starts.append(ends[starts[-1]])
    return [b - a for a, b in itertools.pairwise(starts)]


def _ends(rows: Sequence[float], most: int, alpha: float) -> list[int]:
    """The best end of a group that begins at each place. `rows`: what a row costs there, falling."""
    count = len(rows)
    least, ends = [0.0] * (count + 1), [0] * count
    falling = [-r for r in rows]
    queue = deque([(count, count - 1)])  # an end, and the last start for which it is the best
    for start in range(count - 1, -1, -1):
        while len(queue) > 1 and queue[1][1] >= start:
            queue.popleft()
        end = ends[start] = queue[0][0]
        least[start] = least[end] + alpha + rows[start] * (end - start)
        last = start - 1
        while queue:
            old, since = queue[-1]
            price = (least[start] - least[old]) / (old - start)  # a dearer row would rather end here
            last = min(start - 1, max(bisect_left(falling, -price) - 1, old - most - 1))
            if last < min(since, start - 1):
                break
            queue.pop()
        if last >= 0:
            queue.append((start, last))
    return ends


class Lengths:
    """Batches of like length."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}

    def queue(self, step: str) -> LengthsQueue[Any]:
        """The queue of a step, empty."""
        return LengthsQueue(self._jobs[step])


class LengthsQueue(Generic[What]):
    """A heap, and the groups made of its longest rows. O(log n) for each row, in and out.

    What comes while groups stand waits for the next window, so a row is passed by at most one.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._heap: list[tuple[int, int, What]] = []
        self._numbers = itertools.count()
        self._lengths = self._added = 0
        self._groups: deque[list[tuple[int, int, What]]] = deque()
        self._most = self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Waiting[What]) -> None:
        """One more row."""
        heappush(self._heap, (-row.length, next(self._numbers), row.what))
        self._lengths += row.length
        self._added += 1
        self._count += 1

    def take(self, most: int, lane: str) -> list[What]:
        """The longest group; the head of it, where `most` is less than it was made for."""
        if not self._groups or most > self._most:
            self._plan(most, self._cost(lane))
        group = self._groups.popleft() if self._groups else []
        while not self._groups and len(group) < most and self._heap and self._heap[0][0] == group[-1][0]:
            group.append(heappop(self._heap))  # what came since, and is not shorter, costs no padding
        if len(group) > most:
            self._groups.appendleft(group[most:])
        taken = [what for _, _, what in group[:most]]
        self._count -= len(taken)
        return taken

    def _cost(self, lane: str) -> Padded:
        """The lane's line, with its rows of mean length."""
        found = self._job.lanes.get(lane)
        if found is None or not self._lengths:
            return Padded(0.0, 0.0)
        mean, bent = self._lengths / self._added, found.per_row * found.bend
        return Padded(found.fixed, (found.per_row - bent) / mean, bent / mean**2)

    def _plan(self, most: int, cost: Padded) -> None:
        """Group the longest rows, those of groups that still stand among them."""
        while self._groups:
            self._back(self._groups.pop())
        window = [heappop(self._heap) for _ in range(min(WINDOW * most, len(self._heap)))]
        rows = iter(window)
        for size in groups([-length for length, _, _ in window], most, cost):
            self._groups.append(list(itertools.islice(rows, size)))
        if self._heap and len(self._groups) > 1:
            self._back(self._groups.pop())  # the window cut it short
        self._most = most

    def _back(self, rows: list[tuple[int, int, What]]) -> None:
        for row in rows:
            heappush(self._heap, row)
