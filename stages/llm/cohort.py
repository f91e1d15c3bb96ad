"""The sequences of an engine: who enters, who leaves, who must make room, and what each has said.

Admission is by bytes: a sequence enters when its slot fits into the budget, cached prefixes giving way. One
that says more than was expected moves to a longer slot, or the latest gives way and is read again, or copied
out and back where that is cheaper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many

from stages.llm.accept import accept_greedy
from stages.llm.batch import Batch
from stages.llm.decoder import Counts
from stages.llm.drafter import Drafter
from stages.llm.limits import Limits
from stages.llm.network import Network
from stages.llm.order import Meeting
from stages.llm.preempt import Running, preempt
from stages.llm.prefixes import Found
from stages.llm.proposals import Proposals
from stages.llm.radix import alike, page_bytes
from stages.llm.rooms import capacity
from stages.llm.sequence import Sequence
from stages.llm.space import Space

__all__ = ["Cohort"]

SHARED = 256
"""Tokens of a prefix from which on it is read where it is, if others do so too; else it is copied."""
COMPANY = 2
"""Others that share it, from which on it is read where it is."""
LEAST = 64
"""Tokens of a common beginning from which on a prompt waits for one that is being read."""
WORTH_MOVING = 4
"""New tokens that a sequence may still say for which moving it down pays: a copy takes about two steps."""
PATIENCE = 64
"""How many later prompts may pass one that waits, for the sake of shared prefixes."""


class Cohort:
    """`running`: sequences with a room, in the order in which they came in; `entered`: those that nobody
    has looked at yet, from any thread.
    """

    def __init__(
        self, network: Network, ends: frozenset[int], limits: Limits, drafter: Drafter | None = None
    ) -> None:
        self._net, self._ends, self._limits = network, ends, limits
        self.counts = Counts()
        self.running: list[Sequence] = []
        self.entered: deque[Sequence] = deque()
        self.space = Space(network, limits.tokens, limits.rows, self._prefill)
        self._prefixes = self.space.prefixes
        self._waiting: Meeting[Sequence] = Meeting(self._prefixes.cached, PATIENCE)
        self._proposals = Proposals(limits, drafter)
        self._token_seconds = 1e-3
        self._number = 0

    # who enters

    def admit(self) -> None:
        """Let in who has room, as long as there are not enough prompt tokens for a step."""
        while self.entered:
            s = self.entered.popleft()
            s.number = self._number = self._number + 1
            self._prefixes.back(s.ask.row[:1])
            self._waiting.add(s, s.tokens)
        reading = sum(s.pending for s in self.running if s.is_reading)
        while len(self.running) < self._limits.rows and reading < self._limits.chunk:
            following = self._waiting.first()
            if following is None or self._meets(following) or not self._house(following):
                return
            self._waiting.take(following)
            self.running.append(following)
            reading += following.pending
            self._export(following)

    def _meets(self, s: Sequence) -> bool:
        """Whether somebody is reading what this prompt begins with: it will find it, and waits."""
        raw = page_bytes(s.tokens, s.size)
        known = self._prefixes.cached(s.tokens) + LEAST
        reading = (r for r in self.running if r.is_reading)
        return any(alike(raw, page_bytes(r.tokens, r.size)) // 4 >= known for r in reading)

    def _house(self, s: Sequence) -> bool:
        """Find room for a sequence, and what is cached of its prompt; whether there is.

        One that is alone, and still has none beside the prefix that it holds, does without.
        """
        s.found = self._prefixes.match(s.tokens)
        if self._enter(s):
            return True
        self._drop(s)
        return not self.running and self._enter(s)

    def _enter(self, s: Sequence) -> bool:
        found = s.found
        stays = found.length >= SHARED and not self._net.has_windows and self._is_shared(s)
        behind = found.length if stays else 0
        s.room = self.space.room(len(s.tokens) - behind + self._still(s))
        if s.room is None:
            return False
        self._prefixes.start(s.ask.row[:1])
        s.enter(found, behind, self._prefixes.past(found))
        if not stays:
            self._prefixes.drop(found)
        return True

    def _is_shared(self, s: Sequence) -> bool:
        """Whether others read the same prefix soon: alone it is read faster in the own slot."""
        now = sum(r.found.node is s.found.node for r in self.running)
        return now + self._waiting.company(s, s.found.length) >= COMPANY

    def _drop(self, s: Sequence) -> None:
        self._prefixes.drop(s.found)
        s.found = Found()

    def _still(self, s: Sequence) -> int:
        """New tokens that room is taken for."""
        return min(s.ask.most - s.said, self._limits.expected)

    def guess(self) -> None:
        """Draft the next tokens of those that decode."""
        self._proposals.guess(self.running)

    # what a step brought

    def take(self, batch: Batch, chosen: Many[int], seconds: float) -> None:
        """Take in the tokens that were chosen, in a step that took so many seconds."""
        for s, count in batch.moved:
            s.done += count
            self._export(s)
        start = 0
        for s in batch.asked:
            width = 1 + len(s.drafts)
            said = accept_greedy(s.drafts, chosen[start : start + width])
            start += width
            s.done -= width - len(said)
            self._proposals.took(s, len(said) - 1)
            if s.said == 0 and said[0] >= 0:
                self.space.keep(s)
            if s.take(said, self._ends):
                self._finish(s)
        self._learn(batch, seconds)
        self._tidy()
        self._grow()

    def _export(self, s: Sequence) -> None:
        if s.export and not s.pending:
            self.space.keep(s)
            s.give_up("prefilled")
            self._finish(s)

    def _finish(self, s: Sequence) -> None:
        self.counts.add(s.size, s.result())
        is_invalid = s.result().stop == "invalid"
        if not is_invalid:
            self._prefixes.leave(s.ask.row[:1], s.number, s.tokens)
        self._leave(s, wipe=is_invalid or s.export)
        s.over.set()

    def _leave(self, s: Sequence, wipe: bool) -> None:
        """It is not under way any more. `wipe`: nobody knows whether what it leaves is finite."""
        self.running.remove(s)
        self._proposals.leave(s)
        if s.room is not None:
            if wipe:
                s.room.slab.wipe(s.room.slot)
            self.space.rooms.give(s.room)
            s.room = None
        self._drop(s)

    def _learn(self, batch: Batch, seconds: float) -> None:
        self.counts.steps += 1
        self.counts.seconds += seconds
        self.counts.held = self.space.held
        seconds -= self._proposals.spent
        self._proposals.learn(len(batch.tokens), seconds)
        if 2 * batch.prompts >= self._limits.chunk:
            self._token_seconds += 0.1 * (seconds / batch.prompts - self._token_seconds)

    def _prefill(self, tokens: int, context: int) -> float:
        """Seconds that reading so many tokens takes: as measured, attention to the context left out."""
        return tokens * self._token_seconds

    # who makes room

    def _tidy(self) -> None:
        """Sequences move down into free slots, which would be read with the others, if nobody comes for
        them.
        """
        if len(self._waiting) or self.entered:
            return
        for s in sorted(self.running, key=lambda s: -s.room.slot if s.room else 0):
            if s.room is not None and not s.is_reading and s.ask.most - s.said > WORTH_MOVING:
                s.room = self.space.rooms.lower(s.room, s.own)

    def _grow(self) -> None:
        """Longer slots for those whose next token has no place; if there is none, the latest make room."""
        for s in list(self.running):
            if s.room is None or s.own + s.pending <= s.room.slab.capacity:
                continue
            wanted = s.own + self._still(s) + 1
            self._make_way(capacity(wanted) - s.room.slab.capacity)
            if s.room is None:  # it was the latest itself
                continue
            past = s.room.slab.extent(s.room.slot, 0, s.own)
            self.space.rooms.give(s.room)
            s.room = None
            s.room = self.space.room(wanted)
            if s.room is not None:
                s.room.slab.put(s.room.slot, 0, past)
            else:
                self._send_back(s, swap=False)

    def _make_way(self, more: int) -> None:
        """The latest make room for so many tokens more, where evicting cached prefixes is not enough."""
        running = [
            Running(s, s.number, s.own, s.behind, s.room.slab.capacity)
            for s in self.running
            if s.room is not None
        ]
        lacking, bytes_each = self.space.lacking(more), self._net.sizes.token_bytes
        for victim in preempt(running, lacking, bytes_each, self._limits.swap, self._prefill):
            self._send_back(victim.key, victim.swap)

    def _send_back(self, s: Sequence, swap: bool) -> None:
        """A sequence waits again, and will go on where it was."""
        is_reading = s.is_reading
        s.make_room(swap)
        self._leave(s, wipe=is_reading)
        self._waiting.add(s, s.tokens)
        self.counts.preempted += 1

    def abandon(self, error: BaseException) -> None:
        """A step failed: nobody's cache is whole any more."""
        self._proposals.reset()
        gone = [*self.entered]
        self.entered.clear()
        while (s := self._waiting.first()) is not None:
            self._waiting.take(s)
            gone.append(s)
        for s in list(self.running):
            self._leave(s, wipe=True)
            gone.append(s)
        for s in gone:
            self._drop(s)
            s.fail(error)
