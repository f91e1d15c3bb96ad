"""Values on edges: batches of rows, as `pipeline.rows` has them.

Ids are paths, so their arithmetic is that of paths: a one-to-many stage appends one element, a many-to-one
stage cuts, and a row meets every row whose id it is a prefix of. Nothing here knows of models or files.

Shapes: B rows, D embedding width, H x W pixels, L lines on a page, S prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RowId
from pipeline.generated import (
    Answers,
    Citation,
    Completions,
    KVCache,
    Passage,
    Passages,
    Prompts,
    Steps,
)
from pipeline.rows import Rows

__all__ = [
    "Answers", "Chunks", "Citation", "Completions", "Corpora", "Documents", "Embeddings", "Hits",
    "Indexes", "KVCache", "PageTexts", "Pages", "Passage", "Passages", "Prompts", "Queries", "RowId", "Rows",
    "Steps",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Documents(Rows):
    """Files to read. Id: `(name,)`, the path relative to the documents folder, with `/`."""

    paths: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    """Bytes of each; 0 where nobody has looked, of all by default."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", self.sizes or (0,) * len(self.ids))
        Rows.__post_init__(self)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Thousands of bytes of each file, begun ones counted."""
        return tuple(-(-n // 1000) for n in self.sizes) if any(self.sizes) else None


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
    lossy: ClassVar[tuple[str, ...]] = ("vectors",)


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
