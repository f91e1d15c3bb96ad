"""The ways for values to travel that every machine has: by reference, by arena, by file, by bytes.

Which one an edge takes is the plan's choice. By reference: within a process. By arena: between processes of a
host; the producer writes once, readers map. By file: the same where memory cannot be shared, or for values
that are needed much later. By bytes: between hosts. What is small always goes by bytes, which is fastest.
"""

from __future__ import annotations

import weakref
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from pipeline.buffers import segment
from pipeline.buffers.arena import Arena
from pipeline.buffers.frames import fold, pack, pack_whole, places, unfold, unpack
from pipeline.buffers.handles import Handle, Place, StaleHandleError
from pipeline.buffers.identity import own
from pipeline.buffers.reader import Reader
from pipeline.buffers.sweep import claim, remove

SMALL = 8192
"""Bytes up to which a value without large buffers travels as they are. Ours, a guess: not measured."""


class Counting:
    """Bytes shared and copied so far, from all threads."""

    def __init__(self) -> None:
        self.shared = 0
        self.copied = 0
        self._counting = Lock()

    def _count(self, shared: int = 0, copied: int = 0) -> None:
        with self._counting:
            self.shared += shared
            self.copied += copied


class ReferenceTransport(Counting):
    """The value itself, to threads of the same process."""

    name = "reference"

    def put(self, value: Any, due: int = 0) -> Any:
        """The value."""
        return value

    def get(self, given: Any) -> Any:
        """The value."""
        self._count(shared=int(getattr(given, "nbytes", 0)))
        return given

    def release(self, given: Any) -> None:
        """Nothing: Python counts its references."""


class BytesTransport(Counting):
    """The pickle, copied into the message and out of it, to wherever messages go."""

    name = "bytes"

    def put(self, value: Any, due: int = 0) -> bytes:
        """The pickle."""
        given = pack_whole(value)
        self._count(copied=len(given))
        return given

    def get(self, given: Any) -> Any:
        """The value; its arrays cannot be written, as those of other transports."""
        self._count(copied=len(given))
        return unpack(given, ())

    def release(self, given: Any) -> None:
        """Nothing: the message is its receiver's."""


class _BlockTransport(Counting):
    """What arenas and files have in common: blocks and their handles, and bytes for what is small."""

    def put(self, value: Any, due: int = 0) -> Any:
        """A Handle, or bytes. Copies each buffer once. Raises MemoryError or OSError for lack of room."""
        head, buffers = pack(value)
        if not buffers and len(head) <= SMALL:
            self._count(copied=len(head))
            return head
        head, frames, buffers = fold(head, buffers)
        place, slot, generation, offset = self._store(buffers, due, type(value).__name__)
        sizes = [b.nbytes for b in buffers]
        self._count(copied=sum(sizes))
        return Handle(place, slot, generation, offset, sum(places(sizes)[-1]), head, frames)

    def get(self, given: Any) -> Any:
        """The value, as views of its block. Raises StaleHandleError for a block that is no more."""
        if not isinstance(given, Handle):
            self._count(copied=len(given))
            return unpack(given, ())
        value = unfold(given.head, given.frames, self._view(given))
        self._count(shared=given.nbytes)
        return value

    def _store(self, buffers: list[memoryview], due: int, kind: str) -> tuple[Place, int, int, int]:
        raise NotImplementedError

    def _view(self, handle: Handle) -> memoryview:
        raise NotImplementedError


class ArenaTransport(_BlockTransport):
    """Blocks of shared memory, to other processes of this host. Without an arena it can only read.

    A reader holds its lease until the last view of the value is gone, so a stage whose output aliases its
    input needs to do nothing about it.
    """

    name = "arena"

    def __init__(self, arena: Arena | None = None, reader: Reader | None = None) -> None:
        super().__init__()
        self.arena = arena
        self.reader = Reader() if reader is None else reader

    def release(self, given: Any) -> None:
        """The producer needs it no more. Raises StaleHandleError where that was said before."""
        if isinstance(given, Handle):
            self._ours(given).release(given.slot, given.generation)

    def close(self) -> None:
        """Give up the arena and what is mapped of others, but for what is still read."""
        self.reader.close()
        if self.arena is not None:
            self.arena.close()

    def _store(self, buffers: list[memoryview], due: int, kind: str) -> tuple[Place, int, int, int]:
        if self.arena is None:
            raise ValueError("this transport was made for reading only: give it an arena")
        return self.arena.place, *self.arena.put(buffers, due, kind)

    def _view(self, handle: Handle) -> memoryview:
        return self.reader.view(handle)

    def _ours(self, handle: Handle) -> Arena:
        if self.arena is None or self.arena.place != handle.place:
            raise ValueError(f"{handle.place.path} is not ours: only who put a value releases it")
        return self.arena


class FileTransport(_BlockTransport):
    """A file for each value, in a folder that goes with its owner, to all who see that folder."""

    name = "file"

    def __init__(self, base: Path | None = None) -> None:
        super().__init__()
        self.folder = claim(base)
        self._numbers = count()
        self._end = weakref.finalize(self, remove, self.folder)

    def release(self, given: Any) -> None:
        """Remove the file; who has mapped it, keeps it. Raises StaleHandleError where it is gone already."""
        if not isinstance(given, Handle):
            return
        try:
            Path(given.place.path).unlink()
        except FileNotFoundError as error:
            raise StaleHandleError(f"{given.place.path} was released before") from error

    def close(self) -> None:
        """Remove the folder."""
        self._end()

    def _store(self, buffers: list[memoryview], due: int, kind: str) -> tuple[Place, int, int, int]:
        number = next(self._numbers)
        file = segment.block_file(self.folder, number, 0)
        starts = [start for start, _ in places(b.nbytes for b in buffers)]
        segment.write(file, list(zip(starts, buffers, strict=True)))
        return Place("file", str(file), own()), number, 0, 0

    def _view(self, handle: Handle) -> memoryview:
        return segment.read(Path(handle.place.path), handle.place.owner)
