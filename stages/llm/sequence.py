"""One prompt on its way to an answer: what is known, what is in the cache, what was said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from threading import Event
from typing import Any

import numpy as np

from pipeline.errors import RowError
from stages.llm.attention import Past, joined
from stages.llm.decoder import Ask, Said
from stages.llm.draft_length import Acceptance
from stages.llm.draft_worth import Trust
from stages.llm.drafts import Lookup
from stages.llm.prefixes import Found
from stages.llm.rooms import Room
from stages.llm.stops import Stream

__all__ = ["Sequence"]


class Sequence:
    """`tokens`: prompt and answer so far; `done`: how many of them are in the cache.

    `behind`: tokens at the beginning that are read where `found` has them; the others are in `room`.
    `saved`: the cache, from `behind` on, of one that had to make room, or that was read elsewhere; `export`:
    only the cache is wanted. `drafts`: tokens guessed for the next pass; `by_model`: so many of them came
    from a draft model, those among them that the grammar does not let come.
    """

    def __init__(
        self,
        ask: Ask,
        decode: Callable[[Tokens[int]], str],
        drafts: bool = False,
        streamed: bool = False,
        export: bool = False,
    ) -> None:
        self.ask, self.number, self.export = ask, 0, export
        self.tokens: list[int] = [int(t) for t in ask.tokens]
        self.size = len(self.tokens)
        self.done = self.behind = self.reused = self.drafted = self.accepted = 0
        self.found = Found()
        self.past: tuple[Past, ...] = ()
        self.room: Room | None = None
        self.saved: Past | None = None
        self.drafts: list[int] = []
        self.masks: Any = None
        self.acceptance, self.trust, self.by_model = Acceptance(), Trust(), 0
        self._proposed: list[int] = []
        self._is_stuck = False
        self.lookup = Lookup(self.tokens) if drafts else None
        self.state: Any = None if ask.grammar is None else ask.grammar.start()
        self.over = Event()
        self._stream = Stream(decode, ask.sampling.stop) if streamed or ask.sampling.stop else None
        self._text: list[str] = []
        self._shown = 0
        self._outcome: Said | None = None
        self._error: BaseException | None = None
        self._exported: Past | None = None
        self._decode = decode

    @property
    def said(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - self.size

    @property
    def pending(self) -> int:
        """Tokens that are known and not in the cache; one of a sequence that decodes.

        The last token of a prompt whose cache is wanted is left to whoever decodes.
        """
        return len(self.tokens) - self.done - self.export

    @property
    def is_reading(self) -> bool:
        """Whether it is still at its prompt, or at an answer that it must read again."""
        return self.pending > 1 or (self.export and self.pending > 0)

    @property
    def own(self) -> int:
        """Tokens in the room."""
        return self.done - self.behind

    def result(self) -> Said:
        """The answer, once it is there. Raises what ended the engine's step."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None, "the sequence is under way"
        return self._outcome

    def exported(self) -> Past | None:
        """The cache of the prompt without its last token; None where it had no room."""
        self.result()
        return self._exported

    def shown(self) -> Iterator[str]:
        """What has been said since the last call."""
        new, self._shown = self._text[self._shown :], len(self._text)
        yield from filter(None, new)

    def enter(self, found: Found, behind: int, past: tuple[Past, ...]) -> None:
        """It has a room now; what was cached of its prompt is read where it is, or written into the room."""
        assert self.room is not None
        saved, start = self.saved, self.behind
        self.saved, self.behind = None, behind
        self.past, self.found = (past, found) if behind else ((), Found())
        if saved is not None and start <= behind and found.length <= self.done:
            self.room.slab.put(self.room.slot, 0, saved.cut(behind - start, len(saved)))
            return
        self.reused = self.reused or min(found.length, self.size)
        self.done = found.length
        if behind < found.length:
            self.room.slab.put(self.room.slot, 0, joined(past))

    def make_room(self, swap: bool) -> None:
        """Its slot is needed; what is in it is copied out, or lost."""
        self.drafts, self.masks, self._proposed, self.by_model = [], None, [], 0
        if swap and self.room is not None:
            self.saved = self.room.slab.extent(self.room.slot, 0, self.own).to("cpu")
        else:
            self.done, self.behind = 0, 0
        self.past = ()

    def guess(self, most: int) -> None:
        """Draft the next tokens, at most so many, as far as the grammar lets them come."""
        self._set(self.lookup.propose(most) if self.lookup is not None and most > 0 else [])
        self._proposed, self.by_model = self.drafts[:1], 0

    def draft(self, tokens: list[int]) -> None:
        """Draft these instead, which a draft model said."""
        self._set(tokens)
        self.by_model = len(tokens)

    def _set(self, drafts: list[int]) -> None:
        self.drafts = drafts
        if self.state is None:
            return
        try:
            self.masks = self.state.masks(drafts)
        except RowError:  # the library gives up: nothing may come, and the row ends there
            self.masks, self._is_stuck = np.zeros((1, 1), np.bool_), True
        self.drafts = drafts[: len(self.masks) - 1]

    def shorten(self, count: int) -> None:
        """Draft only so many of them."""
        self.drafts = self.drafts[:count]
        if self.masks is not None:
            self.masks = self.masks[: count + 1]

    def take(self, chosen: Tokens[int], ends: frozenset[int]) -> bool:
        """Take in new tokens as far as they count; whether the answer is over."""
        self._learn(chosen)
        for token in chosen:
            if token < 0:
                return self.give_up("grammar" if self._is_stuck else "invalid")
            self.tokens.append(token)
            if token in ends or self._is_stopped(token):
                return self.give_up("grammar" if self._is_stuck else "end")
            if self.said == self.ask.most:
                return self.give_up("length")
        return False

    def _learn(self, chosen: Tokens[int]) -> None:
        """How drafts fare; a row that looks none up still learns whether it could have."""
        right = len(chosen) - 1
        self.drafted += len(self.drafts)
        self.accepted += right
        self.trust = self.trust.after(self.by_model, right if self.by_model else 0)
        if self.drafts and not self.by_model:
            self.acceptance = self.acceptance.after(len(self.drafts), right)
        elif self._proposed:
            self.acceptance = self.acceptance.after(1, int(self._proposed[0] == chosen[0]))
        if self.lookup is not None:
            self.lookup.extend(chosen)

    def give_up(self, stop: str) -> bool:
        """The answer is what there is; True. `stop`: see `Said`."""
        new = tuple(self.tokens[self.size :])
        if self.export and self.room is not None:
            self._exported = joined([*self.past, self.room.slab.extent(self.room.slot, 0, self.own)])
        if self._stream is not None:
            self._text.append(self._stream.close())
            text = "".join(self._text)
        else:
            text = self._decode(new)
        self._outcome = Said(new, text.strip(), stop, self.reused, self.drafted, self.accepted)
        return True

    def fail(self, error: BaseException) -> None:
        """There will be no answer."""
        self._error = error
        self.over.set()

    def _is_stopped(self, token: int) -> bool:
        """Whether a stop text or the grammar ends the answer here."""
        if self.state is not None:
            try:
                self.state.advance(token)
            except RowError:
                self._is_stuck = True
                return True
        if self._stream is not None:
            self._text.append(self._stream.feed(token))
        over = self._stream is not None and self._stream.finished
        return over or (self.state is not None and self.state.finished)
