"""Vectors on an edge as int8 with a scale per row: a quarter of float32, half of the 16-bit types.

xFasterTransformer (He et al., 2024, arXiv 2407.07304) keeps the KV cache so, a scale for each token and head.
Symmetric: scale = max |x| / 127 of the row, value = round(x / scale). The error bound and its small print are
ours, derived: half a step, and what the rounding of the dtype adds.

When not: values that the next stage compares for equality, rows with a few outliers (one large element
coarsens its whole row), integer or float64 arrays (refused), and edges that hand over without copying: there
are no bytes to save, only two passes over the array to lose. Nearest neighbours change places where their
scores differ by less than the error; an index that must match an exact one scores those again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Quantized", "report", "shrink"]

STEPS = 127
_TINY = np.finfo(np.float32).tiny
_HUGE = np.nextafter(np.finfo(np.float32).max / np.float32(STEPS), np.float32(0))
"""Scales lie between: the quotient is then exact enough, and 127 steps are finite."""
_BLOCK = 1 << 16
"""Elements that are worked on at a time, so that what lies between stays in the cache."""
_ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}
_UNIT = {"float32": 2.0**-23, "float16": 2.0**-11 + 2.0**-23, "bfloat16": 2.0**-23}
"""Relative rounding errors: of the quotient and the product, in float32, and of float16."""
_LEAST = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-150}
"""Half of the smallest number above 0: the rounding error of what is nearly 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """Rows of D elements: `values` int8 [B, D], `scales` float32 [B].

    `shape` is that of the array, whose last axis is D; `dtype` the name of what its elements were.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.values.nbytes + self.scales.nbytes

    @property
    def ratio(self) -> float:
        """How many times as many bytes the array had; 4 D / (D + 4) for float32. 1 for an empty one."""
        before = self.values.size * _ITEM[self.dtype]
        return before / self.nbytes if before else 1.0

    @property
    def bound(self) -> NDArray[np.float64]:
        """float64 [B]: no element that `restore` returns is further from what it was.

        Half a step, and the rounding of the largest element. A later cast to bfloat16 adds its own.
        """
        return self.scales.astype(np.float64) * (0.5 + STEPS * _UNIT[self.dtype]) + _LEAST[self.dtype]

    def restore(self) -> NDArray[np.floating]:
        """The array again, of `shape` and `dtype`; float32 for bfloat16, which numpy does not have."""
        dtype = np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)
        restored = np.empty(self.values.shape, dtype)
        np.multiply(self.values, self.scales[:, None], out=restored, casting="same_kind", dtype=np.float32)
        return restored.reshape(self.shape)


def shrink(array: NDArray[np.floating], dtype: str | None = None) -> Quantized:
    """The rows of `array` float32 or float16 [..., D] as int8; all axes but the last count rows.

    `dtype`: what the elements were, if not the array's own: "bfloat16" for such values held as float32.
    Raises ValueError for another dtype, no axis, and for the first row that is not finite.
    """
    name = dtype or array.dtype.name
    if array.dtype.name not in ("float32", "float16") or name not in _ITEM or not array.ndim:
        raise ValueError(
            f"int8 edges carry rows of {', '.join(_ITEM)}, found {name} held as {array.dtype.name}"
        )
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
