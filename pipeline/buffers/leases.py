"""Leases between processes, in a table at the head of shared memory, without atomic instructions.

Each reader has a row of counts of its own, one per slot, so every cell has a single writer; the owner adds up
a slot's column. A slot is reused once its owner has released it and the column is zero. A reader that died
holds nothing: its identity tells, and its row goes to the next.

Why nothing is reused under a reader: it takes its lease under a shared file lock and, under the same lock,
compares the generation; the owner ends a generation and reads the column under the exclusive lock. So either
the owner sees the lease, or the reader sees the new generation and raises. The kernel drops the lock of
whoever dies. In a run it does not even come to that: the producer keeps its own reference until its
dependents are done, since Dask keeps a dependency so long, and by then they hold their leases.

To end a lease takes no lock: the owner may see it late, which keeps the slot a little longer. This may happen
in any finalizer, also amid another piece of this code, which is what `Later` is for.
"""

from __future__ import annotations

import fcntl
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.buffers.identity import is_alive

SLOTS = 4096
"""Blocks that an arena can hold at a time."""
READERS = 128
"""Processes that can read an arena at a time."""
FREE, MEMORY, DISK = 0, 1, 2
"""States of a slot: nothing in it, its block in memory, its block in a file."""

_MAGIC = int.from_bytes(b"ridgeway", "little")
_OWNER, _FOLDER, _WORDS = 256, 1024, 4096
_NAMES = _WORDS + 16 * SLOTS
_NAME = 128
_CELLS = _NAMES + _NAME * READERS
DATA = -(-(_CELLS + 4 * READERS * SLOTS) // 4096) * 4096
"""Bytes before the data. Nearly all of it is never touched, and then takes no memory."""


class Header:
    """The table: who owns the segment, the generation and state of each slot, who reads and what."""

    def __init__(self, memory: Any) -> None:
        view = memoryview(memory)
        self._front = view[:_OWNER].cast("Q")
        self._owner = np.frombuffer(view, "S256", 1, _OWNER)
        self._folder = np.frombuffer(view, "S2048", 1, _FOLDER)
        self._words = view[_WORDS:_NAMES].cast("Q")
        self._names = np.frombuffer(view, f"S{_NAME}", READERS, _NAMES)
        self.cells: NDArray[np.uint32] = np.frombuffer(view, np.uint32, READERS * SLOTS, _CELLS).reshape(
            READERS, SLOTS
        )

    def found(self, owner: str, number: int) -> None:
        """Begin a table. `number` tells apart the arenas of one process; generations begin with it."""
        self._owner[0] = owner.encode()
        for slot in range(SLOTS):
            self._words[2 * slot] = number << 32
        self._front[1] = number
        self._front[0] = _MAGIC

    def is_of(self, owner: str, number: int) -> bool:
        """Whether this is the segment that a handle means."""
        front = self._front
        return bool(front[0] == _MAGIC and front[1] == number and self._owner[0] == owner.encode())

    @property
    def folder(self) -> str:
        """Where blocks are that went to disk."""
        return bytes(self._folder[0]).decode()

    @folder.setter
    def folder(self, path: str) -> None:
        self._folder[0] = path.encode()

    @property
    def closed(self) -> bool:
        """Whether the owner has done with the arena: nothing new will come."""
        return bool(self._front[3])

    def close(self) -> None:
        """By the owner, at its end."""
        self._front[3] = 1

    def generation(self, slot: int) -> int:
        """Of the block that is in the slot, or of the next one."""
        return int(self._words[2 * slot])

    def state(self, slot: int) -> int:
        """FREE, MEMORY or DISK."""
        return int(self._words[2 * slot + 1])

    def mark(self, slot: int, generation: int, state: int) -> None:
        """By the owner, under the exclusive lock unless nobody can know of the slot."""
        self._words[2 * slot + 1] = state
        self._words[2 * slot] = generation

    def claim(self, identity: str, alive: Callable[[str], bool] = is_alive) -> int:
        """A row for a reader, free or of a dead one; under the exclusive lock. Raises RuntimeError."""
        for row in range(READERS):
            name = self._name(row)
            if not name or not alive(name):
                self.cells[row] = 0
                self._names[row] = identity.encode()
                self._front[2] = max(self._front[2], row + 1)
                return row
        raise RuntimeError(f"{READERS} processes read this arena already: use fewer workers on a host")

    def leave(self, row: int) -> None:
        """Give a row back that holds no leases; by its reader."""
        if not self.cells[row].any():
            self._names[row] = b""

    def leases(self) -> NDArray[np.uint64]:
        """How many there are of each slot, those of the dead included until `bury`."""
        return np.asarray(self.cells[: self._front[2]].sum(axis=0, dtype=np.uint64))

    def bury(self, alive: Callable[[str], bool] = is_alive) -> None:
        """Take back the rows of dead readers; under the exclusive lock."""
        for row in range(self._front[2]):
            name = self._name(row)
            if name and not alive(name):
                self.cells[row] = 0
                self._names[row] = b""

    def _name(self, row: int) -> str:
        return bytes(self._names[row]).decode("ascii", "replace")


@contextmanager
def locked(fd: int, how: int = fcntl.LOCK_EX) -> Iterator[bool]:
    """The file's lock among processes. With `LOCK_NB`: False where somebody else has it."""
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


class Later:
    """A lock, and work that may be handed in while anybody holds it, this very thread included.

    A finalizer runs wherever memory is asked for, and so must wait for nothing. It leaves its item here;
    whoever holds the lock does what was left, at the latest on giving it back.
    """

    def __init__(self, do: Callable[[Any], None]) -> None:
        self._do = do
        self._lock = Lock()
        self._items: deque[Any] = deque()

    def add(self, item: Any) -> None:
        """Have it done, now or by who holds the lock."""
        self._items.append(item)
        self._settle()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._settle()

    def _settle(self) -> None:
        while self._items and self._lock.acquire(blocking=False):
            try:
                while self._items:
                    self._do(self._items.popleft())
            finally:
                self._lock.release()


def weakly(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """A bound method that does not keep its object alive, and is nothing after it.

    So that an object and its `Later` are no cycle, and its memory goes the moment it is let go.
    """
    ref = weakref.WeakMethod(method)

    def call(item: Any) -> None:
        found = ref()
        if found is not None:
            found(item)

    return call
