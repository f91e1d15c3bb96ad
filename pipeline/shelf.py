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
from threading import Lock, Thread
from typing import Any

from pipeline.buffers.arena import Arena
from pipeline.buffers.gpu_values import Fetched, GpuValues, called, is_there
from pipeline.buffers.handles import Handle, Place
from pipeline.buffers.reader import Reader
from pipeline.buffers.refuges import DISK, disk
from pipeline.buffers.tiers import Resident, Watermarks, choose, demote
from pipeline.buffers.transports import ArenaTransport, BytesTransport
from pipeline.compressed import Shrunk, shrunk
from pipeline.handover import ARENA, CUDA_IPC, ON_GPU, REFERENCE
from pipeline.rows import Rows
from pipeline.timeline import Counts

HIGH, LOW = 0.9, 0.7
"""Shares of an arena: above the one values move to disk, down to the other."""

WARMING = "ridgeway-warming"
"""The name of the thread that touches the first pages of an arena."""

Token = tuple[int, int]
"""Slot and generation of a value in shared memory: what it is called when it is freed. No two are alike, nor
is that of a value the same when it is made again."""


@dataclass(frozen=True, slots=True)
class Carry:
    """How a value is handed over: the way, and for an arena the segments of the lane and their bytes.

    The first segment that no other process has used is the worker's: a second one is for the process that
    follows it if it dies. `folder`: where values go that move to disk. `due`: when the value is needed,
    larger is later. `run`: a name of its own for each run, since those of segments come round again.
    `threads`: those of the lane, which copy a large value together, also where the next batch is there.
    `device`: the value holds tensors of a GPU; `warm`: bytes of the arena to be touched before they are used;
    `bury`: a process has died.
    `link`: bytes/s of a way by bytes on which vectors may travel as int8 (`pipeline.compressed`); 0: never.
    """

    way: str = REFERENCE
    run: str = ""
    segments: tuple[Place, ...] = ()
    budget: int = 0
    folder: Path | None = None
    due: int = 0
    threads: int = 1
    link: float = 0.0
    device: bool = False
    warm: int = 0
    bury: bool = False


BY_REFERENCE = Carry()


class Shelf:
    """The values of one process; for several threads, but only one at a time hands values of a lane."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._bytes = BytesTransport()
        self._reader = Reader()
        self._reading = ArenaTransport(None, self._reader)
        self._arenas: dict[tuple[str, tuple[Place, ...]], ArenaTransport | None] = {}
        self._held: dict[Token, ArenaTransport] = {}
        self._over: set[str] = set()
        self._lock = Lock()
        self._gpu = GpuValues()

    @property
    def used(self) -> int:
        """Bytes of our values that lie in shared memory."""
        with self._lock:
            return sum(way.arena.used for way in self._arenas.values() if way and way.arena)

    def hand(self, rows: Rows, carry: Carry, moved: Counts | None = None) -> tuple[Rows | None, Any]:
        """What stays here of a value, and what travels in its place (None: the rows themselves).

        `moved`: where what this moves is counted; all of it is in `counts`.
        """
        if carry.way == REFERENCE:
            return rows, None
        moved = moved or Counts()
        if carry.way == CUDA_IPC:
            return None, self._gpu.lend(rows, carry.run)
        if carry.way in ON_GPU:
            return None, self._gpu.hand(rows, carry.due)
        way = self._arena(carry) if carry.way == ARENA else None
        given = self._put(way, self._fetched(rows, moved) if carry.device else rows, carry, moved)
        self._tell(moved, Counts(copied=given.nbytes if isinstance(given, Handle) else len(given)))
        name = token(given)
        if name is None or way is None:
            return rows, given
        with self._lock:
            self._held[name] = way
        return None, given  # no view of it here, else it could not move to disk

    def _fetched(self, rows: Rows, moved: Counts) -> Any:
        """Rows with tensors of a GPU as they travel by way of the host."""
        found, more = self._gpu.down(rows)
        self._tell(moved, more)
        return found

    def _put(self, way: ArenaTransport | None, rows: Any, carry: Carry, moved: Counts) -> Any:
        """A handle, or a message."""
        if way is not None:
            try:
                return way.put(rows, carry.due)
            except (MemoryError, OSError) as error:
                logging.getLogger("ridgeway").warning("a value travels as bytes: %s", error)
        return self._bytes.put(shrunk(rows, carry.link, moved) if carry.link else rows)

    def take(self, given: Any, moved: Counts | None = None) -> Rows:
        """The rows of what travelled. Raises StaleHandleError where its memory is gone."""
        if is_there(given):
            found, more = self._gpu.take(given)
            self._tell(moved, more)
        elif isinstance(given, Handle):
            found = self._reading.get(given)
            self._tell(moved, Counts(shared=given.nbytes))
        else:
            found = self._bytes.get(given)
            self._tell(moved, Counts(copied=len(given)))
        if isinstance(found, Fetched):
            found, more = self._gpu.up(found)
            self._tell(moved, more)
        rows: Rows = found.restore() if isinstance(found, Shrunk) else found
        return rows

    def _tell(self, moved: Counts | None, more: Counts) -> None:
        if moved is not None:
            moved.add(more)
        with self._lock:
            self.counts.add(more)

    def begin(self, lane: str, carry: Carry, freed: Iterable[Token]) -> None:
        """Before a batch of a lane, by torch's name: what is freed makes room, and an arena opens in time."""
        self._gpu.lane = lane
        if carry.bury:
            self.bury()
        self.free(freed)
        if carry.warm:
            self._arena(carry)

    def bury(self) -> None:
        """Free what only dead processes still had, and unmap what the dead made."""
        with self._lock:
            arenas = [way.arena for way in self._arenas.values() if way and way.arena]
        for arena in arenas:
            arena.collect()
        self._reader.forget()
        self._gpu.bury()

    def free(self, tokens: Iterable[Token]) -> None:
        """These values are needed no more. Those that are not here, or not any more, are left out."""
        with self._lock:
            found = {name: self._held.pop(name, None) for name in tokens}
        for name, way in found.items():
            self._gpu.free(name)
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
                    self._held = {name: other for name, other in self._held.items() if other is not way}
                    way.arena.close()
        self._gpu.close(run)
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
    return (given.slot, given.generation) if isinstance(given, Handle) else called(given)


def _open(place: Place, carry: Carry) -> Arena | None:
    """An arena in a segment; None where it is out of reach, or another process has values there.

    That one may have died: its values are still read.
    """
    try:
        arena = Arena(carry.budget, carry.folder, backing=place, threads=carry.threads)
    except (ValueError, OSError):
        return None
    if carry.warm:
        Thread(target=arena.warm, args=(carry.warm,), name=WARMING, daemon=True).start()
    arena.on_full = partial(_relieve, weakref.proxy(arena), carry.folder)
    return arena


def _relieve(arena: Arena, folder: Path | None, lacking: int) -> None:
    """Bring so many bytes, and more down to the low mark, by moving what is needed latest to the next tier.

    Below shared memory that is the disk. Raises MemoryError where it has no room.
    """
    there = {(b.slot, b.generation): b for b in arena.blocks() if b.memory is not None and not b.moving}
    residents = [Resident(key, b.nbytes, b.due, b.nbytes / DISK) for key, b in there.items()]
    marks = Watermarks(int(HIGH * arena.budget), int(LOW * arena.budget))
    freed = 0
    for key in demote(residents, max(lacking, marks.excess(arena.used)), 0):
        below, nbytes = disk(folder), there[key].nbytes
        if below.room < nbytes and freed >= lacking:
            return  # the rest would leave for the low mark only
        choose([below], nbytes)
        arena.demote(*key)
        freed += nbytes
