"""Values from the passages of a question to its answer; see `pipeline.values`.

Shapes: B rows, S prompt tokens, L layers, K heads of keys, d elements of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RowId
from pipeline.rows import Rows

__all__ = [
    "Answers", "Citation", "Completions", "KVCache", "Passage", "Passages", "Prompts", "Steps",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk with its text, as found for a question."""

    id: RowId
    text: str
    heading: str
    start: int
    end: int
    score: float
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    also: tuple[RowId, ...] = ()
    """Other chunks with the very same text."""


@dataclass(frozen=True, slots=True)
class Passages(Rows):
    """The texts behind the hits, best first. Id: `(question id,)`."""

    passages: tuple[tuple[Passage, ...], ...]


@dataclass(frozen=True, slots=True)
class Prompts(Rows):
    """What a model is to continue. `tokens`: int32 [S] per row; no tokens: nothing to ask.

    `passages`: those in the prompt, numbered from 1; `trimmed`: how many did not fit the window.
    """

    tokens: tuple[NDArray[np.int32], ...]
    passages: tuple[tuple[Passage, ...], ...]
    trimmed: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Prompt tokens of each row."""
        return tuple(len(t) for t in self.tokens)

    @property
    def keys(self) -> tuple[str | int | None, ...]:
        """The document of each row's first passage, whose tokens come first."""
        return tuple(found[0].id[0] if found else None for found in self.passages)


@dataclass(frozen=True, slots=True)
class KVCache(Rows):
    """Prompts that a model has read. `tokens`: int32 [S] per row, as in `Prompts`.

    `keys_of`, `values_of`: tensors [L, K, d, S - 1] and [L, K, S - 1, d] of L layers and K heads, where they
    were made; the last token is left to whoever decodes. Both are None where there was nothing to ask.
    """

    tokens: tuple[NDArray[np.int32], ...]
    keys_of: tuple[Any, ...]
    values_of: tuple[Any, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Prompt tokens of each row."""
        return tuple(len(t) for t in self.tokens)


@dataclass(frozen=True, slots=True)
class Completions(Rows):
    """What a model said. `stops`: "end", "length", or "skipped" where there was no prompt.

    `reused`: prompt tokens that had been read for others; `drafted`, `accepted`: new tokens that were guessed
    and those of them that were right. All three are 0 where nobody says.
    """

    texts: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]
    stops: tuple[str, ...]
    reused: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("reused", "drafted", "accepted"):
            object.__setattr__(self, name, getattr(self, name) or (0,) * len(self.ids))
        Rows.__post_init__(self)

    @property
    def counted(self) -> tuple[Mapping[str, int], ...]:
        """The tokens of each row, and how it stopped."""
        names = ("prompt_tokens", "reused", "new_tokens", "drafted", "accepted")
        numbers = zip(*(getattr(self, name) for name in names), strict=True)
        return tuple(
            {**dict(zip(names, row, strict=True)), f"stop_{stop}": 1}
            for row, stop in zip(numbers, self.stops, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Steps(Rows):
    """A multi-step question between two rounds. Id: `(question id,)`.

    `queries`: what to search next; `passages`: all found so far; `completions`: the last answer;
    `prompt_tokens`, `new_tokens`, `rounds`: spent so far; `done`: bool [B], leave the loop.
    """

    questions: tuple[str, ...]
    documents: tuple[str, ...]
    queries: tuple[str, ...]
    passages: tuple[tuple[Passage, ...], ...]
    completions: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]
    stops: tuple[str, ...]
    rounds: tuple[int, ...]
    done: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Citation:
    """Where an answer comes from: `page` from 1, `start` and `end` in characters of the page's text."""

    document: str
    page: int
    start: int
    end: int
    quote: str
    score: float
    boxes: tuple[tuple[float, float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Answers(Rows):
    """Finished questions. Id: `(question id,)`.

    `statuses`: "answered" or "unanswered" (with a reason). `attributions`: how the citations were found:
    "marked" by the model, "supported" by overlap and similarity, "extracted" (the answer is the passage's
    own sentence, since no passage had a word of what the model said), or "none". `dropped`: invalid marks.
    """

    texts: tuple[str, ...]
    statuses: tuple[str, ...]
    reasons: tuple[str, ...]
    citations: tuple[tuple[Citation, ...], ...]
    attributions: tuple[str, ...]
    dropped: tuple[int, ...]
    passages: tuple[tuple[Passage, ...], ...]
    trimmed: tuple[int, ...]
    rounds: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]
    stops: tuple[str, ...]
