"""Indexes: all embeddings, or all chunks, of a corpus become one folder on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import BadRowsError, GraphError, RowError, RowId
from pipeline.lookup import find, near_miss
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.rows import row_order
from pipeline.values import Chunks, Embeddings, Indexes
from retrieval import index as store
from stages import costs


@dataclass(frozen=True, slots=True)
class IndexVectors:
    """Write the vector index of the whole corpus to the folder `path`.

    `backend`: a name in `retrieval.index.INDEXES`: "exact", "faiss-flat", "faiss-ivf", "faiss-hnsw".
    Rows are indexed in the order of their ids, so the index does not depend on the order of arrival.
    """

    path: Path
    backend: str = "exact"
    gathers: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.backend not in store.INDEXES:
            miss = near_miss(self.backend, store.INDEXES)
            raise GraphError(f"IndexVectors: no index backend named {self.backend!r}{miss}")

    def open(self, device: Device) -> Device:
        """Look at the target before any work. Raises IndexMismatchError where it holds something else."""
        store.check_target(Path(self.path), store.VECTORS)
        return device

    def cost(self, work: Work) -> Cost:
        """That of the backend "exact", the least: vectors are sorted, copied, written; 126 operations each.

        The others cluster or link the vectors, which takes longer (ours, timed).
        """
        vectors = work.port("embeddings")
        nbytes = 4 * vectors.rows * costs.width_of(vectors)
        given = Flow(work.rows, vectors.rows, costs.FOLDER)
        return Cost(given, traffic=4 * nbytes, scalar=126 * vectors.rows, scratch=nbytes)

    def run(self, state: Device, embeddings: Embeddings) -> Indexes:
        """One row, id `()`. Raises BadRowsError for vectors that are not finite."""
        order = _order(embeddings.ids)
        vectors = np.asarray(embeddings.vectors, np.float32).reshape(len(order), -1 if order else 0)
        _check_finite(embeddings.ids, vectors)
        _use_threads(state)
        index = find(self.backend, store.INDEXES, "index backend").build(vectors[order], state)
        ids = tuple(embeddings.ids[i] for i in order)
        store.save_index(Path(self.path), ids, index, self.backend, store.VECTORS, vectors.shape[1])
        return Indexes(((),), (str(self.path),))


@dataclass(frozen=True, slots=True)
class IndexWords:
    """Write the BM25 index of the whole corpus to the folder `path`."""

    path: Path
    gathers: ClassVar[int] = 0

    def open(self, device: Device) -> None:
        """Look at the target before any work. Raises IndexMismatchError where it holds something else."""
        store.check_target(Path(self.path), store.WORDS)

    def cost(self, work: Work) -> Cost:
        """About 2.5 operations a character: words are cut and counted (ours, timed)."""
        chunks = work.port("chunks")
        characters = chunks.rows * costs.chunk_characters(chunks)
        given = Flow(work.rows, chunks.rows, costs.FOLDER)
        return Cost(given, traffic=8 * characters, scalar=2.5 * characters, scratch=8 * characters)

    def run(self, state: None, chunks: Chunks) -> Indexes:
        """One row, id `()`."""
        from retrieval.bm25 import Bm25Index

        order = _order(chunks.ids)
        index = Bm25Index.build([chunks.matches[i] for i in order])
        store.save_index(Path(self.path), [chunks.ids[i] for i in order], index, "bm25", store.WORDS)
        return Indexes(((),), (str(self.path),))


def _order(ids: Sequence[RowId]) -> list[int]:
    return sorted(range(len(ids)), key=lambda i: row_order(ids[i]))


def _check_finite(ids: Sequence[RowId], vectors: Any) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        why = "the embedding holds values that are not finite: embed with dtype float32"
        raise BadRowsError({ids[i]: RowError("model", why) for i in bad.tolist()})


def _use_threads(device: Device) -> None:
    import torch

    torch.set_num_threads(device.threads)
