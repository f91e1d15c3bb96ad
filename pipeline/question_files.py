"""From the bytes of a question file to its raw rows: JSONL, CSV, plain text.

A reader yields each row's line number, its fields, and what is wrong with it, if anything; the rows
after a bad one are read all the same. Keys become lower case. Nothing here guesses an encoding: a byte
order mark decides, else it is UTF-8. What a field means is the business of `pipeline.questions`.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import RidgewayError

FIELDS: Mapping[str, tuple[str, ...]] = {
    "question": ("question",),
    "id": ("id",),
    "documents": ("documents", "source docs"),
    "answers": ("answers", "answer", "answer(s)"),
    "gold": ("gold",),
    "gold_docs": ("gold_docs",),
}
"""Each field and the keys or column names under which it is found."""

FIELD_OF = {key: name for name, keys in FIELDS.items() for key in keys}

SLIP = 0.88
"""Likeness from which an unknown key is taken for a slip: `anwers` is one, `question type` is not."""

BOMS = (  # the marks of UTF-32 come first: they begin like those of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

Row = tuple[int, dict[str, Any], str]
"""Line number, from 1; the row's fields by name; what is wrong with the row, or nothing."""


def rows(path: Path) -> Iterator[Row]:
    """The rows of the file, by its suffix. Raises RidgewayError where the whole file is in doubt."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise RidgewayError(f"{path}: questions are read from {', '.join(READERS)}, not {path.suffix!r}")
    return reader(decode(path), path.name)


def decode(path: Path) -> str:
    """The file's text without its byte order mark. Raises RidgewayError naming the byte that is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RidgewayError(f"{path}: cannot read the questions: {error.strerror}") from error
    encoding = next((name for mark, name in BOMS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RidgewayError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} at offset {error.start} is no {encoding}; "
            f"save the file as UTF-8"
        ) from error
    if "\0" in text:
        at = text.index("\0")
        raise RidgewayError(f"{path}: character {at} is NUL, as in UTF-16 without a mark; save it as UTF-8")
    return text.removeprefix("\ufeff")


def _jsonl(text: str, name: str) -> Iterator[Row]:
    for line, source in enumerate(text.split("\n"), 1):  # splitlines would cut at U+2028 inside a string
        if not source.strip():
            continue
        try:
            row = json.loads(source, object_pairs_hook=_unique, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            at = (
                f"{error.msg}, column {error.colno}"
                if isinstance(error, json.JSONDecodeError)
                else str(error)
            )
            yield line, {}, f"no JSON: {at}"
            continue
        if isinstance(row, dict):
            keys = [key.strip().lower() for key in row]
            yield line, _fields(keys, row.values()), key_fault(keys)
        else:
            yield line, {}, f"expected a JSON object, found {reprlib.repr(row)}"


def _fields(keys: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    """The values under our names for them; keys that are not ours are left out."""
    return {FIELD_OF[key]: value for key, value in zip(keys, values, strict=False) if key in FIELD_OF}


def _csv(text: str, name: str) -> Iterator[Row]:
    header, delimiter = _header(text, name)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    next(reader)  # the header
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, {}, f"no CSV: {error}"
            continue
        fault = f"{len(cells)} cells under {len(header)} columns; quote cells that hold {delimiter!r}"
        if any(cell.strip() for cell in cells):  # spreadsheets leave rows of commas behind
            row = {field: _cell(field, cell) for field, cell in _fields(header, cells).items()}
            yield line, row, fault if len(cells) > len(header) else ""


def _cell(field: str, cell: str) -> Any:
    """A cell as JSON would have it: empty is absent, and several globs may stand in one."""
    if not cell.strip() and field != "question":
        return None
    if field in ("documents", "gold_docs"):
        return cell.replace(",", "\n").split("\n")
    if field == "gold":
        try:
            return json.loads(cell)
        except ValueError:
            return cell  # refused, with what was found, when the question is made
    return cell


def _header(text: str, name: str) -> tuple[list[str], str]:
    """Column names in lower case, and the delimiter under which `question` is among them."""
    headers = {mark: _columns(text, mark) for mark in ",;\t"}
    mark = next((mark for mark, header in headers.items() if "question" in header), ",")
    header = headers[mark]
    fault = key_fault(header)
    if "question" not in header and not fault:
        first = reprlib.repr(text.partition("\n")[0])
        fault = f"expected a header row with the column 'question', found {first}"
    if fault:
        raise RidgewayError(f"{name}:1: {fault}")
    return header, mark


def _columns(text: str, delimiter: str) -> list[str]:
    """The first row's cells, in lower case; none where it is no CSV with that delimiter."""
    try:
        cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []
    return [cell.strip().lower() for cell in cells]


def _txt(text: str, name: str) -> Iterator[Row]:
    for line, source in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        if source.strip() and not source.lstrip().startswith("#"):
            yield line, {"question": source}, ""


READERS: Mapping[str, Callable[[str, str], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
    ".tsv": _csv,
    ".txt": _txt,
}
"""Readers of a file's text by its suffix; the second argument is the file's name, for messages."""


def key_fault(keys: Sequence[str]) -> str:
    """What is wrong with these keys: one nearly like a field that is absent, or one field twice."""
    seen: dict[str, str] = {}
    for key in keys:
        field = FIELD_OF.get(key)
        if field is not None and field in seen:
            return f"keys {seen[field]!r} and {key!r} are the same field; keep one"
        if field is not None:
            seen[field] = key
    absent = [key for key, field in FIELD_OF.items() if field not in seen]
    for key in keys:
        close = [] if key in FIELD_OF else difflib.get_close_matches(key, absent, n=1, cutoff=SLIP)
        if close:
            return f"unknown key {key!r}; did you mean {close[0]!r}?"
    return ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"key {key!r} is given twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not in JSON")
