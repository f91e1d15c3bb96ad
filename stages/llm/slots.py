"""Where KV caches lie: slots of tokens in one arena, in whole pages, under a budget of bytes. Pure.

The arena has the shape [layers, heads, tokens, width], twice (keys, values); a slot is a range of its tokens,
so the tokens of a layer and head lie side by side, and attention reads a slot without gathering. A sequence
that outgrows its slot and cannot grow in place goes on in another one: its cache is a chain of extents.
Pages of a slot go back one by one, whoever held them: the sequence, or the tree of prefixes after it. That
needs the arena: a slot with memory of its own gives nothing back before its last page is free.

Types (Jenga, Zhang et al., SOSP 2025, arXiv 2503.18292): one `Slots` for each number of bytes a token takes.
Layers with a sliding window release what has left the window; memory moves between the types through
`pipeline.buffers.layout`, which hands out arenas.

When not: one batch of like lengths that begins and ends together wants one tensor and no book-keeping.
"""

from __future__ import annotations

from pipeline.buffers.runs import Runs
from pipeline.errors import PlanError
from stages.llm.extents import PAGE, Extent, pages_of

__all__ = ["PAGE", "Extent", "Slots"]


class _Slot:
    """`live`: bit i is set while page i is held."""

    __slots__ = ("first", "live", "pages")

    def __init__(self, first: int, pages: int) -> None:
        self.first = first
        self.pages = pages
        self.live = _bits(0, pages)


class Slots:
    """Slots in an arena of `tokens` tokens, as many whole pages as `budget` bytes hold.

    `token_bytes`: keys and values of all layers for one token. Raises PlanError where not one page fits.
    Not for several threads at once: the owner locks.
    """

    def __init__(self, budget: int, token_bytes: int) -> None:
        if token_bytes < 1 or budget < PAGE * token_bytes:
            raise PlanError(
                f"the KV cache has {budget} bytes and a page of {PAGE} tokens takes {PAGE * token_bytes}: "
                "give it more memory"
            )
        self.token_bytes = token_bytes
        self.tokens = budget // (PAGE * token_bytes) * PAGE
        self.free_tokens = self.tokens
        self._free = Runs(self.tokens // PAGE)
        self._slots: dict[int, _Slot] = {}
        self._next = 0

    @property
    def free_bytes(self) -> int:
        """Bytes of the pages that nobody holds, in one run or in many."""
        return self.free_tokens * self.token_bytes

    @property
    def largest(self) -> int:
        """Tokens of the largest slot that `reserve` would give now."""
        return self._free.longest * PAGE

    def fits(self, prompt: int, new: int) -> bool:
        """Whether one slot has room now for so many tokens of a prompt, the cached ones left out, and new."""
        return prompt + new <= self.largest

    def reserve(self, tokens: int) -> int | None:
        """A slot for at least so many tokens, at least one page; None where no run of pages is that long.

        O(log F + F moved) for F free runs. Ids are never used twice. Raises ValueError for less than a token.
        """
        if tokens < 1:
            raise ValueError(f"a slot holds a token or more, asked for {tokens}")
        pages = pages_of(tokens)
        first = self._free.take(pages)
        if first is None:
            return None
        self.free_tokens -= pages * PAGE
        self._slots[self._next] = _Slot(first, pages)
        self._next += 1
        return self._next - 1

    def grow(self, slot: int, tokens: int) -> bool:
        """Make the slot hold at least so many tokens, in place; False, and no change, where that cannot be.

        It cannot where the pages behind it are held, or where its own last page has been released.
        """
        found = self._slots[slot]
        more = pages_of(tokens) - found.pages
        if more <= 0:
            return True
        if not found.live >> (found.pages - 1) or not self._free.take_at(found.first + found.pages, more):
            return False
        self.free_tokens -= more * PAGE
        found.live |= _bits(found.pages, found.pages + more)
        found.pages += more
        return True

    def offset(self, slot: int) -> int:
        """Where in the arena the slot begins, in tokens."""
        return self._slots[slot].first * PAGE

    def capacity(self, slot: int) -> int:
        """Tokens up to the end of the slot, those of released pages counted."""
        return self._slots[slot].pages * PAGE

    def rest(self, slot: int, start: int) -> Extent:
        """The whole pages from `start` tokens on to the end: what a finished sequence did not fill."""
        stop = self.capacity(slot)
        return Extent(slot, min(pages_of(start) * PAGE, stop), stop)

    def release(self, extent: Extent) -> None:
        """Give the pages of an extent back; the slot is gone with its last one. An empty extent is nothing.

        Raises ValueError for pages that are not held: released before, or of another slot.
        """
        found = self._slots.get(extent.slot)
        first, stop = extent.start // PAGE, pages_of(extent.stop)
        if stop <= first:
            return
        mask = _bits(first, stop)
        if found is None or extent.start % PAGE or found.live & mask != mask:
            raise ValueError(f"{extent} is not held: was it released before, or does it not begin a page?")
        found.live ^= mask
        self._free.give(found.first + first, stop - first)
        self.free_tokens += (stop - first) * PAGE
        if not found.live:
            del self._slots[extent.slot]


def _bits(start: int, stop: int) -> int:
    return (1 << stop) - (1 << start)
