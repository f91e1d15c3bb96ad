"""Exact nearest neighbours by inner product: a matrix product, then an exact second look.

A score is defined without regard to hardware: the inner product summed in float64 and rounded once to
float32. It depends on nothing but the two vectors, so equal vectors tie, whatever the batch, the tile or
the device. Matrix products are faster and less exact; they only choose *candidates*, with a margin:

    a product computed with error at most e finds every row of the true top k among the rows that it
    scores at least (its k-th best score) - 2e

`_direct` takes all such rows from fp32 scores, so it is exact by construction; it serves small indexes.
`_tiled` keeps the best `max(4k, 64)` over tiles of N in bf16 where the hardware multiplies that fast (AMX,
CUDA), else in fp32; where the last kept still lies within the margin (crowds of near-equal vectors), more may
have been lost, and the query goes to `_direct`. Only candidates are read from the float32 vectors again.

It deliberately approximates nothing; `retrieval/faiss_index.py` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.machine import Device
from retrieval.index import Found, Mask, Options

TILE = 1 << 22
"""Scores held at once: 16 MiB in float32, about what stays in a last-level cache."""

RESCORE = 1 << 14
"""Candidates re-scored at once."""


def nothing() -> Found:
    """No hits."""
    return np.zeros(0, np.int64), np.zeros(0, np.float32)


def best(positions: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> Found:
    """The k with the largest scores, best first, ties by position. Both are [K]."""
    order = np.lexsort((positions, -scores))[:k]
    return positions[order], scores[order]


def inner_products(
    vectors: NDArray[np.float32], query: NDArray[np.float32], positions: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The score of `query` [D] with the vectors [N, D] at `positions` [K]: float32 [K], by definition.

    einsum sums each row by itself and in an order that depends on D alone; a BLAS product does not.
    """
    wide = query.astype(np.float64)
    parts = (positions[i : i + RESCORE] for i in range(0, len(positions), RESCORE))
    sums = [np.einsum("kd,d->k", vectors[p].astype(np.float64), wide) for p in parts]
    return np.concatenate([np.zeros(0), *sums]).astype(np.float32)


def error_bound(norms: Any, width: int, unit: float) -> Any:
    """How far a computed inner product may be off, for `norms`: |q| times the largest |x|.

    In units of |q||x|, by Cauchy and Schwarz: rounding factors and result to unit roundoff u costs 3u
    (4u is granted: a GPU may round partial sums, too), and summing D products in float32 at most D 2^-24
    (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1). The sum's share is doubled,
    which covers second order and the last rounding of the definition.
    """
    return norms * (4 * unit + 2 * (width + 8) * 2.0**-24)


def reference_search(
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    k: int,
    allowed: Mask = None,
) -> list[Found]:
    """What `ExactIndex.search` must give, in plain numpy: score everything, sort everything."""
    rows = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    return [best(rows, inner_products(vectors, query, rows), k) for query in queries]


class ExactIndex:
    """All vectors in one float32 array [N, D] (a VectorIndex)."""

    def __init__(self, vectors: NDArray[np.float32], device: Device, norm: float) -> None:
        """`norm`: the largest length among the rows."""
        self.vectors = vectors
        self.norm = norm
        self._device = device
        self._fast = fast_bfloat16(device)
        self._tiles: Any = None

    @classmethod
    def build(cls, vectors: NDArray[np.float32], device: Device) -> Self:
        """See VectorIndex."""
        return cls(np.require(vectors, np.float32, ["C", "W"]), device, largest_norm(vectors))

    def save(self, folder: Path) -> Options:
        """See VectorIndex."""
        np.save(folder / "vectors.npy", self.vectors)
        return {"norm": self.norm}

    @classmethod
    def load(cls, folder: Path, options: Options, device: Device) -> Self:
        """See VectorIndex."""
        # "c" is copy on write: nobody writes, but torch warns of arrays that it could not write to.
        return cls(np.load(folder / "vectors.npy", mmap_mode="c"), device, float(options["norm"]))

    def search(
        self, queries: NDArray[np.float32], k: int, allowed: Mask = None, nprobe: int = 16
    ) -> list[Found]:
        """See VectorIndex; there are no lists, so `nprobe` changes nothing."""
        count = len(self.vectors) if allowed is None else int(allowed.sum())
        k = min(k, count)
        if not k or not len(queries):
            return [nothing() for _ in queries]
        first, last = (0, count) if allowed is None else _span(allowed)
        if len(queries) * (last - first) <= TILE:
            return self._direct(queries, k, allowed)
        return self._tiled(queries, k, allowed, min(max(4 * k, 64), count))

    def _direct(self, queries: NDArray[np.float32], k: int, allowed: Mask) -> list[Found]:
        import torch

        first, last = (0, len(self.vectors)) if allowed is None else _span(allowed)
        corpus = torch.from_numpy(self.vectors[first:last])
        barred = None if allowed is None else torch.from_numpy(~allowed[first:last])
        margin = 2 * self._bound(queries, single_unit())
        step = max(1, TILE // (last - first))
        found: list[Found] = []
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            scores = torch.tensor(part) @ corpus.T
            if barred is not None:
                scores[:, barred] = -torch.inf
            floor = scores.topk(k).values[:, -1] - torch.from_numpy(margin[start : start + step])
            near = (scores >= floor[:, None]).numpy()
            pairs = zip(part, near, strict=True)
            found += [self._rescored(query, np.flatnonzero(row) + first, k) for query, row in pairs]
        return found

    def _tiled(self, queries: NDArray[np.float32], k: int, allowed: Mask, keep: int) -> list[Found]:
        scores, positions = self._candidates(queries, allowed, keep)
        unit = 2.0**-8 if self._fast else single_unit()
        floor = scores[:, k - 1] - 2 * self._bound(queries, unit)
        lost = scores[:, -1] >= floor
        if keep == (len(self.vectors) if allowed is None else int(allowed.sum())):
            lost[:] = False  # nothing was left out
        rows, again = np.flatnonzero(~lost).tolist(), np.flatnonzero(lost).tolist()
        found = {r: self._rescored(queries[r], positions[r][scores[r] >= floor[r]], k) for r in rows}
        if again:
            found |= dict(zip(again, self._direct(queries[again], k, allowed), strict=True))
        return [found[row] for row in range(len(queries))]

    def _candidates(
        self, queries: NDArray[np.float32], allowed: Mask, keep: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The best `keep` by computed score: float32 [B, keep] descending, and positions int64 [B, keep]."""
        import torch

        corpus = self._corpus()
        asked = torch.tensor(queries).to(self._device.torch, corpus.dtype)
        top = torch.full((len(queries), 0), -torch.inf, device=asked.device)
        where = torch.zeros((len(queries), 0), dtype=torch.int64, device=asked.device)
        for first, last in _tiles(len(corpus), max(keep, TILE // len(queries)), allowed):
            scores = (asked @ corpus[first:last].to(asked.device).T).float()
            if allowed is not None:
                scores[:, torch.from_numpy(~allowed[first:last]).to(asked.device)] = -torch.inf
            values, index = scores.topk(min(keep, last - first))
            top, where = torch.cat([top, values], 1), torch.cat([where, index + first], 1)
            top, order = top.topk(min(keep, top.shape[1]))
            where = where.gather(1, order)
        return top.cpu().numpy(), where.cpu().numpy()

    def _corpus(self) -> Any:
        """The vectors as `_tiled` multiplies them, on the device if they fit beside what else is there."""
        if self._tiles is None:
            import torch

            tensor = torch.from_numpy(self.vectors)
            if self._fast:
                tensor = tensor.bfloat16()
            name = self._device.torch
            if self._device.kind == "cuda" and tensor.nbytes < torch.cuda.mem_get_info(name)[0] / 2:
                tensor = tensor.to(name)
            self._tiles = tensor
        return self._tiles

    def _bound(self, queries: NDArray[np.float32], unit: float) -> NDArray[np.float32]:
        norms = np.linalg.norm(queries, axis=1) * self.norm
        bound: NDArray[np.float32] = error_bound(norms, queries.shape[1], unit).astype(np.float32)
        return bound

    def _rescored(self, query: NDArray[np.float32], positions: NDArray[np.int64], k: int) -> Found:
        return best(positions, inner_products(self.vectors, query, positions), k)


def largest_norm(vectors: NDArray[np.float32]) -> float:
    """The length of the longest row of [N, D]; 0 where there is none."""
    tiles = (vectors[i : i + RESCORE] for i in range(0, len(vectors), RESCORE))
    return max((float(np.linalg.norm(tile, axis=1).max()) for tile in tiles), default=0.0)


def fast_bfloat16(device: Device) -> bool:
    """Whether the device multiplies bf16 faster than fp32: CUDA does, CPUs do that have AMX tiles."""
    if device.kind != "cpu":
        return True
    import torch

    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)  # private: may go away
    return bool(probe and probe())


def single_unit() -> float:
    """Unit roundoff of an fp32 product on the CPU: torch may be set to compute it with bf16 inside."""
    import torch

    return 2.0**-24 if torch.get_float32_matmul_precision() == "highest" else 2.0**-8


def _span(allowed: NDArray[np.bool_]) -> tuple[int, int]:
    """First allowed position, and one past the last. The rows of a document lie together."""
    return int(allowed.argmax()), len(allowed) - int(allowed[::-1].argmax())


def _tiles(rows: int, size: int, allowed: Mask) -> list[tuple[int, int]]:
    """Stretches of at most `size` rows that hold every allowed one; stretches without any are left out."""
    spans = [(start, min(start + size, rows)) for start in range(0, rows, size)]
    if allowed is None:
        return spans
    inner = [(start, _span(allowed[start:end])) for start, end in spans if allowed[start:end].any()]
    return [(start + first, start + last) for start, (first, last) in inner]
