"""Chunks on disk, found by id.

The idea: one file of JSON lines that anyone can read, and beside it where each line begins and a sorted
table of hashed ids, both memory-mapped: opening a corpus of millions costs nothing, a lookup touches three
pages. Rows are written in the order of their ids, so the files do not depend on the order of arrival, and
into a new folder that then takes the place of the old: a reader sees the one or the other, whole.

Deliberately not here: search, and changing a corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RidgewayError, RowId
from pipeline.rows import row_order
from pipeline.values import Chunks, Passage

FORMAT = 1
_ROWS, _OFFSETS, _KEYS, _ABOUT = "rows.jsonl", "offsets.npy", "keys.npy", "corpus.json"
_DIGITS = 6
"""Decimals of a box: a millionth of a page is far below a pixel."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """An open corpus of N chunks, in the order of their ids; safe to share between threads.

    `offsets`: int64 [N + 1], bytes in the file of rows; `keys`: uint64 [2, N], hashed ids ascending and
    the row of each. Both are mapped, as are the rows themselves.
    """

    folder: Path
    rows: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    keys: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __contains__(self, id: object) -> bool:
        return isinstance(id, tuple) and self._find(id) is not None

    def ids(self) -> Iterator[RowId]:
        """The ids of all chunks, in order; reads every row."""
        return (tuple(self._row(i)["id"]) for i in range(len(self)))

    def passage(self, id: RowId, score: float) -> Passage:
        """The chunk called `id`, as found with `score`. Raises KeyError where there is none."""
        row = self._find(id)
        if row is None:
            raise KeyError(id)
        boxes = tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in row["boxes"])
        return Passage(id, row["text"], row["heading"], row["start"], row["end"], score, boxes)

    def _find(self, id: RowId) -> dict[str, Any] | None:
        hashes, places = self.keys
        wanted = _hash(id)
        first, last = (int(np.searchsorted(hashes, wanted, side)) for side in ("left", "right"))
        rows = (self._row(int(places[i])) for i in range(first, last))
        return next((row for row in rows if tuple(row["id"]) == id), None)

    def _row(self, i: int) -> dict[str, Any]:
        line = self.rows[int(self.offsets[i]) : int(self.offsets[i + 1])]
        row: dict[str, Any] = json.loads(line.tobytes())
        return row


def write(folder: Path, chunks: Chunks) -> None:
    """Put `chunks` in `folder`, in place of what is there; none is a corpus too.

    Raises ValueError where an id comes twice, OSError as the file system does; then the old corpus stays.
    """
    order = sorted(range(len(chunks)), key=lambda i: row_order(chunks.ids[i]))
    if len(set(chunks.ids)) < len(order):
        raise ValueError(f"a corpus for {folder} has an id twice among its {len(order)} chunks")
    temporary = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    temporary.mkdir(parents=True)
    try:
        _write(temporary, chunks, order)
        _replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_corpus(folder: Path) -> Corpus:
    """The corpus in `folder`, mapped. Raises RidgewayError where there is none of this format."""
    about = folder / _ABOUT
    if not about.is_file():
        raise RidgewayError(f"no corpus in {folder}: index the documents first")
    form = json.loads(about.read_text(encoding="utf-8")).get("format")
    if form != FORMAT:
        raise RidgewayError(f"the corpus in {folder} has format {form!r}, not {FORMAT}: index again")
    offsets, keys = (np.load(folder / name, mmap_mode="r") for name in (_OFFSETS, _KEYS))
    rows = folder / _ROWS
    mapped = np.memmap(rows, mode="r") if rows.stat().st_size else np.zeros(0, dtype=np.uint8)
    return Corpus(folder, mapped, offsets, keys)


def _write(folder: Path, chunks: Chunks, order: list[int]) -> None:
    offsets = np.zeros(len(order) + 1, dtype=np.int64)
    with (folder / _ROWS).open("wb") as stream:
        for n, i in enumerate(order):
            offsets[n + 1] = offsets[n] + stream.write(_line(chunks, i))
    hashes = np.array([_hash(chunks.ids[i]) for i in order], dtype=np.uint64)
    ranked = np.argsort(hashes, kind="stable")
    np.save(folder / _OFFSETS, offsets)
    np.save(folder / _KEYS, np.stack([hashes[ranked], ranked.astype(np.uint64)]))
    about = {"format": FORMAT, "rows": len(order)}
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")


def _line(chunks: Chunks, i: int) -> bytes:
    """Row `i` as JSON in ASCII, which also holds the lone surrogates of broken files."""
    row = {
        "id": chunks.ids[i],
        "text": chunks.texts[i],
        "heading": chunks.headings[i],
        "start": chunks.starts[i],
        "end": chunks.ends[i],
        "boxes": [[round(float(x), _DIGITS) for x in box] for box in chunks.boxes[i]],
    }
    return json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _hash(id: RowId) -> np.uint64:
    digest = hashlib.blake2b(json.dumps(id).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "big"))


def _replace(temporary: Path, folder: Path) -> None:
    """Move `temporary` to `folder`; what was there is moved aside first, and removed after."""
    if not folder.exists():
        temporary.rename(folder)
        return
    old = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        os.rename(old, folder)
        raise
    shutil.rmtree(old)
