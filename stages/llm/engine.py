"""The decode engine: sequences join and leave at every step, and what they share is read once.

A step is one pass of the network over a flat list of tokens: the last token of every sequence that decodes,
drafts behind it, and pieces of prompts up to a budget of tokens (Sarathi, Agrawal et al. 2023, arXiv
2308.16369: decodes ride on the products of prefills). Nothing is padded, and finished rows leave at once.
Whoever waits for an answer drives the engine for all: there is no thread of its own, and none is left
behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many

from stages.llm.attention import Past
from stages.llm.batch import compose
from stages.llm.cohort import Cohort
from stages.llm.decoder import Abilities, Ask, Counts, Said
from stages.llm.drafter import Drafter
from stages.llm.limits import Limits
from stages.llm.network import Network
from stages.llm.rooms import capacity
from stages.llm.sequence import Sequence

__all__ = ["Engine"]


class Engine:
    """Answers prompts with one network. `ends`: tokens that end an answer; `decode`: tokens to text."""

    abilities = Abilities(split=True, prefix=True, drafts=True, constraints=True, stream=True)

    def __init__(
        self,
        network: Network,
        ends: frozenset[int],
        decode: Callable[[Many[int]], str],
        limits: Limits,
        drafter: Drafter | None = None,
    ) -> None:
        self._net, self._decode, self._limits = network, decode, limits
        self._cohort = Cohort(network, ends, limits, drafter)
        self._lock = threading.Lock()

    @property
    def counts(self) -> Counts:
        """What was done so far."""
        return self._cohort.counts

    def answer(self, asks: Many[Ask]) -> list[Said]:
        """See `Decoder`. Raises what torch raises where memory does not suffice."""
        return [s.result() for s in self._done([self._enter(ask) for ask in asks])]

    def prefill(self, asks: Many[Ask]) -> list[Past | None]:
        """The keys and values of each prompt but its last token, on this device; None where there is no
        room.
        """
        return [s.exported() for s in self._done([self._enter(ask, export=True) for ask in asks])]

    def decode(self, asks: Many[Ask], pasts: Many[Past]) -> list[Said]:
        """As `answer`, for prompts whose keys and values `prefill` gave, here or elsewhere."""
        mine = [self._enter(ask, past=past) for ask, past in zip(asks, pasts, strict=True)]
        return [s.result() for s in self._done(mine)]

    def stream(self, ask: Ask) -> Iterator[str]:
        """The text of one answer as it comes: pieces of whole characters, without what stops it."""
        s = self._enter(ask, streamed=True)
        while not s.over.is_set():
            self._step_for(s)
            yield from s.shown()
        s.result()
        yield from s.shown()

    def _enter(
        self, ask: Ask, streamed: bool = False, export: bool = False, past: Past | None = None
    ) -> Sequence:
        s = Sequence(ask, self._decode, self._limits.drafts > 0, streamed, export)
        if past is not None:
            s.saved, s.done = past, len(past)
        if capacity(s.size + ask.most) > self._cohort.space.largest:
            s.give_up("memory")
            s.over.set()
        else:
            self._cohort.entered.append(s)
        return s

    def _done(self, mine: list[Sequence]) -> list[Sequence]:
        for s in mine:
            while not s.over.is_set():
                self._step_for(s)
        return mine

    def _step_for(self, s: Sequence) -> None:
        """One step, unless another thread's brought the answer meanwhile. What goes wrong ends all who
        wait.
        """
        import torch

        with self._lock, torch.inference_mode():
            if s.over.is_set():
                return
            try:
                self._step()
            except BaseException as error:
                self._cohort.abandon(error)

    def _step(self) -> None:
        began = time.monotonic()
        self._cohort.admit()
        self._cohort.guess()
        batch = compose(self._net, self._cohort.running, self._limits.chunk)
        logits = batch.logits(self._net) if batch.tokens else None
        chosen = batch.choose(logits) if batch.asked else []
        self._cohort.take(batch, chosen, time.monotonic() - began)
