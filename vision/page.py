"""What every reader gives and takes: one page at a time, from one file.

A reader is a class without parameters that opens one format. It counts the pages of a file and reads
one of them, by number from 1; a format without pages is page 1. Readers raise `RowError` for what is wrong
with the file, and run in processes that may be killed (`vision.isolate`), so they keep no state that
matters. They do not normalise: what they give is the source, to the letter, that citations quote.

Shapes: L lines on a page, H x W pixels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RidgewayError, RowError
from pipeline.lookup import find, near_miss
from vision import READERS

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in fractions of the page as displayed, origin top left."""

MAX_SOURCE_PIXELS = 178_000_000
"""Images above this are refused by their header: 3 bytes a pixel make half a gigabyte."""

# Control characters but tab and newline, the byte order mark, surrogates and the two non-characters.
_DROPPED = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufeff\ud800-\udfff\ufffe\uffff]")


def _no_spans() -> NDArray[np.int32]:
    return np.zeros((0, 2), np.int32)


def _no_boxes() -> NDArray[np.float32]:
    return np.zeros((0, 4), np.float32)


@dataclass(frozen=True, slots=True)
class Page:
    """One page, in the terms of `PageTexts`: its text, or its image where it has none.

    `image`: uint8 [H, W, 3] RGB, upright. `spans`: int32 [L, 2] start and end of each line in the text.
    `boxes`: float32 [L, 4] as `Box`. `headings`: (offset in the text, heading). `source`: how it was read.
    """

    text: str
    source: str
    image: NDArray[np.uint8] | None = None
    spans: NDArray[np.int32] = field(default_factory=_no_spans)
    boxes: NDArray[np.float32] = field(default_factory=_no_boxes)
    headings: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """How pages are read: `dpi` of renderings, `max_pixels` of any image handed on, `passwords` to try."""

    dpi: int = 200
    max_pixels: int = 40_000_000
    passwords: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name, low, high in (("dpi", 10, 2400), ("max_pixels", 1024, MAX_SOURCE_PIXELS)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise RidgewayError(f"{name} must be between {low} and {high}, got {value!r}")


class Reader(Protocol):
    """One file format."""

    def count(self, path: str, options: Options) -> int:
        """How many pages the file has. Raises RowError for a file that cannot be opened."""

    def read(self, path: str, number: int, options: Options) -> Page:
        """Page `number`, from 1. Raises RowError for a page that cannot be read."""


def extension(name: str) -> str:
    """The ending that decides the reader: lower case, with its dot."""
    return PurePath(name).suffix.lower()


def count_pages(path: str, options: Options) -> int:
    """Pages of the file at `path`. Raises RowError: unreadable, encrypted, empty."""
    try:
        count = _reader(path).count(path, options)
    except (OSError, RecursionError) as error:
        raise _unreadable(error) from error
    if count < 1:
        raise RowError("empty", "the file has no pages; remove it or export it again")
    return count


def read_page(path: str, number: int, options: Options) -> Page:
    """Page `number` (from 1) of the file at `path`.

    Raises RowError: unreadable, encrypted, empty, too long.
    """
    try:
        return _reader(path).read(path, number, options)
    except (OSError, RecursionError) as error:
        raise _unreadable(error) from error


def single(number: int) -> None:
    """Check the page number of a format without pages. Raises RowError."""
    if number != 1:
        raise RowError("unreadable", f"page {number} was asked for, but the format has only page 1")


def clean(text: str) -> str:
    r"""The text with `\n` line ends and without control characters, byte order marks and lone surrogates."""
    return _DROPPED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def page_of_lines(lines: Sequence[tuple[str, Box]], source: str) -> Page:
    """A page from its lines, in reading order, joined by newlines; boxes are clipped to the page."""
    ends = np.cumsum([len(text) + 1 for text, _ in lines], dtype=np.int32) - 1
    starts = ends - np.asarray([len(text) for text, _ in lines], np.int32)
    boxes = np.asarray([box for _, box in lines], np.float32).reshape(-1, 4)
    return Page(
        text="\n".join(text for text, _ in lines),
        source=source,
        spans=np.stack([starts, ends], axis=1).astype(np.int32),
        boxes=np.clip(boxes, 0.0, 1.0),
    )


def _reader(path: str) -> Reader:
    name = extension(path)
    if name not in READERS:
        raise RowError("unreadable", f"no reader for the ending {name!r}{near_miss(name, READERS)}")
    if os.stat(path).st_size == 0:
        raise RowError("empty", "the file has zero bytes; remove it or copy it again")
    reader: Reader = find(name, READERS, "reader")()
    return reader


def _unreadable(error: OSError | RecursionError) -> RowError:
    if isinstance(error, RecursionError):
        return RowError("unreadable", "the file is nested too deeply to be read; export it again")
    reason = error.strerror or str(error) or type(error).__name__
    return RowError("unreadable", f"the file cannot be read ({reason}); check that it is there and complete")
