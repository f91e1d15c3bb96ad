"""Rows of a document go to a lane that has it already, as long as no lane gets too much.

Weight-balanced vertex cut (Ma et al., "A vertex cut based framework for load balancing", 2020; after Libra):
a row is the edge between its document (its key) and its question (its input). Each edge is given to one
lane, and what many edges share is copied to several lanes instead of cutting edges. Rows are placed as they
come, with the degrees seen so far (as HDRF, Petroni et al., 2015); the order of preference below is ours.

When not: with one lane, and for rows without a key, it is first come first served. Where rows bring all they
need with them there is nothing to share, and a lane that is busy keeps rows from one that could begin.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Generic

from pipeline.policy import Job, Waiting, What

SLACK = 0.1
"""How far a lane may be above the mean load."""


def choose(
    tiers: Iterable[Collection[int]],
    loads: Sequence[float],
    weight: float,
    cap: float,
    paces: Sequence[float],
) -> int:
    """The least loaded lane of the first tier in which one stays at or below `cap`; of all if none does.

    `paces`: what a weight of 1 adds to the load of each lane.
    """

    def then(lane: int) -> tuple[float, int]:
        return loads[lane] + weight * paces[lane], lane

    for tier in tiers:
        found = min(map(then, tier), default=None)
        if found is not None and found[0] <= cap:
            return found[1]
    return min(map(then, range(len(loads))))[1]


_End = tuple[int, Hashable]
"""A document or a question: two that are called alike are not the same."""


def _ends(row: Waiting[Any]) -> tuple[_End, ...]:
    return ((0, row.key), (1, row.root)) if row.root else ((0, row.key),)


class Cut:
    """Rows with a key go where it is."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}

    def queue(self, step: str) -> CutQueue[Any]:
        """The queue of a step, empty."""
        return CutQueue(self._jobs[step])


class CutQueue(Generic[What]):
    """A line for each planned lane, and one for all. A row costs O(L) with L lanes.

    It goes to a lane that has both its ends, else to one that has the end of fewer rows, else the other: to
    the least loaded of these that has room, or of all. No load is then above `(1 + SLACK) * mean`, or the
    mean and a row, or a batch.

    Loads are all that a lane was given so far, in seconds where the costs of all lanes are known, else in
    lengths. A lane with nothing to do takes half of the longest line, from its end; it has their ends then.
    """

    def __init__(self, job: Job) -> None:
        names = job.planned
        pace = [job.lanes[name].per_row if name in job.lanes else 0.0 for name in names]
        self._paces = pace if all(pace) else [1.0] * len(names)
        self._places = {name: i for i, name in enumerate(names)}
        self._batch = job.batch
        self._loads = [0.0] * len(names)
        self._degrees: Counter[_End] = Counter()
        self._held: defaultdict[_End, set[int]] = defaultdict(set)
        self._lines: list[deque[tuple[int, Waiting[What]]]] = [deque() for _ in names]
        self._common: deque[tuple[int, Waiting[What]]] = deque()
        self._numbers = itertools.count()
        self._given = self._count = 0
        self._total = 0.0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Waiting[What]) -> None:
        """One more row, for the lane that should have it."""
        self._count += 1
        line = self._common
        if row.key is not None and len(self._lines) > 1:
            weight = max(1, row.length)
            self._given += 1
            lane = choose(self._tiers(row), self._loads, weight, self._cap(weight), self._paces)
            self._give(row, lane)
            line = self._lines[lane]
        line.append((next(self._numbers), row))

    def take(self, most: int, lane: str) -> list[What]:
        """Rows for the lane or for all, as they came; those of another where there are none."""
        place = self._places.get(lane)
        own = self._lines[place] if place is not None else deque()
        if not own and not self._common:
            own = self._rob(most, place)
        taken: list[What] = []
        while len(taken) < most and (own or self._common):
            is_own = bool(own) and not (self._common and self._common[0][0] < own[0][0])
            taken.append((own if is_own else self._common).popleft()[1].what)
        self._count -= len(taken)
        return taken

    def _rob(self, most: int, thief: int | None) -> deque[tuple[int, Waiting[What]]]:
        """Half of the longest line, at most `most`; the loads follow. A lane beyond the plan has no load."""
        if not self._count:
            return deque()
        victim = max(range(len(self._lines)), key=lambda i: (len(self._lines[i]), -i))
        line = self._lines[victim]
        rows = deque(line.pop() for _ in range(min(most, -(-len(line) // 2))))
        rows.reverse()
        for _, row in rows:
            self._load(victim, -max(1, row.length))
            if thief is not None:
                self._give(row, thief)
        return rows

    def _tiers(self, row: Waiting[What]) -> tuple[set[int], ...]:
        """Lanes that have both ends of a row, that of fewer rows, and the other; also counts the row."""
        ends = _ends(row)
        self._degrees.update(ends)
        first, *rest = (self._held[end] for end in sorted(ends, key=self._degrees.__getitem__))
        return (first & rest[0], first, rest[0]) if rest else (first,)

    def _give(self, row: Waiting[What], lane: int) -> None:
        self._load(lane, max(1, row.length))
        for end in _ends(row):
            self._held[end].add(lane)

    def _load(self, lane: int, weight: float) -> None:
        self._loads[lane] += weight * self._paces[lane]
        self._total += weight * self._paces[lane]

    def _cap(self, weight: float) -> float:
        """The greatest load a lane may have with one more row; a batch of mean rows always fits."""
        total = self._total + weight * min(self._paces)
        return max((1 + SLACK) * total / len(self._loads), self._batch * total / self._given)
