"""Draft models: they say what the model will probably say next, in passes that take less.

The idea: a small model of the same vocabulary (`small_model`), or a copy of the model itself in 8 bits
(`twin`). All rows draft together, a token each in a pass, always the likeliest; so comparing decides what
stands (`accept.accept_greedy`), and that holds for sampled rows too. When not: see `draft_worth`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, Protocol

from stages.llm.draft_worth import Pace
from stages.llm.network import Network
from stages.llm.passes import Pass, Reader
from stages.llm.rooms import Room
from stages.llm.sequence import Sequence

__all__ = ["Drafter", "Drafts", "Feed", "Wanted", "by_slab", "drafted"]

Wanted = Many[tuple[Sequence, int]]
"""Rows, and how many tokens to draft for each."""
Drafts = dict[Sequence, list[int]]


class Drafter(Protocol):
    """A draft model. `step`: seconds of a pass that drafts; `token`: of reading a token of a prompt."""

    step: Pace
    token: Pace

    def reach(self, s: Sequence) -> int:
        """Tokens that it can draft for a row now; 0 for one that it has not read."""

    def unread(self, s: Sequence) -> int:
        """Tokens that it must read first; 0 also for a row that it will never draft for."""

    def read(self, ones: Iterable[Sequence]) -> None:
        """Read on for rows, a chunk of tokens together at most. One that has no room stays as it is."""

    def draft(self, wanted: Wanted) -> list[list[int]]:
        """The next tokens of each row: as many as are wanted, or fewer where it has nothing to say."""

    def leave(self, s: Sequence) -> None:
        """A row is over, or waits."""

    def reset(self) -> None:
        """A step failed: nothing in its caches is whole any more."""


@dataclass(slots=True)
class Feed:
    """A pass: its readers, their tokens and where those stand; of each of `rows` its last token's place."""

    readers: list[Reader] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    rows: list[Sequence] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    def add(self, s: Sequence, tokens: Many[int], position: int) -> None:
        """The next tokens of a row."""
        self.tokens += tokens
        self.positions += range(position, position + len(tokens))
        self.rows.append(s)
        self.last.append(len(self.tokens) - 1)

    def hidden(self, network: Network) -> Any:
        """Of the last token of each row."""
        import torch

        tokens, positions, last = (
            torch.tensor(x, device=network.device) for x in (self.tokens, self.positions, self.last)
        )
        return network.hidden(tokens, positions, Pass(tuple(self.readers)))[last]

    def likeliest(self, network: Network) -> dict[Sequence, int]:
        """The likeliest token after the last one of each row; less than 0 where that cannot be told."""
        top, tokens = network.logits(self.hidden(network)).max(-1)
        return dict(zip(self.rows, tokens.masked_fill_(~top.isfinite(), -1).tolist(), strict=True))


def drafted(
    wanted: Wanted,
    step: Callable[[Many[Sequence], Drafts], dict[Sequence, int]],
    ends: frozenset[int],
    pace: Pace,
    clock: Callable[[], float],
) -> tuple[Drafts, set[Sequence]]:
    """Drafts of rows, pass by pass, up to a token that ends the answer; and rows with numbers that are not
    finite, which draft nothing. `step`: a pass, of those that go on, behind what they have drafted.
    """
    most = dict(wanted)
    found: Drafts = {s: [] for s in most}
    spoilt = set()
    live = [s for s in most if most[s] > 0]
    while live:
        began = clock()
        for s, token in step(live, found).items():
            if token < 0:
                spoilt.add(s)
                found[s], most[s] = [], 0
            else:
                found[s].append(token)
        pace.add(clock() - began)
        live = [s for s in live if len(found[s]) < most[s] and found[s][-1] not in ends]
    return found, spoilt


def by_slab(rows: Iterable[tuple[Sequence, Room | None]]) -> list[list[tuple[Sequence, Room]]]:
    """Rows that have a room, by slab and slot."""
    found: dict[int, list[tuple[Sequence, Room]]] = defaultdict(list)
    for s, room in rows:
        if room is not None:
            found[room.slab.capacity].append((s, room))
    return [sorted(found[size], key=lambda row: row[1].slot) for size in sorted(found)]
