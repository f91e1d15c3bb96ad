"""Vectors on an edge as int8 with a scale per row: a quarter of float32, half of float16.

xFasterTransformer (He et al., 2024, arXiv 2407.07304) keeps the KV cache so, a scale for each token and head.
Symmetric: scale = max |x| / 127 of the row, value = round(x / scale). So no element is off by more than half
a step, 1 / 254 of the largest of its row, and what the rounding of the dtype adds (ours, derived).

When not: values that the next stage compares for equality, rows with a few outliers (one large element
coarsens its whole row), integer or float64 arrays (refused), and edges that hand over without copying: there
are no bytes to save, only two passes over the array to lose. Nearest neighbours change places where their
scores differ by less than the error; an index that must match an exact one scores those again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "Quantized", "report", "shrink"]

STEPS = 127
DTYPES = ("float32", "float16")
_TINY = np.finfo(np.float32).tiny
_HUGE = np.nextafter(np.finfo(np.float32).max / np.float32(STEPS), np.float32(0))
"""Scales lie between: the quotient is then exact enough, and 127 steps are finite."""
_BLOCK = 1 << 16
"""Elements that are worked on at a time, so that what lies between stays in the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """Rows of D elements: `values` int8 [B, D], `scales` float32 [B].

    `shape` is that of the array, whose last axis is D; `dtype`: "float32" or "float16".
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.values.nbytes + self.scales.nbytes

    def restore(self) -> NDArray[np.floating]:
        """The array again, of `shape` and `dtype`."""
        restored = np.empty(self.values.shape, self.dtype)
        np.multiply(self.values, self.scales[:, None], out=restored, casting="same_kind", dtype=np.float32)
        return restored.reshape(self.shape)


def shrink(array: NDArray[np.floating]) -> Quantized:
    """The rows of `array` float32 or float16 [..., D] as int8; all axes but the last count rows.

    Raises ValueError for another dtype, no axis, and for the first row that is not finite.
    """
    name = array.dtype.name
    if name not in DTYPES or not array.ndim:
        raise ValueError(f"int8 edges carry rows of {' or '.join(DTYPES)}, found {name} {array.shape}")
    rows = array.reshape(int(np.prod(array.shape[:-1])), array.shape[-1])
    top = _largest(rows)
    if not np.isfinite(top).all():
        at = np.unravel_index(int(np.argmin(np.isfinite(top))), array.shape[:-1])
        raise ValueError(
            f"row {', '.join(map(str, at)) or 0} holds NaN or infinity: int8 carries finite numbers"
        )
    scales = np.clip(top / np.float32(STEPS), _TINY, _HUGE)
    values = np.empty(rows.shape, np.int8)
    step = max(_BLOCK // max(rows.shape[1], 1), 1)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        scaled = np.divide(rows[part], scales[part, None], dtype=np.float32)
        values[part] = np.rint(scaled, out=scaled)
    return Quantized(values, scales, array.shape, name)


def report(array: NDArray[np.floating], quantized: Quantized) -> float:
    """The largest error of an element, as a part of the largest of its row. About 1 / 254 at most."""
    rows = array.reshape(quantized.values.shape)
    error = _largest(np.subtract(rows, quantized.restore().reshape(rows.shape), dtype=np.float32))
    top = _largest(rows)
    return float(np.max(np.divide(error, top, out=np.zeros_like(top), where=top > 0), initial=0.0))


def _largest(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """float32 [B]: max |x| of each row; NaN where one is."""
    largest: NDArray[np.floating] = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))
    return largest.astype(np.float32)
