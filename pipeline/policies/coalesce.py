"""Calls of all who wait merge into one batch, in which nobody takes more than a fair part.

Space-Time scheduling (Jain et al., 2019): calls of several tenants to the same model become one large call
instead of many small ones one after the other. Here the tenants of a batch are the steps that hold equal
stages, which are those of branches, loops and jobs that ask the same model (see `pipeline.merging`); and
among the rows of a step every input (`root`) is one. The fairness cap is ours: with R of them waiting,
none has more than ceil(most / R) rows in a batch that others could fill.

When not: with one input and no equal stages it is first come first served. Length is not looked at, so where
padding costs more than waiting does, `lengths` or `pack` is better. A part-filled batch waits for rows of an
equal stage that are one step away, so a small job beside a large one is faster on its own lanes. A batch
that fails runs again for each of its steps, which costs a call for each where rows often fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Generic

from pipeline.errors import RowId
from pipeline.policy import Job, Waiting, What


def shares(waiting: Iterable[int], most: int) -> list[int]:
    """Rows that each tenant gets of a batch of at most `most`: as even as their rows allow.

    Max-min fair (Bertsekas and Gallager, "Data networks", 6.5.2): who still waits has at most one row less
    than anybody else. Those who come first have the odd rows.
    """
    left = list(waiting)
    given = [0] * len(left)
    room = min(most, sum(left))
    while room:
        active = [i for i, rows in enumerate(left) if rows]
        part = max(1, room // len(active))
        for i in active:
            now = min(part, left[i], room)
            given[i] += now
            left[i] -= now
            room -= now
    return given


class Line(Generic[What]):
    """First come first served, and small: inputs may be a million, and a deque takes 600 bytes empty."""

    __slots__ = ("_rows", "_start")

    def __init__(self) -> None:
        self._rows: list[What] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._rows) - self._start

    def append(self, what: What) -> None:
        """One more, behind all others."""
        self._rows.append(what)

    def first(self, count: int) -> list[What]:
        """Take away the first `count`, which are there: O(1) for each, in the mean."""
        taken = self._rows[self._start : self._start + count]
        self._start += len(taken)
        if 2 * self._start >= len(self._rows):
            del self._rows[: self._start]
            self._start = 0
        return taken

    def last(self, count: int) -> list[What]:
        """Take away the last `count`, which are there, in order."""
        cut = len(self._rows) - count
        taken = self._rows[cut:]
        del self._rows[cut:]
        return taken


class Coalesce:
    """Batches of all inputs, and of all steps that hold equal stages, each with its part."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Costs do not matter: a part is a number of rows."""

    def queue(self, step: str) -> CoalesceQueue[Any]:
        """The queue of a step, empty."""
        return CoalesceQueue()

    def shares(self, waiting: Sequence[int], most: int) -> Sequence[int]:
        """Rows that each of the steps that share a batch gets."""
        return shares(waiting, most)


class CoalesceQueue(Generic[What]):
    """A line for each input, the inputs in turn: O(1) for each row, in and out, however many inputs wait."""

    def __init__(self) -> None:
        self._lines: dict[RowId, Line[What]] = {}
        self._turn: deque[RowId] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Waiting[What]) -> None:
        """One more row."""
        if row.root not in self._lines:
            self._lines[row.root] = Line()
            self._turn.append(row.root)
        self._lines[row.root].append(row.what)
        self._count += 1

    def take(self, most: int, lane: str) -> list[What]:
        """As many rows as there are, at most `most`; who had no odd row is first in the next batch."""
        tenants = len(self._turn)
        roots = [self._turn.popleft() for _ in range(min(most, tenants))]
        taken: list[What] = []
        for root, rows in zip(roots, shares((len(self._lines[r]) for r in roots), most), strict=True):
            taken += self._lines[root].first(rows)
        odd = most % tenants if tenants else 0
        self._turn.extend(root for root in roots[odd:] + roots[:odd] if self._lines[root])
        for root in roots:
            if not self._lines[root]:
                del self._lines[root]
        self._count -= len(taken)
        return taken
