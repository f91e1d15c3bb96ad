"""Memory for prefixes: arenas that are made when they are needed, since a first write touches most of one."""

from __future__ import annotations

from typing import Any

from stages.llm.attention import Past, zeros
from stages.llm.extents import PAGE, Extent, pages_of
from stages.llm.network import Network
from stages.llm.slots import Slots

__all__ = ["ARENA", "Store"]

ARENA = 1 << 28
"""Bytes of an arena: small beside the budget, large beside a prompt. A longer prompt gets one of its size."""
_MOST = 1 << 16
"""Arenas at most: a slot's number is that of its arena, and behind it, times this, its own in there."""


class Store:
    """At most `tokens` tokens. Raises PlanError where that is not a page."""

    def __init__(self, network: Network, tokens: int) -> None:
        self._net = network
        self._left = Slots(tokens * network.sizes.token_bytes, network.sizes.token_bytes).tokens
        self._arenas: list[tuple[Slots, Any, Any]] = []

    @property
    def used(self) -> int:
        """Tokens that are held."""
        return sum(slots.tokens - slots.free_tokens for slots, _, _ in self._arenas)

    def reserve(self, tokens: int) -> int | None:
        """A slot for so many tokens in a row; None where there is none."""
        for at, (slots, _, _) in enumerate(self._arenas):
            place = slots.reserve(tokens)
            if place is not None:
                return place * _MOST + at
        return self.reserve(tokens) if self._grow(pages_of(tokens) * PAGE) else None

    def view(self, extent: Extent) -> Past:
        """The keys and values of an extent, where they are."""
        slots, keys, values = self._arenas[extent.slot % _MOST]
        start = slots.offset(extent.slot // _MOST)
        rows = slice(start + extent.start, start + extent.stop)
        return Past(keys[..., rows], values[:, :, rows])

    def release(self, extent: Extent) -> None:
        """Nobody holds it any more."""
        self._arenas[extent.slot % _MOST][0].release(extent._replace(slot=extent.slot // _MOST))

    def _grow(self, tokens: int) -> bool:
        """One more arena, for at least so many tokens; whether there is memory for it."""
        s = self._net.sizes
        if tokens > self._left or len(self._arenas) == _MOST:
            return False
        slots = Slots(min(max(ARENA, tokens * s.token_bytes), self._left * s.token_bytes), s.token_bytes)
        like = (self._net.embedding.dtype, self._net.device)
        keys = zeros((s.layers, s.kv_heads, s.head, slots.tokens), *like)
        values = zeros((s.layers, s.kv_heads, slots.tokens, s.head), *like)
        self._arenas.append((slots, keys, values))
        self._left -= slots.tokens
        return True
