"""One step of the engine: who takes part with which tokens, the pass through the network, the tokens
chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

from stages.llm.attention import Past
from stages.llm.network import Network
from stages.llm.passes import Decoding, Pass, Prompt, Reader
from stages.llm.sampling import choose, uniform
from stages.llm.sequence import Sequence

__all__ = ["Batch", "compose", "sharing"]


@dataclass(slots=True)
class Batch:
    """`moved`: sequences and how many of their tokens are in the pass; `asked`: those that get a next token,
    from the logits of the flat rows `at`: one for each, and one for each of its drafts.
    """

    readers: list[Reader] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    moved: list[tuple[Sequence, int]] = field(default_factory=list)
    asked: list[Sequence] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    prompts: int = 0

    def add(self, s: Sequence, tokens: Many[int], wanted: int) -> None:
        """The next tokens of a sequence, of which the last `wanted` ask for what follows them."""
        self.tokens += tokens
        self.positions += range(s.done, s.done + len(tokens))
        self.moved.append((s, len(tokens)))
        if wanted:
            self.asked.append(s)
            self.at += range(len(self.tokens) - wanted, len(self.tokens))

    def logits(self, network: Network) -> Any:
        """The logits [rows of `at`, V], or None where nobody asks."""
        import torch

        device = network.device
        tokens = torch.tensor(self.tokens, device=device)
        positions = torch.tensor(self.positions, device=device)
        hidden = network.hidden(tokens, positions, Pass(tuple(self.readers)))
        if not self.at:
            return None
        if len(self.at) == len(self.tokens):
            return network.logits(hidden)
        return network.logits(hidden[torch.tensor(self.at, device=device)])

    def choose(self, logits: Any) -> list[int]:
        """A token for each row of the logits; less than 0 where they are not finite."""
        if all(s.ask.sampling.greedy and s.masks is None for s in self.asked):
            top, tokens = logits.max(-1)
            found: list[int] = tokens.masked_fill_(~top.isfinite(), -1).tolist()
            return found
        self._mask(logits)
        samplings, uniforms = [], []
        for s in self.asked:
            for i in range(1 + len(s.drafts)):
                sampling = s.ask.sampling
                samplings.append(sampling)
                uniforms.append(0.0 if sampling.greedy else uniform(sampling.seed, s.ask.row, s.said + i))
        drawn: list[int] = choose(logits, samplings, uniforms).tolist()
        return drawn

    def _mask(self, logits: Any) -> None:
        import torch

        start = 0
        for s in self.asked:
            rows = slice(start, start + 1 + len(s.drafts))
            if s.masks is not None:
                allowed = torch.from_numpy(s.masks).to(logits.device)
                logits[rows].masked_fill_(~allowed, -torch.inf)
            start = rows.stop


def compose(network: Network, running: Iterable[Sequence], chunk: int) -> Batch:
    """The next batch: all that decode, slab by slab, then pieces of prompts of at most `chunk` tokens
    together.
    """
    batch = Batch()
    slabs: dict[int, list[Sequence]] = defaultdict(list)
    reading = []
    for s in running:
        if s.is_reading:
            reading.append(s)
        elif s.room is not None:
            slabs[s.room.slab.capacity].append(s)
    for _, ones in sorted(slabs.items()):
        _decode(network, batch, sorted(ones, key=_slot))
    for s in reading:
        _read(network, batch, s, chunk - batch.prompts)
    return batch


def sharing(ones: Many[Sequence]) -> list[tuple[list[int], tuple[Past, ...]]]:
    """Which of them read the same prefix, as places in `ones`, and what they share: see `Decoding`."""
    found: dict[int, list[int]] = defaultdict(list)
    for i, s in enumerate(ones):
        if s.past:
            found[id(s.found.node)].append(i)
    return [(places, ones[places[0]].past) for places in found.values()]


def _slot(s: Sequence) -> int:
    return s.room.slot if s.room is not None else -1


def _decode(network: Network, batch: Batch, ones: list[Sequence]) -> None:
    room = ones[0].room
    assert room is not None
    counts = [1 + len(s.drafts) for s in ones]
    slots = [_slot(s) for s in ones]
    batch.readers.append(Decoding(network, room.slab, slots, [s.own for s in ones], counts, sharing(ones)))
    for s in ones:
        batch.add(s, [s.tokens[-1], *s.drafts], 1 + len(s.drafts))


def _read(network: Network, batch: Batch, s: Sequence, most: int) -> None:
    count = min(s.pending, most)
    if count < 1 or s.room is None:
        return
    batch.readers.append(Prompt(network, s.room.slab, s.room.slot, s.own, count, s.past))
    batch.add(s, s.tokens[s.done : s.done + count], int(count == s.pending and not s.export))
    batch.prompts += count
