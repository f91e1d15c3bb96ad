"""Prompts that were read, kept for those that begin alike: a radix tree over stored keys and values.

What a prompt's prefill gave is copied here when it is done (500 tokens of SmolLM2 took 24 ms, of a prefill
of half a second), as long as there is room that nobody else needs. Questions on the same documents, rounds
of a loop, and instructions that all prompts begin with find it here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence

from stages.llm.attention import Past, Slab
from stages.llm.extents import PAGE, Extent, cut
from stages.llm.network import Network
from stages.llm.pins import Pins, Returns
from stages.llm.preempt import Prefill
from stages.llm.radix import Node, Radix, Tokens
from stages.llm.store import Store
from stages.llm.worth import Worth

__all__ = ["Found", "Prefixes"]

_HALF_LIFE = 120.0
"""Seconds in which a use counts half as much: a few batches (ours)."""


class Found:
    """A cached prefix of `length` tokens, held until `Prefixes.drop`. `node` is None where there is none."""

    __slots__ = ("extents", "length", "node")

    def __init__(self, length: int = 0, extents: tuple[Extent, ...] = (), node: Node | None = None) -> None:
        self.length, self.extents, self.node = length, extents, node


class Prefixes:
    """At most `tokens` tokens, in memory of their own. `prefill`: seconds that reading tokens takes."""

    def __init__(
        self, network: Network, tokens: int, prefill: Prefill, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = Store(network, tokens)
        self._tree = Radix()
        self._worth = Worth(prefill, network.sizes.token_bytes, _HALF_LIFE)
        self._prefill = prefill
        self._pins: Pins[Hashable, Node] = Pins(Returns())
        self._clock = clock

    @property
    def used(self) -> int:
        """Tokens that are kept."""
        return self._store.used

    @property
    def idle(self) -> int:
        """Tokens that nobody reads now: `evict` gives up no more."""
        return self._tree.tokens - self._tree.locked

    def cached(self, tokens: Tokens) -> int:
        """How many tokens `match` would find."""
        return self._tree.cached(tokens)

    def match(self, tokens: Sequence[int]) -> Found:
        """The longest prefix that is here, held for the caller."""
        length, extents, node = self._tree.match(tokens)
        if not length:
            return Found()
        self._tree.lock(node)
        self._worth.use(node, self._clock())
        return Found(length, extents, node)

    def past(self, found: Found, start: int = 0) -> tuple[Past, ...]:
        """Keys and values of a prefix from token `start` on; nothing is copied."""
        chain = cut(found.extents, start, found.length)
        return tuple(self._store.view(extent) for extent in chain)

    def drop(self, found: Found) -> None:
        """The caller needs it no longer."""
        if found.node is not None:
            self._tree.unlock(found.node)

    def keep(self, tokens: Sequence[int], slab: Slab, slot: int, behind: int, room: int) -> None:
        """Keep the whole pages of `tokens`, which lie in a slot from token `behind` on.

        What is here already stays where it is. `room`: tokens that may be taken beside what is used; nothing
        is kept where that is too little, even if all gives way that nobody reads.
        """
        size = len(tokens) // PAGE * PAGE
        known, extents, node = self._tree.match([*tokens[:size], 0])  # one token more: all may be there
        if known >= size:
            return
        self._tree.lock(node)
        place = self._place(size - known, room)
        if place is not None:
            own = Extent(place, 0, size - known)
            self._store.view(own).write(slab, slot, known - behind)
            inserted = self._tree.insert(tokens[:size], (*extents, own))
            self._worth.use(inserted.node, self._clock())
        self._tree.unlock(node)

    def _place(self, tokens: int, room: int) -> int | None:
        if tokens > room + self.idle:
            return None
        if tokens > room:
            self.evict(tokens - room)
        return self._store.reserve(tokens)

    def evict(self, tokens: int) -> int:
        """Give up what is worth least, at least so many tokens where that many are not in use; how many."""
        now = self._clock()
        for node in self._pins.expired(now):
            self._tree.unpin(node)
        freed = self._tree.evict(tokens, self._worth.order(now))
        for extent in freed:
            self._store.release(extent)
        return sum(e.stop - e.start for e in freed)

    # questions that come back (A18)

    def back(self, who: Hashable) -> None:
        """A question has a prompt again."""
        if self._pins.is_away(who):
            self._pins.back(who, self._clock())

    def start(self, who: Hashable) -> None:
        """Its prompt is being read."""
        node = self._pins.start(who)
        if node is not None:
            self._tree.unpin(node)

    def leave(self, who: Hashable, arrived: float, tokens: Sequence[int]) -> None:
        """Its answer is done, and it may come back; one that asks several things at once leaves once."""
        if self._pins.is_away(who):
            return
        length, _, node = self._tree.match(tokens)
        reload = self._prefill(length, 0)
        if length and self._pins.leave(who, node, "retrieval", arrived, self._clock(), reload) > 0:
            self._tree.pin(node)
