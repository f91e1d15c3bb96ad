"""Where the caches of sequences under way lie: a slot each in a slab of their length.

Slots of one slab are attended to together, so a slab has sequences of about one length. Slots are taken
from the low end, and what is counted is the whole slot: caches are never more than the budget says, and
never copied to grow, but when an answer becomes longer than anybody expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from stages.llm.attention import Slab

__all__ = ["Room", "Rooms", "capacity"]

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
    """Slots for at most `rows` sequences of each length, together at most `tokens` tokens."""

    def __init__(self, network: Any, rows: int) -> None:
        self._network = network
        self._rows = rows
        self._slabs: dict[int, Slab] = {}
        self._free: dict[int, list[int]] = {}
        self.used = 0
        """Tokens of the slots that are taken."""

    def take(self, tokens: int) -> Room | None:
        """A slot for so many tokens; None where all of that length are taken."""
        size = capacity(tokens)
        if size not in self._slabs:
            self._slabs[size] = Slab(self._network, self._rows, size)
            self._free[size] = list(range(self._rows))
            heapify(self._free[size])
        if not self._free[size]:
            return None
        self.used += size
        return Room(self._slabs[size], heappop(self._free[size]))

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
