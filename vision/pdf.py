"""PDF pages by PDFium: text with the place of each line, or the rendered page where there is no text.

PDFium is not thread-safe and may crash or loop on damaged files: run it through `vision.isolate`. Text
comes in the order of the content stream, which is the reading order of nearly all producers. PDFium decides
where lines and words end by the page as it is turned, so each page is first turned until most of its
letters stand upright: `/Rotate` then changes nothing. Tables are lines, not cells; fonts are not read.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RowError
from vision.page import Box, Options, Page, clean, page_of_lines

_HYPHEN = 0x02  # PDFium's sign for a hyphen that ends a line; it also drops the line break
_SAMPLE = 64  # characters whose angle is asked to find how the text of a page is turned


@dataclass(frozen=True, slots=True)
class PdfReader:
    """Pages of a PDF."""

    def count(self, path: str, options: Options) -> int:
        """Pages in the page tree. Raises RowError: unreadable, encrypted."""
        return len(_open(path, options.passwords))

    def read(self, path: str, number: int, options: Options) -> Page:
        """The text of a page with a span and a box for each line; a page without text is rendered.

        Raises RowError: unreadable, encrypted.
        """
        page = _page(_open(path, options.passwords), number)
        try:
            turned = page.get_rotation()
            text, codes = _upright_text(page, turned)
            lines = [] if _garbled(codes) else list(_lines(text, codes, page.get_bbox(), turned))
            if lines:
                return page_of_lines(lines, "pdf")
            page.set_rotation(turned)
            return Page(text="", source="pdf", image=_render(page, options))
        finally:
            page.close()


def _open(path: str, passwords: tuple[str, ...]) -> Any:
    stat = os.stat(path)
    return _document(path, passwords, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)  # pages are asked for in order, and opening costs as much as reading one
def _document(path: str, passwords: tuple[str, ...], modified: int, size: int) -> Any:
    import pypdfium2 as pdfium
    from pypdfium2 import raw

    reasons = set()
    for password in (None, *passwords):
        try:
            document = pdfium.PdfDocument(path, password=password)
        except pdfium.PdfiumError as error:
            reasons.add(error.err_code)
            continue
        if document.get_formtype() != raw.FORMTYPE_NONE:
            document.init_forms()
        return document
    if reasons & {raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY}:
        tried = f"none of the {len(passwords)} configured opens it" if passwords else "none is configured"
        raise RowError("encrypted", f"the PDF needs a password and {tried}; put it into `passwords_file`")
    raise RowError(
        "unreadable", "no PDF that can be opened: damaged, cut off or something else; export it again"
    )


def _page(document: Any, number: int) -> Any:
    """The page, with what is filled into forms as part of its content."""
    import pypdfium2 as pdfium

    if not 1 <= number <= len(document):
        raise RowError("unreadable", f"page {number} was asked for, but the PDF has {len(document)} pages")
    try:
        page = document[number - 1]
        if document.formenv:
            page.flatten()
            page.close()
            page = document[number - 1]
        return page
    except pdfium.PdfiumError as error:
        raise RowError("unreadable", f"the page is damaged ({error}); export the file again") from error


def _upright_text(page: Any, turned: int) -> tuple[Any, NDArray[np.int64]]:
    """PDFium's text of the page and its code points, the page turned until most letters are upright."""
    text = page.get_textpage()
    upright = _upright(text)
    if upright != turned:
        page.set_rotation(upright)
        text = page.get_textpage()
    return text, _codes(text)


def _lines(text: Any, codes: NDArray[np.int64], view: Box, turned: int) -> Iterator[tuple[str, Box]]:
    """Lines that are not blank, with their places on the page as displayed: turned by `turned` degrees."""
    from pypdfium2 import raw

    start, last = 0, len(codes)
    for end in [*np.flatnonzero((codes == 10) | (codes == 13) | (codes == _HYPHEN)).tolist(), last]:
        hyphen = end < last and codes[end] == _HYPHEN
        if hyphen and raw.FPDFText_IsHyphen(text, end) != 1:
            continue  # a letter without a meaning, in a mathematical font
        line = clean("".join(map(chr, codes[start:end]))).rstrip() + ("-" if hyphen else "")
        if line.strip():
            yield line, _displayed(_bounds(text, start, end), view, turned)
        start = end + 1


def _codes(text: Any) -> NDArray[np.int64]:
    """Code points of the page's characters; halves of a pair are joined, the place of the second is 0."""
    from pypdfium2 import raw

    codes = np.fromiter((raw.FPDFText_GetUnicode(text, i) for i in range(text.count_chars())), np.int64)
    codes[codes > 0x10FFFF] = 0
    first = np.flatnonzero((codes[:-1] & ~0x3FF == 0xD800) & (codes[1:] & ~0x3FF == 0xDC00))
    codes[first] = 0x10000 + ((codes[first] & 0x3FF) << 10) + (codes[first + 1] & 0x3FF)
    codes[first + 1] = 0
    return codes


def _upright(text: Any) -> int:
    """The rotation, in degrees clockwise, that makes most of a sample of the letters upright."""
    from pypdfium2 import raw

    count = text.count_chars()
    angles = [raw.FPDFText_GetCharAngle(text, i) for i in range(0, count, max(1, count // _SAMPLE))]
    quarters = [round(a / (math.pi / 2)) % 4 for a in angles if a >= 0]
    return 90 * max(range(4), key=quarters.count)


def _bounds(text: Any, start: int, end: int) -> Box:
    """Left, bottom, right, top of the characters, in points of the page before it is turned."""
    from pypdfium2 import raw

    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    boxes = [
        (left.value, bottom.value, right.value, top.value)
        for i in range(start, end)
        if raw.FPDFText_GetCharBox(text, i, left, right, bottom, top) and right.value > left.value
    ]
    if not boxes:
        return (0.0, 0.0, 0.0, 0.0)
    x0, y0, x1, y1 = zip(*boxes, strict=True)
    return min(x0), min(y0), max(x1), max(y1)


def _displayed(bounds: Box, view: Box, turned: int) -> Box:
    """A box in points, origin bottom left, as fractions of the page turned clockwise, origin top left."""
    left, bottom, right, top = view
    width, height = max(right - left, 1e-6), max(top - bottom, 1e-6)
    x0, x1 = (bounds[0] - left) / width, (bounds[2] - left) / width
    y0, y1 = (top - bounds[3]) / height, (top - bounds[1]) / height
    quarter = {
        0: (x0, y0, x1, y1),
        90: (1 - y1, x0, 1 - y0, x1),
        180: (1 - x1, 1 - y1, 1 - x0, 1 - y0),
        270: (y0, 1 - x1, y1, 1 - x0),
    }
    return quarter[turned]


def _garbled(codes: NDArray[np.int64]) -> bool:
    """Whether most characters mean nothing: unmapped fonts, or UTF-16 with its bytes swapped."""
    letters = codes[(codes > 32) | ((codes > 0) & ~np.isin(codes, (_HYPHEN, 9, 10, 13, 32)))]
    bad = (letters < 32) | ((letters >= 0x7F) & (letters < 0xA0)) | (letters == 0xFFFD)
    bad |= ((letters >= 0xE000) & (letters < 0xF900)) | (letters >= 0xF0000)  # private use
    bad |= (letters >= 0x100) & (letters % 256 == 0)
    return 2 * int(bad.sum()) > len(letters)


def _render(page: Any, options: Options) -> NDArray[np.uint8] | None:
    """uint8 [H, W, 3] RGB of the page as displayed, or None where it shows nothing."""
    width, height = (max(side, 1e-3) for side in page.get_size())
    # The largest scale with (width * scale + 1) * (height * scale + 1) <= max_pixels: sides are rounded up.
    area, sides = width * height, width + height
    fitting = (math.sqrt(sides**2 + 4 * area * (options.max_pixels - 1)) - sides) / (2 * area)
    bitmap = page.render(scale=min(options.dpi / 72, fitting), rev_byteorder=True)
    pixels = bitmap.to_numpy()[:, :, :3]
    if (pixels == pixels[0, 0]).all():
        return None
    return np.array(pixels, np.uint8)
