"""The reading side of arenas: each is mapped once, and a block is leased while a view of it lives."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Container
from functools import partial
from threading import Lock

import numpy as np

from pipeline.buffers import segment
from pipeline.buffers.handles import Handle, OwnerGoneError, Place, StaleHandleError
from pipeline.buffers.identity import is_alive, own, same_host
from pipeline.buffers.leases import DISK, Header, Later, locked


class Reader:
    """What a process reads of others' arenas, and of its own; for any number of threads.

    `identity`: who reads. `alive`: who of the other readers still lives.
    """

    def __init__(self, identity: str | None = None, alive: Callable[[str], bool] = is_alive) -> None:
        self.identity = own() if identity is None else identity
        self._alive = alive
        self._lock = Lock()
        self._open: dict[tuple[Place, int], _Attached] = {}

    def view(self, handle: Handle) -> memoryview:
        """The block, under a lease that ends with the last view of it, however that came about.

        Raises StaleHandleError where the block was released, OwnerGoneError where it died with its process,
        and ValueError for a handle from another host.
        """
        arena = self._attach(handle.place, handle.generation >> 32)
        if arena.lease(handle.slot, handle.generation) == DISK:
            try:
                file = segment.block_file(arena.header.folder, handle.slot, handle.generation)
                return segment.read(file, handle.place.owner)
            finally:
                arena.later.add(handle.slot)
        block = np.frombuffer(arena.memory, np.uint8, handle.nbytes, handle.offset)
        end = weakref.finalize(block, arena.later.add, handle.slot)
        end.atexit = False  # threads may read on until the very end; our death then ends the lease
        return block.data

    def forget(self) -> None:
        """Unmap the arenas whose owners are dead or done, but for what is still read of them."""
        with self._lock:
            self._forget()

    def close(self, places: Container[Place] | None = None) -> None:
        """Unmap all arenas, or those in `places`, but for what is still read of them."""
        with self._lock:
            for key in [key for key in self._open if places is None or key[0] in places]:
                self._open.pop(key).leave()

    def _attach(self, place: Place, number: int) -> _Attached:
        with self._lock:
            found = self._open.get((place, number))
            if found is None:
                self._forget()
                found = self._open[place, number] = _Attached(place, number, self.identity, self._alive)
            return found

    def _forget(self) -> None:
        for key, arena in list(self._open.items()):
            if arena.header.closed or not is_alive(key[0].owner):
                del self._open[key]


class _Attached:
    """An arena as mapped here, with our row of its leases."""

    def __init__(self, place: Place, number: int, identity: str, alive: Callable[[str], bool]) -> None:
        if not same_host(place.owner):
            raise ValueError(f"the memory of {place.owner} is out of reach of {identity}: send bytes instead")
        self._fd = segment.attach(place)
        weakref.finalize(self, os.close, self._fd)
        self.memory = mmap.mmap(self._fd, 0)
        self.header = Header(self.memory)
        if not self.header.is_of(place.owner, number):
            raise OwnerGoneError(f"{place.path} is another arena now: compute the value again")
        with locked(self._fd):
            self.row = self.header.claim(identity, alive)
        self.later = Later(partial(_end_lease, self.header, self.row))

    def lease(self, slot: int, generation: int) -> int:
        """Take a lease and say where the block is. Raises StaleHandleError without having taken one."""
        with self.later, locked(self._fd, fcntl.LOCK_SH):
            if self.header.generation(slot) != generation:
                raise StaleHandleError(
                    f"slot {slot} no longer holds generation {generation}: it was released"
                )
            self.header.cells[self.row, slot] += 1
            return self.header.state(slot)

    def leave(self) -> None:
        with self.later:
            self.header.leave(self.row)


def _end_lease(header: Header, row: int, slot: int) -> None:
    header.cells[row, slot] -= 1
