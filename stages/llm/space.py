"""The memory for caches: rooms of sequences under way and prefixes, together within one budget of tokens."""

from __future__ import annotations

from stages.llm.network import Network
from stages.llm.preempt import Prefill
from stages.llm.prefixes import Prefixes
from stages.llm.rooms import Room, Rooms, capacity
from stages.llm.sequence import Sequence

__all__ = ["Space"]


class Space:
    """`tokens` in all, for `rows` sequences of each length. `held`: tokens that were in use at most;
    `largest`: tokens that the slot of one sequence may have.
    """

    def __init__(self, network: Network, tokens: int, rows: int, prefill: Prefill) -> None:
        self._tokens = tokens
        whole = network.device.type != "cpu"  # memory is taken at once: half of it for each
        part = tokens // 2 if whole else tokens
        self.largest = part
        self.rooms = Rooms(network, rows, part, whole)
        self.prefixes = Prefixes(network, part, prefill)
        self.held = 0

    @property
    def free(self) -> int:
        """Tokens that nobody has."""
        return self._tokens - self.rooms.used - self.prefixes.used

    def lacking(self, tokens: int) -> int:
        """How many of so many tokens are not there, even if all prefixes go that nobody reads."""
        return tokens - self.free - self.prefixes.idle

    def room(self, tokens: int) -> Room | None:
        """A slot; prefixes that nobody reads make room for it, where that is enough."""
        size = capacity(tokens)
        if self.lacking(size) > 0:
            return None
        if size > self.free:
            self.prefixes.evict(size - self.free)
        found = self.rooms.take(tokens)
        self._note()
        return found

    def keep(self, s: Sequence) -> None:
        """Keep the prompt of a sequence that has read it, where there is room."""
        if s.room is not None:
            self.prefixes.keep(s.tokens[: s.size], s.room.slab, s.room.slot, s.behind, self.free)
            self._note()

    def _note(self) -> None:
        self.held = max(self.held, self._tokens - self.free)
