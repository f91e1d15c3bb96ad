"""Plain text and Markdown, in whatever encoding it comes.

The encoding is found by byte order mark, then as UTF-8, then as UTF-16 where zero bytes say so, then
as Windows-1252, the old default of the West, which is named in the page's source because it is a guess.
Nothing is guessed from letter frequencies: such guesses are wrong without a word.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pipeline.errors import RowError
from vision.page import Options, Page, clean, single

_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD = 4096  # bytes that decide whether zero bytes make it UTF-16


@dataclass(frozen=True, slots=True)
class TextReader:
    """A text file as one page."""

    def count(self, path: str, options: Options) -> int:
        """1, once the text can be decoded."""
        return 1

    def read(self, path: str, number: int, options: Options) -> Page:
        """The text to the letter, but for line ends and control characters. Raises RowError: unreadable."""
        single(number)
        text, encoding = decode(Path(path).read_bytes())
        return Page(text=clean(text), source=source("text", encoding))


@dataclass(frozen=True, slots=True)
class MarkdownReader:
    """A Markdown file as one page; the marks stay in the text, headings are found by CommonMark's rules."""

    def count(self, path: str, options: Options) -> int:
        """1."""
        return 1

    def read(self, path: str, number: int, options: Options) -> Page:
        """The text to the letter, with the offsets of its headings. Raises RowError: unreadable."""
        single(number)
        raw, encoding = decode(Path(path).read_bytes())
        text = clean(raw)
        return Page(text=text, source=source("markdown", encoding), headings=tuple(headings(text)))


def source(kind: str, encoding: str) -> str:
    """How a page was read, with the encoding where it is not UTF-8: "text (cp1252)"."""
    return kind if encoding.startswith("utf-8") else f"{kind} ({encoding})"


def decode(data: bytes) -> tuple[str, str]:
    """The text of `data` and its encoding, as the module says. Raises RowError: unreadable."""
    for encoding in _candidates(data):
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise RowError("unreadable", "neither UTF-8, UTF-16 nor Windows-1252 text; save it as UTF-8")


def headings(text: str) -> Iterator[tuple[int, str]]:
    """Offset in `text` and words of each Markdown heading."""
    from markdown_it import MarkdownIt

    body = _after_front_matter(text)
    starts = [body]
    for line in text[body:].split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    tokens = MarkdownIt("commonmark").parse(text[body:])
    for opening, words in pairwise(tokens):
        if opening.type == "heading_open" and opening.map and words.content.strip():
            yield starts[opening.map[0]], " ".join(words.content.split())


def _after_front_matter(text: str) -> int:
    """Where Markdown begins: after YAML between two lines of `---`, which would look like a heading."""
    end = text.find("\n---\n", 3) if text.startswith("---\n") else -1
    return end + 5 if end >= 0 else 0


def _candidates(data: bytes) -> tuple[str, ...]:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return (encoding,)
    head = data[:_HEAD]
    if b"\0" not in head:
        return ("utf-8", "cp1252")
    even, odd = (2 * head[i::2].count(0) / len(head) for i in (0, 1))
    if odd > 0.3 and even < 0.05:
        return ("utf-16-le",)
    if even > 0.3 and odd < 0.05:
        return ("utf-16-be",)
    return ()  # zero bytes anywhere else: no text at all
