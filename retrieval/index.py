"""Search indexes on disk: what a backend must do, the table of backends, and the folder they live in.

A folder holds `index.json` (format, kind, backend, rows, width, the backend's own options), the row ids,
and the backend's files. Rows are in the order of their ids, so a *position* stands for a row id, and a
tie broken by position is broken by row id. Whatever is large is memory-mapped: opening costs
milliseconds, and processes share the pages. A folder is written beside its place and renamed into it.

It deliberately does not add to an index or delete from one: an index is made in one go from all rows.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import IndexMismatchError, RowId
from pipeline.lookup import Table, find, load
from pipeline.machine import Device
from pipeline.rows import row_order

FORMAT = 1
WORDS = "words"
VECTORS = "vectors"

INDEXES: Table = {
    "exact": "retrieval.exact:ExactIndex",
    "faiss-flat": "retrieval.faiss_index:FlatIndex",
    "faiss-ivf": "retrieval.faiss_index:IvfIndex",
    "faiss-hnsw": "retrieval.faiss_index:HnswIndex",
}
"""Vector backends by the name that users give."""

BM25 = "retrieval.bm25:Bm25Index"

Options = Mapping[str, int | float | str]
Mask = NDArray[np.bool_] | None
"""The rows that may be found, bool [N]; None for all."""
Found = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Positions int64 [K] and their scores float32 [K], best first; larger is better, ties by position."""

Ranking = tuple[tuple[RowId, ...], NDArray[np.float32]]
"""Row ids and their scores float32 [K], best first."""


class VectorIndex(Protocol):
    """Inner-product search over float32 [N, D]; N may be 0."""

    @classmethod
    def build(cls, vectors: NDArray[np.float32], device: Device) -> Self:
        """An index over `vectors` float32 [N, D], C-contiguous, whose row number is the position."""

    def save(self, folder: Path) -> Options:
        """Write the backend's files into `folder`; what it returns comes back to `load`."""

    @classmethod
    def load(cls, folder: Path, options: Options, device: Device) -> Self:
        """The index that `save` wrote, memory-mapped where the backend can."""

    def search(
        self, queries: NDArray[np.float32], k: int, allowed: Mask = None, nprobe: int = 16
    ) -> list[Found]:
        """For each of `queries` float32 [B, D] the best at most k positions among those `allowed`.

        K <= min(k, allowed rows), and no position is ever -1. `nprobe`: lists visited, where there are lists.
        """


@dataclass(frozen=True, slots=True)
class RowTable:
    """Row ids by position, and the document of each row; memory-mapped."""

    blob: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    names: tuple[str, ...]
    documents: NDArray[np.int32]

    def ids(self, positions: NDArray[np.int64]) -> tuple[RowId, ...]:
        """The row ids at `positions` int64 [K]."""
        spans = ((self.offsets[p], self.offsets[p + 1]) for p in positions)
        return tuple(tuple(json.loads(self.blob[a:b].tobytes())) for a, b in spans)

    def allowed(self, glob: str) -> Mask:
        """bool [N]: rows whose document matches `glob` (see `matching`); None where it is blank, for all."""
        return matching(self.names, glob)[self.documents] if glob.strip() else None

    @staticmethod
    def save(folder: Path, ids: Sequence[RowId]) -> None:
        """Write `ids`, which must be in `row_order` and distinct. Raises ValueError where they are not."""
        for before, after in pairwise(ids):
            if row_order(before) >= row_order(after):
                raise ValueError(f"ids of an index must ascend, found {before!r} before {after!r}")
        texts = [json.dumps(i).encode() for i in ids]
        names = list(dict.fromkeys(str(i[0]) for i in ids))
        code = {name: number for number, name in enumerate(names)}
        np.save(folder / "ids.npy", np.frombuffer(b"".join(texts), np.uint8))
        np.save(folder / "ids.offsets.npy", np.cumsum([0, *map(len, texts)], dtype=np.int64))
        np.save(folder / "documents.npy", np.array([code[str(i[0])] for i in ids], np.int32))
        (folder / "documents.json").write_text(json.dumps(names))

    @classmethod
    def load(cls, folder: Path) -> RowTable:
        """What `save` wrote."""
        blob, offsets, documents = (
            np.load(folder / name, mmap_mode="r") for name in ("ids.npy", "ids.offsets.npy", "documents.npy")
        )
        return cls(blob, offsets, tuple(json.loads((folder / "documents.json").read_text())), documents)


def matching(names: Sequence[str], glob: str) -> NDArray[np.bool_]:
    """bool [len(names)]: names that `glob` matches, without regard to case, whole or by their last part.

    Several globs are separated by `|`, by line breaks, or by commas. A name with commas in it can be given,
    too: a piece is only cut at its commas where it matches nothing as it stands.
    """
    lowered = [name.lower() for name in names]
    mask = np.zeros(len(names), np.bool_)
    for piece in re.split(r"[|\n]", glob.lower()):
        hit = _fits(lowered, piece.strip())
        if not hit.any():
            hit = np.logical_or.reduce([_fits(lowered, part.strip()) for part in piece.split(",")])
        mask |= hit
    return mask


def _fits(names: Sequence[str], glob: str) -> NDArray[np.bool_]:
    def fits(name: str) -> bool:
        return any(glob == n or fnmatchcase(n, glob) for n in (name, name.rpartition("/")[2]))

    return np.array([bool(glob) and fits(name) for name in names], np.bool_)


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """An index as opened: `index` is a VectorIndex, or a Bm25Index where the kind is "words"."""

    folder: Path
    rows: int
    width: int
    table: RowTable
    index: Any

    def search(self, queries: Any, k: int, glob: str = "", **options: int) -> list[Ranking]:
        """For each of `queries` (float32 [B, D], or texts) the best at most k rows of documents like `glob`.

        Raises IndexMismatchError where the queries are of another width than the index.
        """
        if isinstance(queries, np.ndarray) and self.rows and queries.shape[1] != self.width:
            raise IndexMismatchError(
                f"index {str(self.folder)!r} holds vectors of width {self.width}, the queries have width "
                f"{queries.shape[1]}: embed them with the model that built the index, or build it again"
            )
        found = self.index.search(queries, k, self.table.allowed(glob), **options)
        return [(self.table.ids(positions), scores) for positions, scores in found]


def save_index(
    folder: Path, ids: Sequence[RowId], index: Any, backend: str, kind: str, width: int = 0
) -> None:
    """Write `index` over `ids` (in `row_order`) to `folder`, in place of an index of that kind, if any.

    Raises IndexMismatchError where `folder` holds anything else (see `check_target`).
    """
    check_target(folder, kind)
    with _replacing(folder) as new:
        RowTable.save(new, ids)
        options = dict(index.save(new))
        header = {"format": FORMAT, "kind": kind, "backend": backend, "rows": len(ids), "width": width}
        (new / "index.json").write_text(json.dumps({**header, "options": options}, indent=2))


def check_target(folder: Path, kind: str) -> None:
    """Raise IndexMismatchError where writing an index to `folder` would destroy something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    found = _header(folder).get("kind")
    if found is None:
        raise IndexMismatchError(f"{str(folder)!r} exists and is no index: give another path, or remove it")
    if found != kind:
        raise IndexMismatchError(
            f"{str(folder)!r} holds an index of {found!r}, not of {kind!r}: give each a path of its own"
        )


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    folder = folder.absolute()
    new, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)  # only now: until here it is the index
    finally:
        shutil.rmtree(new, ignore_errors=True)


def open_index(folder: Path, device: Device, kind: str = VECTORS) -> OpenIndex:
    """Open the index in `folder` for searching on `device`.

    Raises IndexMismatchError where there is none, or one of another kind, format or unknown backend.
    """
    header = _checked(folder, kind)
    try:
        maker = load(BM25) if kind == WORDS else find(header["backend"], INDEXES, "index backend")
    except LookupError as error:
        raise IndexMismatchError(f"index {str(folder)!r}: {error.args[0]}") from error
    index = maker.load(folder, header["options"], device)
    return OpenIndex(folder, header["rows"], header["width"], RowTable.load(folder), index)


def _header(folder: Path) -> dict[str, Any]:
    """What `index.json` says; nothing where it is missing, or is another program's."""
    try:
        header = json.loads((folder / "index.json").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def _checked(folder: Path, kind: str) -> dict[str, Any]:
    header = _header(folder)
    if not header:
        raise IndexMismatchError(f"no index in {str(folder)!r}: run the stage that builds it first")
    for key, expected in (("format", FORMAT), ("kind", kind)):
        if header.get(key) != expected:
            raise IndexMismatchError(
                f"index {str(folder)!r} has {key} {header.get(key)!r}, expected {expected!r}: "
                f"build it again, or give the path of another"
            )
    return header
