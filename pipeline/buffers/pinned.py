"""A pool of pinned buffers: reused, and bounded by bytes.

A buffer is pinned once: to pin per tensor can cost more than it saves (PyTorch's tutorial on pinned memory).
Its size is a power of two, as in torch's own allocator, which gives nothing less. When not: for what is read
or written once and is larger than all that comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.buffers.leases import Later

__all__ = ["LEAST", "Pinned", "ended", "rounded"]

LEAST = 4096
"""Bytes of the smallest buffer: a page."""


def rounded(nbytes: int) -> int:
    """Bytes of the buffer for so many."""
    return max(LEAST, 1 << (nbytes - 1).bit_length())


def ended(event: Any) -> bool:
    """Whether an event has passed; None has."""
    return event is None or bool(event.query())


def _pin(nbytes: int) -> Any:
    import torch

    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def _trim() -> None:
    """Have torch give the memory of dropped buffers back; older releases keep it."""
    import torch

    getattr(torch.accelerator, "empty_host_cache", lambda: None)()


class Pinned:
    """At most `limit` bytes of buffers, in use or idle. For several threads.

    `held`: bytes of them all. `make`: a new one, as a tensor uint8[n]. `trim`: has the memory of dropped ones
    go back to the system.
    """

    def __init__(
        self, limit: int, make: Callable[[int], Any] = _pin, trim: Callable[[], None] = _trim
    ) -> None:
        self.limit = limit
        self.held = 0
        self._make, self._trim = make, trim
        self._idle: list[tuple[Any, Any]] = []
        self._later = Later(self._idle.append)

    def take(self, nbytes: int) -> Any:
        """A buffer, uint8[rounded(nbytes)], whose last copy has ended; None where there is no room.

        It may wait for the last copy of an idle buffer, never for another thread.
        """
        size = rounded(nbytes)
        with self._later:
            fitting = [pair for pair in self._idle if pair[0].numel() == size]
            found = next((pair for pair in fitting if ended(pair[1])), None)
            fresh = found is None and self._reserve(size)
            if not fresh and found is None and fitting:
                found = fitting[0]
            self._drop(found)
        if fresh:
            return self._fresh(size)
        if found is not None and found[1] is not None:
            found[1].synchronize()
        return found and found[0]

    def give(self, memory: Any, event: Any = None) -> None:
        """A buffer is idle once the event has passed. May be called from a finalizer."""
        self._later.add((memory, event))

    @contextmanager
    def used(self, memory: Any) -> Iterator[None]:
        """Where the block fails, nobody knows what still writes the buffer: it is never used again."""
        try:
            yield
        except BaseException:
            if memory is not None:
                self._forget(memory.numel())
            raise

    def _reserve(self, size: int) -> bool:
        """Whether there is room for a new buffer, if need be in place of idle ones of other sizes."""
        spare = [pair for pair in self._idle if pair[0].numel() != size and ended(pair[1])]
        room = self.limit - self.held + sum(pair[0].numel() for pair in spare)
        if size > room:
            return False
        self.held += size
        dropped = 0
        while self.held > self.limit:
            dropped = spare[0][0].numel()
            self.held -= dropped
            self._drop(spare.pop(0))
        if dropped:
            self._trim()
        return True

    def _drop(self, pair: tuple[Any, Any] | None) -> None:
        for i, idle in enumerate(self._idle):
            if idle is pair:
                del self._idle[i]
                return

    def _fresh(self, size: int) -> Any:
        try:
            return self._make(size)
        except BaseException:
            self._forget(size)
            raise

    def _forget(self, nbytes: int) -> None:
        with self._later:
            self.held -= nbytes
