"""A small model of the same vocabulary drafts, with caches of its own.

It reads a prompt when it is first to draft for it, a chunk in a step; then only what was said since it last
drafted. Caches are counted in whole slots, and where there is none a row is not drafted for.

When not: short answers to long prompts do not repay reading them twice (`draft_worth.saved`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from stages.llm.draft_worth import Pace
from stages.llm.drafter import Drafts, Feed, Wanted, by_slab, drafted
from stages.llm.limits import Limits
from stages.llm.network import Network
from stages.llm.passes import Decoding, Prompt
from stages.llm.rooms import Room, Rooms, capacity
from stages.llm.sequence import Sequence

__all__ = ["CATCH_UP", "SmallModel"]

CATCH_UP = 16
"""Tokens that a row has said meanwhile and that are read with its first draft; more are read as a prompt."""


@dataclass(slots=True, eq=False)
class _Held:
    """A row's cache: the first `cached` tokens are in the room, of which the first `size` are certain.

    `tail`: what was drafted behind those; its last token is not in the room.
    """

    room: Room
    cached: int = 0
    size: int = 0
    tail: Many[int] = ()

    def settle(self, tokens: Many[int]) -> None:
        """What was drafted and did not stand is forgotten. The last of `tokens` is to be read in any case."""
        same, end = min(self.size, len(tokens) - 1), min(self.cached, len(tokens) - 1)
        for token in self.tail:
            if same >= end or tokens[same] != token:
                break
            same += 1
        self.cached, self.size, self.tail = min(self.cached, same), len(tokens), ()


class SmallModel:
    """A draft model whose caches take `limits.tokens` tokens at most. `ends`: tokens that end an answer."""

    def __init__(
        self,
        network: Network,
        ends: frozenset[int],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._net, self._ends, self._limits, self._clock = network, ends, limits, clock
        self.step, self.token = Pace(), Pace()
        self.reset()

    @property
    def used(self) -> int:
        """Tokens of the slots that are taken."""
        return self._rooms.used

    def reach(self, s: Sequence) -> int:
        """See `Drafter`."""
        if s not in self._held or self.unread(s):
            return 0
        return max(0, self._net.sizes.window - len(s.tokens))

    def unread(self, s: Sequence) -> int:
        """See `Drafter`."""
        if len(s.tokens) >= self._net.sizes.window:
            return 0
        held = self._held.get(s)
        if held is None:
            return len(s.tokens)
        held.settle(s.tokens)
        lacking = len(s.tokens) - held.cached
        return lacking - 1 if lacking > CATCH_UP else 0

    def read(self, ones: Iterable[Sequence]) -> None:
        """See `Drafter`."""
        began, feed = self._clock(), Feed()
        for s in ones:
            most = self._limits.chunk - len(feed.tokens)
            held = self._entered(s) if most > 0 else None
            count = min(self.unread(s), most)
            if held is None or count < 1 or not self._fits(s, held.cached + count):
                continue
            room, start = held.room, held.cached
            feed.readers.append(Prompt(self._net, room.slab, room.slot, start, count))
            feed.add(s, s.tokens[start : start + count], start)
            held.cached += count
        if feed.tokens:
            feed.hidden(self._net)[0, 0].item()  # so that a device that works ahead is waited for
            self.token.add((self._clock() - began) / len(feed.tokens))

    def draft(self, wanted: Wanted) -> list[list[int]]:
        """See `Drafter`."""
        self._tidy()
        able = [(s, most) for s, most in wanted if self._fits(s, len(s.tokens) + most)]
        found, spoilt = drafted(able, self._pass, self._ends, self.step, self._clock)
        for s, tokens in found.items():
            self._held[s].tail = tuple(tokens)
        for s in spoilt:
            self._held[s].room.slab.wipe(self._held[s].room.slot)
            self.leave(s)
        return [found.get(s, []) for s, _ in wanted]

    def leave(self, s: Sequence) -> None:
        """See `Drafter`."""
        held = self._held.pop(s, None)
        if held is not None:
            self._rooms.give(held.room)

    def reset(self) -> None:
        """See `Drafter`."""
        self._held: dict[Sequence, _Held] = {}
        self._rooms = Rooms(self._net, self._limits.rows)

    def _pass(self, ones: Many[Sequence], found: Drafts) -> dict[Sequence, int]:
        feed = Feed()
        for rows in by_slab((s, self._held[s].room) for s in ones):
            slab, slots = rows[0][1].slab, [room.slot for _, room in rows]
            starts = [self._held[s].cached for s, _ in rows]
            news = [[*s.tokens, *found[s]][a:] for (s, _), a in zip(rows, starts, strict=True)]
            feed.readers.append(Decoding(self._net, slab, slots, starts, [len(n) for n in news]))
            for (s, _), start, new in zip(rows, starts, news, strict=True):
                feed.add(s, new, start)
                self._held[s].cached += len(new)
        return feed.likeliest(self._net)

    def _entered(self, s: Sequence) -> _Held | None:
        if s not in self._held:
            room = self._room(len(s.tokens), s)
            if room is None:
                return None
            self._held[s] = _Held(room)
        return self._held[s]

    def _fits(self, s: Sequence, tokens: int) -> bool:
        """Whether so many tokens have room, in a longer slot if need be; a row that has none leaves."""
        held = self._held[s]
        if tokens <= held.room.slab.capacity:
            return True
        past = held.room.slab.extent(held.room.slot, 0, held.cached)
        self.leave(s)
        room = self._room(tokens, s)
        if room is not None:
            room.slab.put(room.slot, 0, past)
            held.room, self._held[s] = room, held
        return room is not None

    def _room(self, tokens: int, s: Sequence) -> Room | None:
        """A slot for so many tokens and those that are expected, within the budget."""
        wanted = tokens + min(s.ask.most - s.said, self._limits.expected)
        if self._rooms.used + capacity(wanted) > self._limits.tokens:
            return None
        return self._rooms.take(wanted)

    def _tidy(self) -> None:
        """Rows move down into free slots, which would be read with the others."""
        for held in sorted(self._held.values(), key=lambda h: -h.room.slot):
            held.room = self._rooms.lower(held.room, held.cached)
