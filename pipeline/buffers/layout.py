"""Where blocks lie in one range of bytes: large pages that fit every slot size. Pure; it touches no memory.

Jenga (Zhang et al., SOSP 2025, arXiv 2503.18292): a large page is the least common multiple of the slot
sizes, so any size fills it without a rest. A page belongs to one kind and size at a time and goes back to the
common pool when its last slot is free; so memory moves between kinds, which a static partition cannot do,
and a small value does not take a page of the largest size. The guard and the two bounds are ours.

The guard: where the multiple is above `MOST` times the largest size, or above the whole range, sizes are
rounded up to base * 2**k, base being the smallest; the page is then the largest of them, and a slot is less
than twice its size.

The bounds, for all traces: a kind takes a new page only when its pages of that size are full, so `held` is
never above a static partition that gives each kind and size its own peak in whole pages; every page in use
holds a live slot, so where the page is the largest size it is never above paging with the largest size.

When not: values of one size (a list of free slots does), or all far above the largest slot size (runs of
pages, best fit, as with any allocator).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from pipeline.buffers.runs import Runs
from pipeline.errors import PlanError

__all__ = ["ALIGN", "DEFAULT_SIZES", "MOST", "Layout", "Slot"]

ALIGN = 64
"""All offsets are multiples of it: a cache line, and the widest vector register."""
DEFAULT_SIZES = tuple(4096 << k for k in range(9))
"""4 KiB to 1 MiB: no two share a page of the kernel, and a value above 4 KiB fills over half of its slot."""
MOST = 8
"""A large page is at most so many times the largest slot size. Ours: a kind with one value holds a page."""


@dataclass(frozen=True, slots=True)
class Slot:
    """`nbytes` from `offset` on, for a value of this `kind`; what was asked for, without the rounding."""

    offset: int
    nbytes: int
    kind: str


class Layout:
    """Slots and runs of large pages in `total` bytes; the bytes after the last whole page are not used.

    `sizes`: the slot sizes, ascending, rounded up to `ALIGN` and by the guard; `page`: bytes of a large page.
    `used`: bytes asked for and not yet freed; `held`: bytes of the large pages that hold them.
    Not for several threads at once: the owner locks. Raises PlanError for sizes that are not positive, and
    for a range that is smaller than one page.
    """

    def __init__(self, total: int, sizes: tuple[int, ...] = DEFAULT_SIZES) -> None:
        self.total = total
        self.sizes, self.page = _rounded(sizes, total)
        self.used = 0
        self.held = 0
        self._runs = Runs(total // self.page)
        self._live: dict[int, Slot] = {}
        self._shelves: dict[tuple[str, int], _Shelf] = {}
        self._owner: dict[int, _Shelf] = {}

    @property
    def wasted(self) -> int:
        """Bytes that are held and hold nothing: ends of slots, and free slots of pages in use."""
        return self.held - self.used

    @property
    def largest(self) -> int:
        """Bytes of the largest request that would succeed now, whatever its kind."""
        return self._runs.longest * self.page

    def alloc(self, nbytes: int, kind: str) -> Slot | None:
        """Room for a value, or None. O(1) for slots, O(log F) for pages, with F free runs.

        Up to the largest slot size: a slot of the fullest page of this kind and size that has one. Above:
        whole pages from the shortest run that is long enough. Raises ValueError for a negative size.
        """
        if nbytes < 0:
            raise ValueError(f"a value takes no bytes or more, found {nbytes}")
        offset = self._slot(nbytes, kind) if nbytes <= self.sizes[-1] else self._pages(nbytes)
        if offset is None:
            return None
        slot = Slot(offset, nbytes, kind)
        self._live[offset] = slot
        self.used += nbytes
        return slot

    def free(self, slot: Slot) -> None:
        """Take a slot back. Raises ValueError for one that is not allocated, or not any more."""
        if self._live.get(slot.offset) != slot:
            raise ValueError(f"{slot} is not allocated: was it freed before, or made by another layout?")
        del self._live[slot.offset]
        self.used -= slot.nbytes
        number = slot.offset // self.page
        shelf = self._owner.get(number)
        if shelf is None:
            self._give(number, -(-slot.nbytes // self.page))
        elif shelf.give(number, slot.offset % self.page // shelf.size):
            del self._owner[number]
            self._give(number, 1)
            if not shelf.pages:
                del self._shelves[slot.kind, shelf.size]

    def _slot(self, nbytes: int, kind: str) -> int | None:
        """The offset of a free slot; None where that needs a page and none is left."""
        size = self.sizes[bisect_left(self.sizes, nbytes)]
        shelf = self._shelves.get((kind, size)) or _Shelf(size, self.page // size)
        if shelf.full:
            offset = self._pages(self.page)
            if offset is None:
                return None
            shelf.add(offset // self.page)
            self._owner[offset // self.page] = self._shelves[kind, size] = shelf
        number, index = shelf.take()
        return number * self.page + index * size

    def _pages(self, nbytes: int) -> int | None:
        """The offset of whole pages for so many bytes, now held; None where no run is long enough."""
        count = -(-nbytes // self.page)
        start = self._runs.take(count)
        if start is None:
            return None
        self.held += count * self.page
        return start * self.page

    def _give(self, start: int, count: int) -> None:
        self._runs.give(start, count)
        self.held -= count * self.page


class _Shelf:
    """The large pages of one kind and slot size, sorted by how many of their slots are free. O(1).

    Sets of slots and of counts are bits of an int: the lowest is the first free slot, or the fullest page.
    """

    def __init__(self, size: int, per_page: int) -> None:
        self.size = size
        self.pages: dict[int, int] = {}
        self._all = (1 << per_page) - 1
        self._by_count: dict[int, dict[int, None]] = {}
        self._counts = 0

    @property
    def full(self) -> bool:
        return not self._counts

    def add(self, page: int) -> None:
        """A page, empty as yet."""
        self._put(page, self._all)

    def take(self) -> tuple[int, int]:
        """The fullest page that has a free slot, and its first one."""
        page = next(iter(self._by_count[_lowest(self._counts)]))
        free = self._pop(page)
        self._put(page, free & (free - 1))
        return page, _lowest(free)

    def give(self, page: int, index: int) -> bool:
        """A slot is free again. True where the page was left empty: it is then no longer here."""
        free = self._pop(page) | 1 << index
        if free == self._all:
            return True
        self._put(page, free)
        return False

    def _put(self, page: int, free: int) -> None:
        self.pages[page] = free
        if free:
            count = free.bit_count()
            self._by_count.setdefault(count, {})[page] = None
            self._counts |= 1 << count

    def _pop(self, page: int) -> int:
        free = self.pages.pop(page)
        if free:
            count = free.bit_count()
            del self._by_count[count][page]
            if not self._by_count[count]:
                self._counts ^= 1 << count
        return free


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _rounded(sizes: tuple[int, ...], total: int) -> tuple[tuple[int, ...], int]:
    """The slot sizes as they will be, ascending, and the bytes of a large page."""
    if not sizes or min(sizes) < 1:
        raise PlanError(f"one slot size or more, each a byte or more, found {sizes}")
    found = sorted({-(-size // ALIGN) * ALIGN for size in sizes})
    page = math.lcm(*found)
    if page > min(MOST * found[-1], total):
        base = found[0]
        found = sorted({base << (-(-size // base) - 1).bit_length() for size in found})
        page = found[-1]
    if page > total:
        raise PlanError(f"a page takes {page} bytes, the range has {total}: make it larger, or slots smaller")
    return tuple(found), page
