"""FAISS behind the VectorIndex protocol: flat, inverted lists, HNSW; the only file that imports faiss.

FAISS chooses candidates, `max(4k, 64)` of them; their scores come from the float32 vectors, by the same
definition as in `retrieval/exact.py`. So scores, thresholds and ties mean the same with every backend and
do not depend on the batch (FAISS itself changes its summation with the batch size), and the lists may hold
float16. A query goes to the exact index instead where a restriction leaves few rows (lists and graphs find
little there), and where the last candidate cannot be told from the k-th (crowds of equal vectors).

It deliberately offers no product quantisation: at our sizes float16 lists are fast and lose nothing.
"""

from __future__ import annotations

from math import isqrt
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.machine import Device
from retrieval.exact import ExactIndex, best, error_bound, inner_products, largest_norm, nothing
from retrieval.index import Found, Mask, Options

FEW = 10
"""A restriction to less than one row in so many is searched exactly."""

TRAINING = 39
"""Training vectors that FAISS wants for each list."""

SMALLEST = 4096
"""Below so many rows lists save nothing, and `IvfIndex` holds a flat index."""


def _faiss(device: Device) -> Any:
    """The module, for this thread's number of threads. torch first, so that both share one OpenMP pool."""
    import torch  # noqa: F401, I001
    import faiss

    faiss.omp_set_num_threads(device.threads)
    return faiss


class FlatIndex:
    """All vectors, one scan for each query: exact, and the yardstick for the others (a VectorIndex).

    FAISS scans anew for each query unless a batch is huge: `ExactIndex` is several times as fast.
    """

    def __init__(self, index: Any, vectors: NDArray[np.float32], device: Device, norm: float) -> None:
        """`index`: the FAISS index over `vectors` float32 [N, D], None where N is 0."""
        self._index = index
        self._exact = ExactIndex(vectors, Device("cpu:0", device.threads), norm)
        self._device = device

    @classmethod
    def build(cls, vectors: NDArray[np.float32], device: Device) -> Self:
        """See VectorIndex."""
        faiss = _faiss(device)
        index = cls._train(faiss, vectors) if len(vectors) else None
        return cls(index, np.require(vectors, np.float32, ["C", "W"]), device, largest_norm(vectors))

    def save(self, folder: Path) -> Options:
        """See VectorIndex."""
        if self._index is not None:
            _faiss(self._device).write_index(self._index, str(folder / "index.faiss"))
        if self._separate():
            np.save(folder / "vectors.npy", self._exact.vectors)
        lists = int(getattr(self._index, "nlist", 0))
        return {"norm": self._exact.norm, "inside": type(self._index).__name__, "lists": lists}

    @classmethod
    def load(cls, folder: Path, options: Options, device: Device) -> Self:
        """See VectorIndex."""
        faiss = _faiss(device)
        norm = float(options["norm"])
        if not (folder / "index.faiss").exists():
            return cls(None, np.zeros((0, 0), np.float32), device, norm)
        flags = faiss.IO_FLAG_MMAP if options["lists"] else faiss.IO_FLAG_MMAP_IFC
        index = faiss.read_index(str(folder / "index.faiss"), flags)
        if (folder / "vectors.npy").exists():
            return cls(index, np.load(folder / "vectors.npy", mmap_mode="c"), device, norm)
        return cls(index, _vectors_in(faiss, index), device, norm)

    def search(
        self, queries: NDArray[np.float32], k: int, allowed: Mask = None, nprobe: int = 16
    ) -> list[Found]:
        """See VectorIndex."""
        if self._index is None or not len(queries):
            return [nothing() for _ in queries]
        if allowed is not None and int(allowed.sum()) * FEW <= len(allowed):
            return self._exact.search(queries, k, allowed)
        keep = min(max(4 * k, 64), self._index.ntotal)
        faiss = _faiss(self._device)
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        parameters = self._parameters(faiss, selector, keep, nprobe)
        _, positions = self._index.search(np.ascontiguousarray(queries), keep, params=parameters)
        return [self._ranked(q, row, k, allowed) for q, row in zip(queries, positions, strict=True)]

    def _ranked(self, query: NDArray[np.float32], row: NDArray[np.int64], k: int, allowed: Mask) -> Found:
        """The best k of the candidates `row` int64 [keep], which FAISS pads with -1."""
        found = row[row >= 0]
        scores = inner_products(self._exact.vectors, query, found)
        top = best(found, scores, k)
        norms = float(np.linalg.norm(query)) * self._exact.norm
        margin = 2 * error_bound(norms, len(query), 2.0**-24)
        if k <= len(found) == len(row) < self._index.ntotal and top[1][-1] - scores.min() <= margin:
            return self._exact.search(query[None], k, allowed)[0]
        return top

    @staticmethod
    def _train(faiss: Any, vectors: NDArray[np.float32]) -> Any:
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        return index

    def _parameters(self, faiss: Any, selector: Any, keep: int, nprobe: int) -> Any:
        return faiss.SearchParameters(sel=selector)

    def _separate(self) -> bool:
        """Whether the float32 vectors need a file of their own: the FAISS file has them otherwise."""
        return False


class IvfIndex(FlatIndex):
    """Inverted lists in float16: visits `nprobe` of about 2 sqrt(N) lists (a VectorIndex).

    Up to `SMALLEST` rows it is a flat index inside, as `index.json` tells ("inside").
    """

    @staticmethod
    def _train(faiss: Any, vectors: NDArray[np.float32]) -> Any:
        rows, width = vectors.shape
        if rows < SMALLEST:
            return FlatIndex._train(faiss, vectors)
        lists = min(2 * isqrt(rows), rows // TRAINING)
        index = faiss.index_factory(width, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        return index

    def _parameters(self, faiss: Any, selector: Any, keep: int, nprobe: int) -> Any:
        if not self._separate():
            return faiss.SearchParameters(sel=selector)
        return faiss.SearchParametersIVF(sel=selector, nprobe=min(nprobe, self._index.nlist))

    def _separate(self) -> bool:
        return hasattr(self._index, "nlist")


class HnswIndex(FlatIndex):
    """A navigable small-world graph, 32 links a row: little work, much memory (a VectorIndex).

    Built on one thread: the graph depends on the order of insertion, which threads would vary.
    """

    @staticmethod
    def _train(faiss: Any, vectors: NDArray[np.float32]) -> Any:
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
            index.add(vectors)
        finally:
            faiss.omp_set_num_threads(threads)
        return index

    def _parameters(self, faiss: Any, selector: Any, keep: int, nprobe: int) -> Any:
        return faiss.SearchParametersHNSW(sel=selector, efSearch=2 * keep)


def _vectors_in(faiss: Any, index: Any) -> NDArray[np.float32]:
    """The float32 [N, D] that a flat or HNSW index holds: a view, valid as long as the index lives."""
    flat = faiss.downcast_index(index.storage) if hasattr(index, "storage") else index
    view: NDArray[np.float32] = faiss.rev_swig_ptr(flat.get_xb(), index.ntotal * index.d)
    return view.reshape(index.ntotal, index.d)
