"""Each key has a home lane; what a hot one has too much goes to the least loaded lane.

Least-loaded expert parallelism (Nguyen et al., LLEP, 2026), its three guards: nothing moves below an
imbalance of `LAMBDA`, a lane keeps `ALPHA` of its fair share, and what moves is a chunk of at least a batch
that costs no more than it saves. Its algorithm could not be read: the one here, its bound and what a move
costs are derived by us.

When not: balanced lanes, one lane, and rows without a key (first come first served). A move must be done
there, the way and the opening of the stage included, before the home is through with all that it has; else
rows stay at home, though another lane has nothing to do. A key with less than a batch stays at home too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heapify, heapreplace
from typing import Any, Generic, NamedTuple

from pipeline.errors import PlanError
from pipeline.machine import Device
from pipeline.policies.coalesce import Line
from pipeline.policy import Job, Lane, View, Waiting, What

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


def pays(rows: int, waiting: int, home: Lane, there: Lane, transfer: float, ready: float = 0.0) -> bool:
    """Whether `rows` of the `waiting` at home are done there before the home is through with all of them.

    Ours, after the guard of LLEP (never spill where the transfer takes longer than it saves): moved one by
    one they take `ready + rows * (there.per_row + transfer)`, and the home alone `waiting * home.per_row`.
    So no row ends later for having moved. `ready`: seconds until the lane can begin. Where no speed is known
    nothing speaks against what costs no transfer.
    """
    return ready + rows * (there.per_row + transfer) <= waiting * home.per_row


class Spill:
    """Rows with a key run at its home, and elsewhere if that is overloaded."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._queues: dict[str, SpillQueue[Any]] = {}

    def queue(self, step: str) -> SpillQueue[Any]:
        """The queue of a step, empty."""
        self._queues[step] = SpillQueue(self._jobs[step])
        return self._queues[step]

    def lanes(self, step: str, view: View) -> Sequence[str]:
        """The planned lanes that have rows, or for which it pays to take some; all where none wait."""
        return self._queues[step].serving() or self._jobs[step].planned


class _Home(Generic[What]):
    """The rows of one lane by key, and which keys have a chunk or more. O(1) for each row."""

    def __init__(self, chunk: int) -> None:
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
        if len(line) >= self._chunk:
            self._large[key] = None
        else:
            self._large.pop(key, None)


class SpillQueue(Generic[What]):
    """A home for each planned lane, and a line for rows without a key. O(1) for each row and each that moves,
    O(L log L) for a batch with L lanes.

    A lane that is given a batch while it has nothing is owed rows as long as any wait, so it takes half of
    the most loaded home; `serving` says which lanes should be asked.
    """

    def __init__(self, job: Job) -> None:
        self._places = {name: i for i, name in enumerate(job.planned)}
        self._lanes = [job.lanes.get(name) or Lane(Device(name)) for name in job.planned]
        self._batch, self._transfer = job.batch, job.transfer
        self._homes: list[_Home[What]] = [_Home(job.batch) for _ in job.planned]
        self._given = [0] * len(job.planned)
        self._cold = [True] * len(job.planned)
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

    def serving(self) -> tuple[str, ...]:
        """The planned lanes that have rows, their own or those of nobody, or may take some of another's."""
        if not self._homes or self._common:
            return tuple(self._places)
        self._level()
        home = self._fullest()
        rows = min(self._batch, -(-self._homes[home].rows // 2))
        return tuple(
            name
            for name, place in self._places.items()
            if self._homes[place].rows or (rows and self._pays(home, place, rows))
        )

    def take(self, most: int, lane: str) -> list[What]:
        """Rows at home there, and rows without a key, in turn; those of another home where there are none."""
        self._level()
        place = self._places.get(lane)
        self._batches += 1
        taken = self._free(most) if self._batches % 2 == 0 else []  # else who has no home might wait for ever
        taken += self._homes[place].take(most - len(taken)) if place is not None else []
        taken += self._free(most - len(taken))
        if not taken and self._homes:
            home = self._homes[self._fullest()]
            taken = home.take(min(most, -(-home.rows // 2)))
        if taken and place is not None:
            self._cold[place] = False
        self._count -= len(taken)
        return taken

    def _fullest(self) -> int:
        return max(range(len(self._homes)), key=lambda i: (self._homes[i].rows, -i))

    def _free(self, most: int) -> list[What]:
        return self._common.first(min(most, len(self._common)))

    def _level(self) -> None:
        """Move what is too much, as far as keys are large enough and it pays."""
        for source, target, rows in spill([h.rows for h in self._homes], self._batch):
            left = rows
            while left >= self._batch and self._pays(source, target, left):
                given = self._homes[source].give(left)
                if given is None:
                    break
                self._homes[target].add(*given)
                left -= len(given[1])

    def _pays(self, source: int, target: int, rows: int) -> bool:
        """Where the home's stage is not open yet, the rows there wait for that too."""
        home, there = self._lanes[source], self._lanes[target]
        ready = there.opening * self._cold[target] - home.opening * self._cold[source]
        ready += self._homes[target].rows * there.per_row
        return pays(rows, self._homes[source].rows, home, there, self._transfer, ready)
