"""A copy of the model in 8 bits drafts for it, over the caches of the model itself.

The idea: it is right more often than a small model (SubSpec, Wang et al. 2025, arXiv 2509.18344, which
shares caches too). It reads what the model has left, and writes behind the end of a row, where the model
writes over it when it reads the draft. So it takes no memory but its weights, and reads no prompts.

When not: where 8-bit products are no faster, as on accelerators, or where a batch is bound by arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many

from stages.llm.batch import sharing
from stages.llm.draft_length import UNBOUND
from stages.llm.draft_worth import Pace
from stages.llm.drafter import Drafts, Feed, Wanted, by_slab, drafted
from stages.llm.network import Network
from stages.llm.passes import Decoding
from stages.llm.rooms import Room
from stages.llm.sequence import Sequence

__all__ = ["Twin"]


class Twin:
    """A copy of the model, with the model's own caches. `ends`: tokens that end an answer."""

    def __init__(
        self, network: Network, ends: frozenset[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._net, self._ends, self._clock = network, ends, clock
        self.step, self.token = Pace(), Pace()

    def reach(self, s: Sequence) -> int:
        """See `Drafter`. How many fit is for the row's own room to say."""
        return UNBOUND

    def unread(self, s: Sequence) -> int:
        """See `Drafter`."""
        return 0

    def read(self, ones: Iterable[Sequence]) -> None:
        """See `Drafter`."""

    def draft(self, wanted: Wanted) -> list[list[int]]:
        """See `Drafter`."""
        found, spoilt = drafted(wanted, self._pass, self._ends, self.step, self._clock)
        for s, most in wanted:
            if s in spoilt and s.room is not None:
                _clear(s.room, s.own, s.own + most)
        return [found[s] for s, _ in wanted]

    def leave(self, s: Sequence) -> None:
        """See `Drafter`."""

    def reset(self) -> None:
        """See `Drafter`."""

    def _pass(self, ones: Many[Sequence], found: Drafts) -> dict[Sequence, int]:
        feed = Feed()
        for rows in by_slab((s, s.room) for s in ones):
            slab, slots = rows[0][1].slab, [room.slot for _, room in rows]
            starts = [s.own + len(found[s]) for s, _ in rows]
            shared = sharing([s for s, _ in rows])
            feed.readers.append(Decoding(self._net, slab, slots, starts, [1] * len(rows), shared))
            for s, _ in rows:
                feed.add(s, [found[s][-1] if found[s] else s.tokens[-1]], s.done + len(found[s]))
        return feed.likeliest(self._net)


def _clear(room: Room, start: int, stop: int) -> None:
    """Zeros where what lies there is multiplied by 0, so that it must be finite."""
    for keys, values in zip(room.slab.keys, room.slab.values, strict=True):
        keys[room.slot, :, :, start:stop] = 0
        values[room.slot, :, start:stop] = 0
