"""Word documents: paragraphs and tables in document order, headings by style.

The text is taken from the XML below python-docx's paragraphs, which leave out insertions that nobody has
accepted yet, content controls and text boxes. Deleted text, comments, notes, headers and footers are not
part of the page. Pages are made by Word when it prints, so a document is one page here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from pipeline.errors import RowError
from vision.page import Options, Page, clean, single

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_SIGNS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")


@dataclass(frozen=True, slots=True)
class DocxReader:
    """A .docx file as one page."""

    def count(self, path: str, options: Options) -> int:
        """1."""
        return 1

    def read(self, path: str, number: int, options: Options) -> Page:
        """Paragraphs and table rows, one line each, cells joined by " | ".

        Raises RowError: unreadable, encrypted.
        """
        single(number)
        document = _open(path)
        names = {style.style_id: style.name or "" for style in document.styles}
        lines: list[str] = []
        headings: list[tuple[int, str]] = []
        offset = 0
        for line, style in _blocks(document.element.body):
            if names.get(style, "").lower().startswith(("heading", "title")):
                headings.append((offset, " ".join(line.split())))
            lines.append(line)
            offset += len(line) + 1
        return Page(text="\n".join(lines), source="docx", headings=tuple(headings))


def _open(path: str) -> Any:
    import docx
    from docx.opc.exceptions import PackageNotFoundError

    with Path(path).open("rb") as file:
        if file.read(8) == _OLE:
            if "EncryptedPackage".encode("utf-16-le") in file.read():
                raise RowError("encrypted", "the Word document needs a password; save it without one")
            raise RowError("unreadable", "an old .doc file under the name .docx; save it as .docx")
    try:
        return docx.Document(path)
    except (PackageNotFoundError, BadZipFile, KeyError, ValueError, SyntaxError) as error:
        raise RowError("unreadable", f"no complete .docx package ({error}); save it again") from error


def _blocks(container: Any) -> Iterator[tuple[str, str]]:
    """Text and style id of each paragraph and table row below `container` that is not blank."""
    for block in container:
        if block.tag == f"{_W}p":
            style = block.find(f"{_W}pPr/{_W}pStyle")
            text = _text(block).rstrip()
            if text.strip():
                yield text, "" if style is None else style.get(f"{_W}val", "")
        elif block.tag == f"{_W}tbl":
            yield from ((row, "") for row in _rows(block) if row.strip(" |"))
        elif block.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}ins"):
            yield from _blocks(block)


def _rows(table: Any) -> Iterator[str]:
    for row in table.iter(f"{_W}tr"):
        if next(row.iterancestors(f"{_W}tbl")) is table:
            cells = (c for c in row.iter(f"{_W}tc") if next(c.iterancestors(f"{_W}tr")) is row)
            yield " | ".join(" ".join(" ".join(map(_text, c.iter(f"{_W}p"))).split()) for c in cells)


def _text(paragraph: Any) -> str:
    """What the paragraph says; text boxes that hang on it are lines of their own."""
    parts: list[str] = []
    skipped: set[Any] = set()
    for element in paragraph.iter():
        if element.getparent() in skipped or element.tag == f"{_MC}Fallback":
            skipped.add(element)  # the same text box again, for old programs
        elif element.tag == f"{_W}t":
            parts.append(element.text or "")
        elif element.tag in _SIGNS and element.getparent().tag == f"{_W}r":
            parts.append(_SIGNS[element.tag])
        elif element.tag == f"{_W}p" and element is not paragraph and parts:
            parts.append("\n")
    return clean("".join(parts))
