"""How much memory a framework reserves for blocks that come and go: PyTorch's caching allocator, as a model.

Freed blocks stay with the allocator, and only some of them can be used again, so it reserves more than is
ever alive. The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings, for one
stream. It never gives memory back here; the real one does so before it fails.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Allocator", "Event", "Peak", "peak"]

MIB = 1 << 20
_ROUND = 512
_SMALL = MIB
_MIDDLE = 10 * MIB


@dataclass(frozen=True, slots=True)
class Event:
    """Block `block` begins to live with `nbytes`, or, where that is None, ends."""

    block: int
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that were alive, and that the allocator had reserved."""

    live: int
    reserved: int


@dataclass(slots=True)
class _Block:
    """A stretch of a segment, between `before` and `after`. `owner`: None where it is free."""

    start: int
    size: int
    small: bool
    owner: int | None = None
    before: _Block | None = None
    after: _Block | None = None


class Allocator:
    """PyTorch's caching allocator for one stream: best fit, split, coalesce, never give back.

    Sizes are rounded up to 512 bytes. Up to 1 MiB is cut from segments of 2 MiB, up to 10 MiB from
    segments of 20 MiB; more gets a segment of its own, rounded up to 2 MiB. A free block is split where the
    rest is 512 bytes or more (small) or above 1 MiB (large). `live`, `reserved`: bytes now; `peak`: the most.
    """

    def __init__(self) -> None:
        self.live = 0
        self.reserved = 0
        self.peak = Peak(0, 0)
        self._held: dict[int, _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._at: dict[int, _Block] = {}

    def alloc(self, id: int, nbytes: int) -> None:
        """Serve a request of `nbytes` under `id`. Raises ValueError for an id that is held."""
        if id in self._held:
            raise ValueError(f"block {id} is allocated already")
        size = max(-(-nbytes // _ROUND), 1) * _ROUND
        block = self._found(size, size <= _SMALL)
        self._split(block, size)
        block.owner = id
        self._held[id] = block
        self.live += block.size
        self.peak = Peak(max(self.peak.live, self.live), max(self.peak.reserved, self.reserved))

    def free(self, id: int) -> None:
        """Take back what was allocated under `id`. Raises ValueError for an id that is not held."""
        if id not in self._held:
            raise ValueError(f"block {id} is not allocated")
        block = self._held.pop(id)
        block.owner = None
        self.live -= block.size
        for other in (block.before, block.after):
            if other is not None and other.owner is None:
                self._forget(other)
        self._offer(_joined(block))

    def _found(self, size: int, small: bool) -> _Block:
        """The smallest free block that is large enough, the lowest of equals; else a new segment."""
        free = self._free[small]
        place = bisect_left(free, (size, 0))
        if place < len(free):
            block = self._at[free[place][1]]
            self._forget(block)
            return block
        segment = 2 * MIB if small else 20 * MIB if size < _MIDDLE else -(-size // (2 * MIB)) * 2 * MIB
        block = _Block(self.reserved, segment, small)
        self.reserved += segment
        return block

    def _split(self, block: _Block, size: int) -> None:
        """Cut `block` to `size`, unless the rest is too small to be worth it."""
        rest = block.size - size
        if rest < _ROUND or (not block.small and rest <= _SMALL):
            return
        tail = _Block(block.start + size, rest, block.small, None, block, block.after)
        if block.after is not None:
            block.after.before = tail
        block.size, block.after = size, tail
        self._offer(tail)

    def _offer(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.start))
        self._at[block.start] = block

    def _forget(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.start))]
        del self._at[block.start]


def _joined(block: _Block) -> _Block:
    """`block` together with its free neighbours."""
    first = block.before if block.before is not None and block.before.owner is None else block
    while first.after is not None and first.after.owner is None:
        first.size += first.after.size
        first.after = first.after.after
        if first.after is not None:
            first.after.before = first
    return first


def peak(events: Iterable[Event]) -> Peak:
    """The peak of a run in which blocks begin and end in this order."""
    allocator = Allocator()
    for event in events:
        if event.nbytes is None:
            allocator.free(event.block)
        else:
            allocator.alloc(event.block, event.nbytes)
    return allocator.peak
