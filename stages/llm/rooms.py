"""Where the caches of sequences under way lie: a slot each in a slab of their length.

Slots of one slab are attended to together, so a slab has sequences of about one length. Slots are taken
from the low end, and what is counted is the whole slot: caches are never more than the budget says, and
never copied to grow, but when an answer becomes longer than anybody expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from stages.llm.attention import Slab

__all__ = ["Room", "Rooms", "capacity"]

UNBOUND = 1 << 60
_STEP, _FINE = 64, 512


def capacity(tokens: int) -> int:
    """Tokens of the slots for so many: at most a quarter more, and at least 64."""
    if tokens <= _FINE:
        return max(1, -(-tokens // _STEP)) * _STEP
    size = _FINE
    while size < tokens:
        size = -(-size * 5 // 4 // _STEP) * _STEP
    return size


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """A slot of a slab."""

    slab: Slab
    slot: int


class Rooms:
    """Slots for at most `rows` sequences of each length, in at most `tokens` tokens of memory.

    A slab is memory as far up as its slots have been used, or all of it where memory is taken at once
    (`whole`: accelerators). One that nobody uses goes when more is needed elsewhere.
    """

    def __init__(self, network: Any, rows: int, tokens: int = UNBOUND, whole: bool = False) -> None:
        self._network, self._rows, self._tokens, self._whole = network, rows, tokens, whole
        self._slabs: dict[int, Slab] = {}
        self._free: dict[int, list[int]] = {}
        self._high: dict[int, int] = {}
        self.used = 0
        """Tokens of the slots that are taken."""

    @property
    def memory(self) -> int:
        """Tokens of the slots that are, or have been, in use."""
        return sum(size * high for size, high in self._high.items())

    def take(self, tokens: int) -> Room | None:
        """A slot for so many tokens; None where all of that length are taken, or there is no memory."""
        size = capacity(tokens)
        if size not in self._slabs and not self._make(size):
            return None
        free = self._free[size]
        if not free:
            return None
        if not self._whole and free[0] >= self._high[size]:
            self._make_room(size, size)
        self._high[size] = max(self._high[size], free[0] + 1)
        self.used += size
        return Room(self._slabs[size], heappop(free))

    def _make(self, size: int) -> bool:
        """A slab of such slots; where it is memory at once, of a quarter of all at most."""
        slots = self._rows
        if self._whole:
            slots = max(1, min(slots, self._tokens // (4 * size)))
            self._make_room(size * slots, size)
            if self.memory + size * slots > self._tokens:
                return False
        self._slabs[size] = Slab(self._network, slots, size)
        self._free[size] = list(range(slots))
        self._high[size] = slots if self._whole else 0
        return True

    def _make_room(self, more: int, wanted: int) -> None:
        """Give up slabs that nobody uses, as long as there is too little memory for so many tokens more."""
        idle = [s for s, free in self._free.items() if len(free) == self._slabs[s].slots and s != wanted]
        for size in idle:
            if self.memory + more <= self._tokens:
                return
            del self._slabs[size], self._free[size], self._high[size]

    def give(self, room: Room) -> None:
        """Nobody needs it any more."""
        heappush(self._free[room.slab.capacity], room.slot)
        self.used -= room.slab.capacity

    def lower(self, room: Room, length: int) -> Room:
        """The lowest free slot of the same slab, with the first `length` tokens; or the room itself."""
        free = self._free[room.slab.capacity]
        if not free or free[0] > room.slot:
            return room
        found = Room(room.slab, heappop(free))
        room.slab.move(room.slot, found.slot, length)
        heappush(free, room.slot)
        return found
