"""Corpora as JSON lines: each line is an object with `text`, perhaps `title` or `doc_id`, and is a page.

The page number is the line's number. A bad line is an error of that page alone. Lines are found by an
index of offsets that each process makes once for each file, so that page n costs one seek.
"""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import dataclass
from functools import lru_cache

from pipeline.errors import RowError
from vision.page import Options, Page, clean


@dataclass(frozen=True, slots=True)
class JsonlReader:
    """A .jsonl file, a line a page."""

    def count(self, path: str, options: Options) -> int:
        """Lines up to the last that is not blank."""
        return len(_index(path)) - 1

    def read(self, path: str, number: int, options: Options) -> Page:
        """The `text` of a line; its `title`, or else its `doc_id`, is the heading. Raises RowError."""
        offsets = _index(path)
        if not 1 <= number < len(offsets):
            raise RowError("unreadable", f"line {number} was asked for, but the file has {len(offsets) - 1}")
        with open(path, "rb") as file:
            file.seek(offsets[number - 1])
            line = file.read(offsets[number] - offsets[number - 1])
        return _page(line, number)


def _page(line: bytes, number: int) -> Page:
    try:
        record = json.loads(line.decode("utf-8-sig")) if line.strip() else {"text": ""}
    except ValueError as error:
        raise RowError("unreadable", f"line {number} is not JSON in UTF-8: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise RowError("unreadable", f'line {number} is no object with a text, like {{"text": "..."}}')
    title = record.get("title") or record.get("doc_id") or ""
    heading = " ".join(clean(str(title)).split())
    return Page(text=clean(record["text"]), source="jsonl", headings=((0, heading),) if heading else ())


def _index(path: str) -> array[int]:
    stat = os.stat(path)
    return _offsets(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)  # the pages of a file are asked for one after another
def _offsets(path: str, modified: int, size: int) -> array[int]:
    """Where each line begins, and where the last that is not blank ends."""
    offsets, filled = array("q", [0]), 1
    with open(path, "rb") as file:
        for line in file:
            offsets.append(offsets[-1] + len(line))
            if line.strip():
                filled = len(offsets)
    return offsets[:filled]
