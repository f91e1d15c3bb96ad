"""Vectors that travel as int8 with a scale per row: when that pays, and how rows go and come back. Pure.

It loses up to 1 / 254 of the largest element of a row, so it is for who allows it. It pays where the link is
slower than the processor:

    nbytes (1 - 1 / ratio) / link  >  nbytes / SHRINK + nbytes / RESTORE        (ours, derived)

With the numbers below that is a link below 0.8 GB/s for float32: bytes over Dask's comm, not shared memory.
What may lose is said by the type of the rows (`Rows.lossy`), which knows what its columns mean.

When not: see `pipeline.buffers.quantized`; columns that are small, hold what is not finite, or are tensors
travel as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pipeline.buffers.quantized import DTYPES, Quantized, report, shrink
from pipeline.rows import Rows
from pipeline.timeline import Counts

SHRINK, RESTORE = 1.3e9, 6.4e9
"""Bytes/s of float32 that become int8, the error looked at too, and that come back. Measured on one thread of
a Sapphire Rapids server, 4096 rows of 384."""
DASK = 0.37e9
"""Bytes/s of 64 MB by Dask's comm between two processes. Measured there too; a network may be slower yet."""
LEAST = 8192
"""Bytes of a column below which nothing is gained. Ours, a guess: not measured."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Rows on their way: of type `kind`, some of whose `columns` are Quantized."""

    kind: type[Rows]
    columns: tuple[Any, ...]

    def restore(self) -> Rows:
        """The rows, with the error that was reported."""
        columns: Any = (c.restore() if isinstance(c, Quantized) else c for c in self.columns)
        return self.kind(*columns)


def pays(nbytes: int, small: int, link: float) -> bool:
    """Whether to send `small` bytes for `nbytes` saves more seconds on a link of bytes/s than it costs."""
    return link > 0 and (nbytes - small) / link > nbytes / SHRINK + nbytes / RESTORE


def shrunk(rows: Rows, link: float, moved: Counts) -> Rows | Shrunk:
    """What travels of rows: these, or what is smaller where that pays; counts what it saves and loses."""
    found = {f.name: _column(getattr(rows, f.name), link) for f in fields(rows) if f.name in rows.lossy}
    small = {name: column for name, column in found.items() if column is not None}
    for name, column in small.items():
        array = getattr(rows, name)
        moved.add(Counts(saved=array.nbytes - column.nbytes, error=report(array, column)))
    columns = (small.get(f.name, getattr(rows, f.name)) for f in fields(rows))
    return Shrunk(type(rows), tuple(columns)) if small else rows


def _column(array: Any, link: float) -> Quantized | None:
    """A column as int8; None where it stays as it is."""
    if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES or array.nbytes < LEAST:
        return None
    count = array.size // array.shape[-1]
    if array.ndim < 2 or not pays(array.nbytes, array.size + 4 * count, link):
        return None
    try:
        return shrink(array)
    except ValueError:  # not finite
        return None
