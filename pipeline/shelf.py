"""Where a process keeps the values that others read: written once into shared memory, and freed when told.

Each worker has a shelf, and the client has one to read with. What an order says (`Carry`) is obeyed: by
reference nothing happens, by arena the value moves into shared memory and its maker goes on with views of
it, by bytes it becomes a message. Memory that runs low moves to disk what is needed latest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.buffers.arena import Arena
from pipeline.buffers.handles import Place
from pipeline.buffers.tiers import Resident, Watermarks, demote
from pipeline.buffers.transports import ArenaTransport, BytesTransport
from pipeline.handover import ARENA, REFERENCE
from pipeline.rows import Rows

RELOAD = 1e9
"""Bytes/s at which a demoted value is read back, for choosing which one moves: a common NVMe disk."""
HIGH, LOW = 0.9, 0.7
"""Shares of an arena: above the one values move to disk, down to the other."""


@dataclass(frozen=True, slots=True)
class Carry:
    """How a value is handed over: the way, and for an arena the segment to use and its bytes.

    `key`: what the value is called when it is freed; `due`: when it is needed, larger is later.
    """

    way: str = REFERENCE
    key: str = ""
    segment: Place | None = None
    budget: int = 0
    due: int = 0


BY_REFERENCE = Carry()


@dataclass(slots=True)
class Counts:
    """Bytes that readers were given without a copy, and those that were written or read anew."""

    shared: int = 0
    copied: int = 0

    def add(self, shared: int, copied: int) -> None:
        """Count more."""
        self.shared += shared
        self.copied += copied


class Shelf:
    """The values of one process. For one thread at a time; readers elsewhere need none of it."""

    def __init__(self) -> None:
        self._bytes = BytesTransport()
        self._arena = ArenaTransport()
        self._segment: Place | None = None
        self._held: dict[str, Any] = {}

    @property
    def counts(self) -> Counts:
        """All bytes so far."""
        ways = (self._bytes, self._arena)
        return Counts(sum(w.shared for w in ways), sum(w.copied for w in ways))

    def hand(self, rows: Rows, carry: Carry) -> tuple[Rows | None, Any]:
        """What stays here of a value, and what travels in its place (None: the rows themselves)."""
        if carry.way == REFERENCE:
            return rows, None
        if carry.way != ARENA:
            return rows, self._bytes.put(rows)
        self._use(carry)
        try:
            given = self._arena.put(rows, carry.due)
        except (MemoryError, OSError) as error:
            logging.getLogger("ridgeway").warning("a value travels as bytes: %s", error)
            return rows, self._bytes.put(rows)
        self._held[carry.key] = given
        return self._arena.get(given), given

    def take(self, given: Any) -> Rows:
        """The rows of what travelled. Raises StaleHandleError where its memory is gone."""
        way = self._bytes if isinstance(given, bytes) else self._arena
        rows: Rows = way.get(given)
        return rows

    def free(self, keys: Iterable[str]) -> None:
        """These values are needed no more."""
        for key in keys:
            if (given := self._held.pop(key, None)) is not None:
                self._arena.release(given)

    def close(self) -> None:
        """Give everything back."""
        self._held.clear()
        self._arena.close()

    def _use(self, carry: Carry) -> None:
        """Have an arena in the segment that the order names: one for each run."""
        if self._arena.arena is None or self._segment != carry.segment:
            self.close()
            self._arena, self._segment = ArenaTransport(self._open(carry)), carry.segment

    def _open(self, carry: Carry) -> Arena:
        try:
            return Arena(carry.budget, backing=carry.segment, on_full=self._move)
        except ValueError:  # a worker before us, which died, has values there that are still read
            return Arena(carry.budget, on_full=self._move)

    def _move(self, lacking: int) -> None:
        """Bring so many bytes, and more down to the low mark, by moving what is needed latest to disk."""
        arena = self._arena.arena
        assert arena is not None
        there = {(b.slot, b.generation): b for b in arena.blocks() if b.memory is not None and not b.moving}
        residents = [Resident(key, b.nbytes, b.due, b.nbytes / RELOAD) for key, b in there.items()]
        marks = Watermarks(int(HIGH * arena.budget), int(LOW * arena.budget))
        need = max(lacking, marks.excess(arena.used))
        for slot, generation in demote(residents, need, 0):
            arena.demote(slot, generation)
