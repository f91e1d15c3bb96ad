"""Search: questions to the chunks that may answer them; by vectors, by words, and both put together.

Nothing is embedded here. A question may be restricted to documents by a glob (`Queries.documents`, see
`retrieval.index.matching`); questions with the same glob are searched together. A blank question, and a
glob that matches no document, find nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, GraphError, RowError, RowId
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.stage import ports
from pipeline.values import Embeddings, Hits, Indexes, Queries
from retrieval import index as store
from retrieval.exact import TILE
from retrieval.fusion import fuse
from retrieval.index import Ranking
from stages import costs

CACHED = 4
"""Indexes that a lane keeps open."""


@dataclass(slots=True)
class OpenIndexes:
    """The indexes that a lane has open, by folder. A lane is one thread."""

    device: Device
    _open: dict[str, tuple[tuple[int, int], store.OpenIndex]] = field(default_factory=dict)

    def get(self, path: str, kind: str) -> store.OpenIndex:
        """The index in the folder `path`, opened again if it has been written anew since."""
        stamp = _stamp(Path(path))
        known = self._open.pop(path, None)
        if known is None or known[0] != stamp:
            known = (stamp, store.open_index(Path(path), self.device, kind))
        self._open[path] = known  # the latest used is last
        if len(self._open) > CACHED:
            del self._open[next(iter(self._open))]
        return known[1]


@dataclass(frozen=True, slots=True)
class Search:
    """The k nearest chunks of each query by inner product, best first, ties by chunk id.

    `threshold`: hits that score less are dropped; larger means better, 1 is the same direction.
    `nprobe`: lists that "faiss-ivf" visits; the other backends have no lists.
    """

    k: int = 8
    threshold: float | None = None
    nprobe: int = 16
    accelerated: ClassVar[bool] = True
    shares: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check_positive(self, "k", "nprobe")

    def check(self, upstream: tuple[Any, ...]) -> None:
        """Raise GraphError where stages before this one embed with different models.

        Stages that embed are told by their name, `Embed...`, their parameter `model` and their output.
        """
        models = [(type(stage).__name__, stage.model) for stage in upstream if _embeds(stage)]
        for (first, model), (second, other) in pairwise(models):
            if model != other:
                raise GraphError(
                    f"Search compares vectors of two models: {first} has model {model!r}, {second} has model "
                    f"{other!r}; give both the same"
                )

    def open(self, device: Device) -> OpenIndexes:
        """No index yet: which ones, the rows say."""
        return OpenIndexes(device)

    def cost(self, work: Work) -> Cost:
        """The bound of an exact search: 2·B·N·D FLOP; N·D·4 bytes read, B·N·4 bytes of scores.

        Which backend the index has only its folder says, so this holds for "exact" and "faiss-flat"; the
        others look at fewer vectors. Scores and top-k are one stage: B·k ids and scores leave it, not B·N.
        """
        queries, chunks = work.port("queries").rows, work.port("index").length
        width = costs.width_of(work.port("vectors"))
        corpus = 4.0 * chunks * width
        return Cost(
            output=Flow(queries, 0.0, costs.hit_bytes(min(self.k, chunks or self.k))),
            flops=2.0 * queries * chunks * width,
            traffic=corpus + 4.0 * queries * chunks if queries else 0.0,
            scalar=1600 * queries,
            resident=corpus,
            scratch=min(4.0 * queries * chunks, float(4 * TILE)),
            opening=corpus,
        )

    def run(self, state: OpenIndexes, queries: Queries, vectors: Embeddings, index: Indexes) -> Hits:
        """Hits with ids as in `queries`. Raises IndexMismatchError where the widths differ."""
        import torch

        torch.set_num_threads(state.device.threads)
        asked = np.asarray(vectors.vectors, np.float32)
        _check_finite(vectors.ids, asked)

        def search(path: str, glob: str, rows: list[int]) -> list[Ranking]:
            found = state.get(path, store.VECTORS).search(asked[rows], self.k, glob, nprobe=self.nprobe)
            return [self._kept(ranking) for ranking in found]

        return _searched(queries, index, search)

    def _kept(self, ranking: Ranking) -> Ranking:
        ids, scores = ranking
        count = len(scores) if self.threshold is None else int((scores >= self.threshold).sum())
        return ids[:count], scores[:count]  # best first


@dataclass(frozen=True, slots=True)
class SearchWords:
    """The k best chunks of each query by BM25, best first, ties by chunk id; none without a common word."""

    k: int = 8
    shares: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check_positive(self, "k")

    def open(self, device: Device) -> OpenIndexes:
        """No index yet: which ones, the rows say."""
        return OpenIndexes(device)

    def cost(self, work: Work) -> Cost:
        """About 3,500 operations a query (ours, timed), and some 24 bytes a chunk to add up and rank scores.

        The index, about 8 bytes a word of the corpus, is mapped and not held.
        """
        queries, chunks = work.port("queries").rows, work.port("words").length
        given = Flow(queries, 0.0, costs.hit_bytes(min(self.k, chunks or self.k)))
        return Cost(given, traffic=24 * queries * chunks, scalar=3500 * queries, scratch=12 * chunks)

    def run(self, state: OpenIndexes, queries: Queries, words: Indexes) -> Hits:
        """Hits with ids as in `queries`."""

        def search(path: str, glob: str, rows: list[int]) -> list[Ranking]:
            texts = [queries.texts[row] for row in rows]
            return state.get(path, store.WORDS).search(texts, self.k, glob)

        return _searched(queries, words, search)


@dataclass(frozen=True, slots=True)
class Fuse:
    """The k best chunks of two searches by reciprocal rank fusion; see `retrieval.fusion`."""

    k: int = 8
    constant: int = 60

    def __post_init__(self) -> None:
        _check_positive(self, "k", "constant")

    def cost(self, work: Work) -> Cost:
        """About 27 operations a hit (ours, timed)."""
        first, second = work.port("first"), work.port("second")
        found = costs.hits_in(first) + costs.hits_in(second)
        given = Flow(first.rows, 0.0, costs.hit_bytes(min(self.k, found)))
        return Cost(given, scalar=27 * first.rows * found)

    def run(self, state: None, first: Hits, second: Hits) -> Hits:
        """Hits with ids as in `first`."""
        pairs = zip(first.chunks, second.chunks, strict=True)
        return _hits(first.ids, [fuse(pair, self.k, self.constant) for pair in pairs])


def _searched(
    queries: Queries, index: Indexes, search: Callable[[str, str, list[int]], list[Ranking]]
) -> Hits:
    """Call `search(path, glob, rows)` once for each distinct path and glob; blank queries are left out."""
    paths = dict(zip(index.ids, index.paths, strict=True))
    groups: dict[tuple[str, str], list[int]] = {}
    for row, query in enumerate(queries.ids):
        if queries.texts[row].strip():
            path = paths[query[: len(index.ids[0])]]
            groups.setdefault((path, queries.documents[row].strip()), []).append(row)
    rankings: list[Ranking] = [((), np.zeros(0, np.float32))] * len(queries)
    for (path, glob), rows in groups.items():
        for row, ranking in zip(rows, search(path, glob, rows), strict=True):
            rankings[row] = ranking
    return _hits(queries.ids, rankings)


def _hits(ids: tuple[RowId, ...], rankings: Sequence[Ranking]) -> Hits:
    return Hits(ids, tuple(chunks for chunks, _ in rankings), tuple(scores for _, scores in rankings))


def _embeds(stage: Any) -> bool:
    named = type(stage).__name__.startswith("Embed") and hasattr(stage, "model")
    return named and issubclass(ports(type(stage)).output, Embeddings)


def _check_positive(stage: Any, *names: str) -> None:
    for name in names:
        value = getattr(stage, name)
        if value < 1:
            raise GraphError(f"{type(stage).__name__}: {name} must be at least 1, found {value!r}")


def _check_finite(ids: Sequence[RowId], vectors: NDArray[np.float32]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist() if ids else []
    if bad:
        why = "the query's embedding holds values that are not finite: embed with dtype float32"
        raise BadRowsError({ids[row]: RowError("model", why) for row in bad})


def _stamp(folder: Path) -> tuple[int, int]:
    """What changes when an index is written anew; zeros where there is none."""
    try:
        found = (folder / "index.json").stat()
    except OSError:
        return 0, 0  # opening it says why
    return found.st_mtime_ns, found.st_ino
