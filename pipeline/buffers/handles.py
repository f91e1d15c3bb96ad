"""What travels in place of a value, and what a way to travel is.

A block is the buffers of one value, side by side. A lease says that a process still reads a block. A
generation counts the blocks that a slot has held, so that a handle to an earlier one is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class StaleHandleError(Exception):
    """A handle to a block that has been released: whoever held it on did so without a lease."""


class OwnerGoneError(StaleHandleError):
    """A handle to a block that went with its process: the value has to be computed again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where bytes are. `kind`: "memory" (a memfd, opened through its owner's descriptors) or "file".

    `path`: "/proc/1234/fd/17", or that of the file. `owner`: see `pipeline.buffers.identity`.
    """

    kind: str
    path: str
    owner: str


@dataclass(frozen=True, slots=True)
class Handle:
    """A value that is somewhere else; pickles in a few hundred bytes.

    `offset`, `nbytes`: the block within its place. `head`: the pickle without its buffers. `frames`: offset
    within the block and bytes of each buffer. Where these two would be long they lie in the block themselves:
    `head` is then empty, and `frames` says where they are (see `pipeline.buffers.frames`).
    """

    place: Place
    slot: int
    generation: int
    offset: int
    nbytes: int
    head: bytes
    frames: tuple[tuple[int, int], ...]


class Transport(Protocol):
    """A way for values to travel. Each names its `shared` and `copied` bytes so far."""

    name: str

    @property
    def shared(self) -> int:
        """Bytes that readers were given without a copy."""
        ...

    @property
    def copied(self) -> int:
        """Bytes that were written or read anew."""
        ...

    def put(self, value: Any, due: int = 0) -> Any:
        """What travels: the value itself, a Handle, or bytes. `due`: when it is needed; larger is later."""
        ...

    def get(self, given: Any) -> Any:
        """The value. Its arrays are views that cannot be written, where that is possible."""
        ...

    def release(self, given: Any) -> None:
        """The producer needs it no more; those who have it keep it."""
        ...
