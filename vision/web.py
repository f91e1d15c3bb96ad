"""HTML pages: what a reader sees, block by block, with its headings.

Scripts, styles and hidden elements are left out, white space is as a browser shows it, cells of a table
row are joined by " | ". No layout, no styles but `display: none` on the element itself.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import RowError
from vision.page import Options, Page, clean, single
from vision.text import decode, source

_UNSEEN = frozenset(
    (
        *("head", "script", "style", "noscript", "template", "iframe", "object"),
        *("svg", "canvas", "audio", "video", "select", "datalist"),
    )
)
_BLOCKS = frozenset(
    (
        *(
            "address",
            "article",
            "aside",
            "blockquote",
            "body",
            "br",
            "caption",
            "dd",
            "details",
            "dialog",
            "div",
        ),
        *(
            "dl",
            "dt",
            "fieldset",
            "figcaption",
            "figure",
            "footer",
            "form",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
        ),
        *("header", "hr", "legend", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table"),
        *("tbody", "tfoot", "thead", "tr", "ul"),
    )
)
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_CHARSET = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HtmlReader:
    """An HTML file as one page."""

    def count(self, path: str, options: Options) -> int:
        """1."""
        return 1

    def read(self, path: str, number: int, options: Options) -> Page:
        """The visible text with the offsets of its headings. Raises RowError: unreadable."""
        single(number)
        markup, encoding = _decode(Path(path).read_bytes())
        return visible(markup, source("html", encoding))


def visible(markup: str, how: str) -> Page:
    """The visible text of `markup` and its headings, as a page read by `how`."""
    from selectolax.lexbor import LexborHTMLParser

    writer = _Writer()
    root = LexborHTMLParser(markup).root
    stack: list[tuple[Any, bool]] = [(root, False)] if root is not None else []
    while stack:  # not recursive: documents may be nested deeper than Python's stack
        node, leaving = stack.pop()
        if node.tag == "-text":
            writer.write(node.text(deep=False) or "")
        elif leaving:
            writer.leave(node.tag)
        elif node.tag not in _UNSEEN and not _hidden(node):
            writer.enter(node.tag)
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(list(node.iter(include_text=True))))
    return writer.page(how)


@dataclass(slots=True)
class _Writer:
    """Text so far: finished lines, the words of the current one, and where headings began."""

    lines: list[str] = field(default_factory=list)
    line: str = ""
    length: int = 0
    broken: bool = False  # the next text begins a line
    pre: int = 0
    heading: tuple[int, int] | None = None  # its offset, its first line
    headings: list[tuple[int, str]] = field(default_factory=list)

    def write(self, text: str) -> None:
        text = clean(text)
        if self.broken and text.strip():
            self.end()
        if self.pre:
            *whole, text = text.split("\n")
            for part in whole:
                self.line += part
                self.end()
            self.line += text
        else:
            text = re.sub(r"[ \t\n\f]+", " ", text)
            self.line += text.lstrip(" ") if not self.line or self.line.endswith(" ") else text

    def enter(self, tag: str) -> None:
        if tag in ("td", "th") and self.line.strip():
            self.line = self.line.rstrip() + " | "
            self.broken = False
        self._break(tag)
        if tag == "pre":
            self.pre += 1
        if tag in _HEADINGS:
            self.end()
            self.heading = (self.length, len(self.lines))

    def leave(self, tag: str) -> None:
        self._break(tag)
        if tag == "pre":
            self.pre -= 1
        if tag in _HEADINGS and self.heading is not None:
            self.end()
            offset, first = self.heading
            words = " ".join(" ".join(self.lines[first:]).split())
            if words:
                self.headings.append((offset, words))
            self.heading = None

    def _break(self, tag: str) -> None:
        """Blocks break the line once more text comes; so a paragraph in a cell does not end the row."""
        if tag == "tr":
            self.end()
        elif tag in _BLOCKS and not self.line.endswith(" | "):
            self.broken = True

    def end(self) -> None:
        line = self.line.rstrip().removesuffix(" |")
        if line:
            self.lines.append(line)
            self.length += len(line) + 1
        self.line = ""
        self.broken = False

    def page(self, how: str) -> Page:
        self.end()
        return Page(text="\n".join(self.lines), source=how, headings=tuple(self.headings))


def _hidden(node: Any) -> bool:
    attributes = node.attributes
    style = (attributes.get("style") or "").replace(" ", "").lower()
    return "hidden" in attributes or "display:none" in style


def _decode(data: bytes) -> tuple[str, str]:
    """As `vision.text.decode`, but a declared character set comes before the guess."""
    marked = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    declared = None if marked else _CHARSET.search(data[:4096])
    if declared:
        name = declared.group(1).decode("ascii", "replace").lower()
        try:
            name = codecs.lookup(name).name
            if name in ("iso8859-1", "ascii"):  # browsers, too, take this to mean Windows-1252
                name = "cp1252"
            return data.decode(name), name
        except (LookupError, UnicodeDecodeError):
            pass  # declared wrongly, as is common: find out
    try:
        return decode(data)
    except RowError:
        return data.decode("utf-8", "replace"), "utf-8, damaged"
