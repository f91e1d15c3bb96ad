"""Where a process keeps the values that others read: written once into shared memory, and freed when told.

Each worker has a shelf, and the client has one to read with. What an order says (`Carry`) is obeyed: by
reference nothing happens, by arena the value moves into shared memory and only its handle is kept, by bytes
it becomes a message. Memory that runs low moves to disk what is needed latest.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from pipeline.buffers.arena import Arena
from pipeline.buffers.handles import Handle, Place
from pipeline.buffers.reader import Reader
from pipeline.buffers.tiers import Resident, Watermarks, demote
from pipeline.buffers.transports import ArenaTransport, BytesTransport, Counting
from pipeline.handover import ARENA, REFERENCE
from pipeline.rows import Rows

RELOAD = 1e9
"""Bytes/s at which a demoted value is read back, for choosing which one moves: a common NVMe disk."""
HIGH, LOW = 0.9, 0.7
"""Shares of an arena: above the one values move to disk, down to the other."""

Token = tuple[int, int]
"""Slot and generation of a value in shared memory: what it is called when it is freed. No two are alike, nor
is that of a value the same when it is made again."""


@dataclass(frozen=True, slots=True)
class Carry:
    """How a value is handed over: the way, and for an arena the segments of the lane and their bytes.

    The first segment that no other process has used is the worker's: a second one is for the process that
    follows it if it dies. `folder`: where values go that move to disk. `due`: when the value is needed,
    larger is later. `run`: a name of its own for each run, since those of segments come round again.
    `threads`: those of the lane, which are idle while it copies.
    """

    way: str = REFERENCE
    run: str = ""
    segments: tuple[Place, ...] = ()
    budget: int = 0
    folder: Path | None = None
    due: int = 0
    threads: int = 1


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
    """The values of one process. For one thread at a time, but for `close`; readers have their own."""

    def __init__(self) -> None:
        self._before = Counts()
        self._bytes = BytesTransport()
        self._reader = Reader()
        self._reading = ArenaTransport(None, self._reader)
        self._arenas: dict[tuple[str, tuple[Place, ...]], ArenaTransport | None] = {}
        self._held: dict[Token, ArenaTransport] = {}
        self._over: set[str] = set()
        self._lock = Lock()

    @property
    def counts(self) -> Counts:
        """All bytes so far."""
        with self._lock:
            arenas = [way for way in self._arenas.values() if way is not None]
        ways: list[Counts | Counting] = [self._before, self._bytes, self._reading, *arenas]
        return Counts(sum(w.shared for w in ways), sum(w.copied for w in ways))

    @property
    def used(self) -> int:
        """Bytes of our values that lie in shared memory."""
        return sum(way.arena.used for way in self._arenas.values() if way and way.arena)

    def hand(self, rows: Rows, carry: Carry) -> tuple[Rows | None, Any]:
        """What stays here of a value, and what travels in its place (None: the rows themselves)."""
        if carry.way == REFERENCE:
            return rows, None
        way = self._arena(carry) if carry.way == ARENA else None
        if way is None:
            return rows, self._bytes.put(rows)
        try:
            given = way.put(rows, carry.due)
        except (MemoryError, OSError) as error:
            logging.getLogger("ridgeway").warning("a value travels as bytes: %s", error)
            return rows, self._bytes.put(rows)
        name = token(given)
        if name is None:
            return rows, given
        self._held[name] = way
        return None, given  # no view of it here, else it could not move to disk

    def take(self, given: Any) -> Rows:
        """The rows of what travelled. Raises StaleHandleError where its memory is gone."""
        way = self._reading if isinstance(given, Handle) else self._bytes
        rows: Rows = way.get(given)
        return rows

    def free(self, tokens: Iterable[Token]) -> None:
        """These values are needed no more. Those that are not here, or not any more, are left out."""
        for name in tokens:
            way = self._held.pop(name, None)
            if way is not None and way.arena is not None:
                way.arena.release(*name)

    def close(self, run: str | None = None, places: Container[Place] | None = None) -> None:
        """Give everything back, or what a run had, whose segments were `places`.

        A batch of that run may still be under way: what it makes nobody wants.
        """
        with self._lock:
            self._over.update([] if run is None else [run])
            for key in [key for key in self._arenas if run is None or key[0] == run]:
                way = self._arenas.pop(key)
                if way is not None and way.arena is not None:
                    self._before.add(way.shared, way.copied)
                    self._held = {name: other for name, other in self._held.items() if other is not way}
                    way.arena.close()
        self._reader.close(places)

    def _arena(self, carry: Carry) -> ArenaTransport | None:
        """Our arena for what this lane makes in this run; None: there is no segment for us."""
        key = (carry.run, carry.segments)
        with self._lock:
            if key not in self._arenas and carry.run not in self._over:
                found = next(filter(None, (_open(place, carry) for place in carry.segments)), None)
                self._arenas[key] = None if found is None else ArenaTransport(found, self._reader)
                if found is None:
                    logging.getLogger("ridgeway").warning("there is no shared memory: values travel as bytes")
            return self._arenas.get(key)


def token(given: Any) -> Token | None:
    """What is freed of something that travels; None where that is all there is of it."""
    return (given.slot, given.generation) if isinstance(given, Handle) else None


def _open(place: Place, carry: Carry) -> Arena | None:
    """An arena in a segment; None where it is out of reach, or another process has values there.

    That one may have died: its values are still read.
    """
    try:
        arena = Arena(carry.budget, carry.folder, backing=place, threads=carry.threads)
    except (ValueError, OSError):
        return None
    arena.on_full = partial(_relieve, weakref.proxy(arena))
    return arena


def _relieve(arena: Arena, lacking: int) -> None:
    """Bring so many bytes, and more down to the low mark, by moving what is needed latest to disk."""
    there = {(b.slot, b.generation): b for b in arena.blocks() if b.memory is not None and not b.moving}
    residents = [Resident(key, b.nbytes, b.due, b.nbytes / RELOAD) for key, b in there.items()]
    marks = Watermarks(int(HIGH * arena.budget), int(LOW * arena.budget))
    for slot, generation in demote(residents, max(lacking, marks.excess(arena.used)), 0):
        arena.demote(slot, generation)
