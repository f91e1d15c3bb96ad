"""Each key has a home lane; what a hot one has too much goes to the least loaded lane.

Least-loaded expert parallelism (Nguyen et al., LLEP, 2026), its three guards: nothing moves below an
imbalance of `LAMBDA`, a lane keeps `ALPHA` of its fair share, and what moves is a chunk of at least m rows.
Its algorithm could not be read: the one here, and its bound, are derived by us.

When not: balanced lanes, one lane, and rows without a key (first come first served). A chunk is so large
that the rows it saves take longer than their state takes to move; a key with fewer rows stays at home.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from heapq import heapify, heapreplace
from typing import Any, Generic, NamedTuple

from pipeline.errors import PlanError
from pipeline.policies.coalesce import Line
from pipeline.policy import Job, Waiting, What

LAMBDA = 1.3
"""Nothing moves while the greatest load is less than this many times the mean."""
ALPHA = 1.1
"""What a lane keeps, in fair shares."""


class Move(NamedTuple):
    """`rows` of lane `source` go to lane `target`."""

    source: int
    target: int
    rows: int


def spill(loads: Sequence[int], chunk: int, limit: float = LAMBDA, keep: float = ALPHA) -> list[Move]:
    """What to move between lanes that have so many rows, the most loaded first.

    A lane's part is `keep` times the mean; afterwards none has more than its part and a chunk. A source
    stops with less than a chunk above its part; a target was below its part and gets at most what was
    missing, or one chunk; and while a lane is above its part another is below, since `keep` is 1 or more.
    O(L log L) for L lanes.
    Raises PlanError for a `keep` or a `chunk` below 1.
    """
    if keep < 1 or chunk < 1:
        raise PlanError(f"a lane keeps a fair share or more and spills a row or more, found {keep}, {chunk}")
    mean = sum(loads) / len(loads) if loads else 0.0
    if not mean or max(loads) < limit * mean:
        return []
    part, moves = keep * mean, []
    least = [(rows, lane) for lane, rows in enumerate(loads)]
    heapify(least)
    for source in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        excess = loads[source] - part
        while excess >= chunk:
            has, target = least[0]
            rows = max(chunk, int(min(excess, part - has)))
            moves.append(Move(source, target, rows))
            heapreplace(least, (has + rows, target))
            excess -= rows
    return moves


def smallest(batch: int, transfer: float, per_row: float) -> int | None:
    """Rows of the smallest chunk that is worth moving: a batch, and as many as repay `transfer` seconds.

    A row repays the `per_row` seconds that it takes. None where no number does.
    """
    if not transfer:
        return batch
    return max(batch, math.ceil(transfer / per_row)) if per_row else None


class Spill:
    """Rows with a key run at its home, and elsewhere if that is overloaded."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}

    def queue(self, step: str) -> SpillQueue[Any]:
        """The queue of a step, empty."""
        return SpillQueue(self._jobs[step])


class _Home(Generic[What]):
    """The rows of one lane by key, and which keys have a chunk or more. O(1) for each row."""

    def __init__(self, chunk: int | None) -> None:
        self.rows = 0
        self._chunk = chunk
        self._keys: dict[Hashable, Line[What]] = {}
        self._large: dict[Hashable, None] = {}

    def add(self, key: Hashable, rows: Sequence[What]) -> None:
        line = self._keys.setdefault(key, Line())
        for row in rows:
            line.append(row)
        self.rows += len(rows)
        self._sort(key, line)

    def take(self, most: int) -> list[What]:
        """Rows key by key; a key that has more is served again after the others."""
        taken: list[What] = []
        while len(taken) < most and self._keys:
            key = next(iter(self._keys))
            line = self._keys.pop(key)
            taken += line.first(min(len(line), most - len(taken)))
            self._keys[key] = line
            self._sort(key, line)
        self.rows -= len(taken)
        return taken

    def give(self, most: int) -> tuple[Hashable, list[What]] | None:
        """The last rows, at most `most`, of a key that has a chunk or more; None where none has."""
        if not self._large:
            return None
        key = next(iter(self._large))
        line = self._keys[key]
        rows = line.last(min(len(line), most))
        self.rows -= len(rows)
        self._sort(key, line)
        return key, rows

    def _sort(self, key: Hashable, line: Line[What]) -> None:
        if not line:
            del self._keys[key]
        if self._chunk is not None and len(line) >= self._chunk:
            self._large[key] = None
        else:
            self._large.pop(key, None)


class SpillQueue(Generic[What]):
    """A home for each planned lane, and a line for rows without a key. O(1) for each row and each that moves,
    O(L log L) for a batch with L lanes.

    A lane with nothing to do is owed rows as long as any wait, so it takes half of the most loaded home.
    """

    def __init__(self, job: Job) -> None:
        self._places = {name: i for i, name in enumerate(job.planned)}
        per_row = min((job.lanes[n].per_row for n in job.planned if n in job.lanes), default=0.0)
        self._chunk = smallest(job.batch, job.transfer, per_row)
        self._homes: list[_Home[What]] = [_Home(self._chunk) for _ in job.planned]
        self._given = [0] * len(job.planned)
        self._home: dict[Hashable, int] = {}
        self._common: Line[What] = Line()
        self._count = self._batches = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Waiting[What]) -> None:
        """One more row, at the home of its key: where least came so far, if it is new."""
        self._count += 1
        if row.key is None or len(self._homes) < 2:
            self._common.append(row.what)
            return
        if row.key not in self._home:
            self._home[row.key] = min(range(len(self._given)), key=lambda i: (self._given[i], i))
        at = self._home[row.key]
        self._given[at] += 1
        self._homes[at].add(row.key, (row.what,))

    def take(self, most: int, lane: str) -> list[What]:
        """Rows at home there, and rows without a key, in turn; those of another home where there are none."""
        self._level()
        place = self._places.get(lane)
        self._batches += 1
        taken = self._free(most) if self._batches % 2 == 0 else []  # else who has no home might wait for ever
        taken += self._homes[place].take(most - len(taken)) if place is not None else []
        taken += self._free(most - len(taken))
        if not taken and self._homes:
            home = max(self._homes, key=lambda h: h.rows)
            taken = home.take(min(most, -(-home.rows // 2)))
        self._count -= len(taken)
        return taken

    def _free(self, most: int) -> list[What]:
        return self._common.first(min(most, len(self._common)))

    def _level(self) -> None:
        """Move what is too much, as far as keys are large enough."""
        for source, target, rows in spill([h.rows for h in self._homes], self._chunk) if self._chunk else ():
            left = rows
            while self._chunk is not None and left >= self._chunk:
                given = self._homes[source].give(left)
                if given is None:
                    break
                self._homes[target].add(*given)
                left -= len(given[1])
