"""Values on edges: batches of rows.

A batch is columns of equal length and a row id each. Columns are tuples (anything per row) or arrays
whose first axis is the row. Ids are paths, so their arithmetic is that of paths: a one-to-many stage
appends one element, a many-to-one stage cuts, and a row meets every row whose id it is a prefix of.
Nothing here knows of models or files, and nothing here changes after it is made.

Shapes: B rows, D embedding width, H x W pixels, L lines on a page, S prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RowId
from pipeline.rows import Rows

__all__ = [
    "Answers", "Chunks", "Citation", "Completions", "Corpora", "Documents", "Embeddings", "Hits",
    "Indexes", "PageTexts", "Pages", "Passage", "Passages", "Prompts", "Queries", "RowId", "Rows",
    "Steps",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Documents(Rows):
    """Files to read. Id: `(name,)`, the path relative to the documents folder, with `/`."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pages(Rows):
    """Pages to read. Id: `(document, page)`, counted from 1; a format without pages is one page."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageTexts(Rows):
    """What a page says, or its picture where it says nothing. Id: `(document, page)`.

    `images`: uint8 [H, W, 3] RGB, upright, where `texts` is empty and the page shows something; else None.
    `spans`: int32 [L, 2], start and end of each line in the text; `boxes`: float32 [L, 4], its place as
    x0, y0, x1, y1 in fractions of the page, origin top left. Both are empty where the format has no places.
    `headings`: tuple of (offset in the text, heading). `sources`: how it was read: "pdf", "ocr",
    "text (cp1252)".
    """

    texts: tuple[str, ...]
    images: tuple[NDArray[np.uint8] | None, ...]
    spans: tuple[NDArray[np.int32], ...]
    boxes: tuple[NDArray[np.float32], ...]
    headings: tuple[tuple[tuple[int, str], ...], ...]
    sources: tuple[str, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Thousands of pixels of each page that are still to be read."""
        return tuple(0 if i is None else i.shape[0] * i.shape[1] // 1000 + 1 for i in self.images)


@dataclass(frozen=True, slots=True)
class Chunks(Rows):
    """Pieces of pages. Id: `(document, page, chunk)`.

    `texts` is the source, to the letter; `matches` is its normalised form, which is embedded and indexed.
    `starts`, `ends`: character offsets in the page's text. `boxes`: float32 [L, 4] as in `PageTexts`.
    """

    texts: tuple[str, ...]
    matches: tuple[str, ...]
    headings: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    boxes: tuple[NDArray[np.float32], ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Characters of each chunk."""
        return tuple(len(t) for t in self.matches)


@dataclass(frozen=True, slots=True)
class Embeddings(Rows):
    """`vectors`: float32 [B, D], unit length."""

    vectors: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Queries(Rows):
    """Questions, or what is searched for them. Id: `(question id,)`.

    `documents`: a glob over document names that restricts the search; empty for all.
    """

    texts: tuple[str, ...]
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Indexes(Rows):
    """Indexes on disk, by folder. Id: `()`, the index of the whole corpus."""

    whole: ClassVar[bool] = True
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corpora(Rows):
    """Chunk stores on disk, by folder. Id: `()`, the whole corpus."""

    whole: ClassVar[bool] = True
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hits(Rows):
    """Search results, best first. Id: `(question id,)`.

    `chunks`: per row the ids of at most k chunks; `scores`: per row float32 [K], larger is better.
    """

    chunks: tuple[tuple[RowId, ...], ...]
    scores: tuple[NDArray[np.float32], ...]


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
class Completions(Rows):
    """What a model said. `stops`: "end", "length", or "skipped" where there was no prompt."""

    texts: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]
    stops: tuple[str, ...]


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
