"""What is drafted in a step: for each row how many tokens, and whether they are looked up or said by a model.

The idea: what was said before is free to look up, so it comes first; a draft model says something for rows
where there is nothing to look up, or where looking up has been wrong too often.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many

from stages.llm.draft_length import Drafting, Row
from stages.llm.draft_worth import Trust, saved
from stages.llm.drafter import Drafter
from stages.llm.limits import Limits
from stages.llm.sequence import Sequence

__all__ = ["Proposals"]

_WORSE = 0.5
"""A row looks up unless that is right less than so many times as often as the draft model (ours)."""


class Proposals:
    """Drafts for all rows of an engine, by looking up and by `drafter`, if there is one."""

    def __init__(
        self, limits: Limits, drafter: Drafter | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits, self._drafter, self._clock = limits, drafter, clock
        self.spent = 0.0
        """Seconds that the draft model took for this step."""
        self._drafting = Drafting(limits.drafts)
        self._trust = Trust()

    def guess(self, running: Many[Sequence]) -> None:
        """Draft the next tokens of those that decode: as many as give the most tokens a second."""
        reading = [s for s in running if s.is_reading]
        for s in reading:
            if s.state is not None:
                s.guess(0)  # its first token has a mask too
        ones = [s for s in running if s.pending == 1 and not s.is_reading]
        for s in ones:
            s.guess(self._room(s))
        if self._limits.drafts:
            self._choose(ones, min(self._limits.chunk, sum(s.pending for s in reading)))

    def _choose(self, ones: Many[Sequence], beside: int) -> None:
        began = self._clock()
        by_model = self._by_model(ones, beside)
        rows = [self._row(s, by_model.get(s)) for s in ones]
        drafting = self._drafter.step.seconds if self._drafter is not None else 0.0
        counts = dict(zip(ones, self._drafting.lengths(rows, beside, drafting=drafting), strict=True))
        for s, count in counts.items():
            s.shorten(0 if s in by_model else count)
        wanted = [(s, counts[s]) for s in by_model if counts[s]]
        if self._drafter is not None and wanted:
            for (s, _), tokens in zip(wanted, self._drafter.draft(wanted), strict=True):
                s.draft(tokens)
        self.spent = self._clock() - began

    def took(self, s: Sequence, right: int) -> None:
        """Of what a row had drafted so many tokens stood."""
        self._trust = self._trust.after(s.by_model, right if s.by_model else 0)

    def learn(self, tokens: int, seconds: float) -> None:
        """A step that read so many tokens took so long, the draft model's part left out."""
        if self._limits.drafts and tokens:
            self._drafting.learn(tokens, seconds)

    def leave(self, s: Sequence) -> None:
        """A row is over, or waits."""
        if self._drafter is not None:
            self._drafter.leave(s)

    def reset(self) -> None:
        """A step failed."""
        if self._drafter is not None:
            self._drafter.reset()

    def _room(self, s: Sequence) -> int:
        """Tokens that it may draft: the last one is the model's own, and all have a place in its slot."""
        room = s.room.slab.capacity - s.own - 1 if s.room else 0
        return max(0, min(self._limits.drafts, s.ask.most - s.said - 1, room))

    def _row(self, s: Sequence, reach: int | None) -> Row:
        if reach is None:
            return Row(s.acceptance.rate, len(s.drafts))
        return Row(self._trust.rate_of(s.trust), min(reach, self._room(s)), by_model=True)

    def _by_model(self, ones: Many[Sequence], beside: int) -> dict[Sequence, int]:
        """Rows for which the draft model is to say something, and how much it can; it reads what it lacks."""
        drafter = self._drafter
        if drafter is None:
            return {}
        lacking = [
            s for s in ones if not s.drafts or s.acceptance.rate < _WORSE * self._trust.rate_of(s.trust)
        ]
        drafter.read(self._worth_reading(drafter, lacking, len(ones), beside))
        ready = {s: drafter.reach(s) for s in lacking}
        return {s: reach for s, reach in ready.items() if reach}

    def _worth_reading(
        self, drafter: Drafter, ones: Many[Sequence], rows: int, beside: int
    ) -> list[Sequence]:
        """Rows whose answers are so far from their end that drafts repay reading what is before them.

        `rows` in the step. While it is not known what steps take, all.
        """
        unread = [(s, n) for s in ones if (n := drafter.unread(s)) and self._room(s)]
        curve = self._drafting.curve
        if not unread or curve is None:
            return [s for s, _ in unread]
        step, token = drafter.step.seconds, drafter.token.seconds
        each = saved(curve, rows, self._trust.rate, self._limits.drafts, step, beside)
        return [s for s, n in unread if n * token < (s.ask.most - s.said) * each]
