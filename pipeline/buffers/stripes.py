"""A large copy split over threads, a stretch each.

Adams and Bienz (2025, arXiv 2508.13397) let idle cores carry lanes of one large transfer. Here a lane is a
thread: numpy gives the interpreter's lock up while it copies.

When not: below `THRESHOLD`; and while other work runs on all cores: a lane then shares a core with the first,
or waits for one, and two lanes take as long as one. An arena has the threads of its worker's device: those
are idle while it copies, and the cores of other devices are not touched.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["THRESHOLD", "copy", "stripes"]

THRESHOLD = 16 << 20
"""Bytes below which a copy has one lane.

Measured on two cores of a Sapphire Rapids VM: to start lanes takes 0.1 to 0.2 ms. Best with one lane and with
two: 1 MiB 0.04 and 0.11 ms, 8 MiB 0.56 and 0.51, 16 MiB 1.16 and 0.75, 64 MiB 7.6 and 4.4, 256 MiB 22 and 12.
Into an arena that is warm: 64 MiB 9.3 and 5.0.
"""
_PAGE = 4096


def copy(into: Any, source: Any, lanes: int = 1) -> None:
    """Copy all bytes of `source` over those of `into`, two contiguous buffers of one length.

    `lanes`: how many threads may copy. Copies below `THRESHOLD`, and between buffers that overlap, have one.
    Raises ValueError for other lengths, for buffers that are not contiguous, and where `into` is read-only.
    """
    target, given = _flat(into), _flat(source)
    if len(target) != len(given):
        raise ValueError(f"a copy needs as many bytes as it is given: {len(given)} do not fit {len(target)}")
    single = len(given) < THRESHOLD or np.may_share_memory(target, given)
    first, *others = stripes(len(given), 1 if single else lanes)
    if not others:
        np.copyto(target, given)
        return
    with ThreadPoolExecutor(len(others), "stripe") as pool:
        jobs = [pool.submit(np.copyto, target[part], given[part]) for part in others]
        np.copyto(target[first], given[first])
        for job in jobs:
            job.result()


def stripes(nbytes: int, lanes: int) -> list[slice]:
    """At most so many stretches of equal length, in whole pages of 4 KiB but for the last; one at least.

    Raises ValueError for less than one lane.
    """
    if lanes < 1:
        raise ValueError(f"a copy has one lane or more, found {lanes}")
    length = max(-(-nbytes // (lanes * _PAGE)), 1) * _PAGE
    return [slice(start, min(start + length, nbytes)) for start in range(0, max(nbytes, 1), length)]


def _flat(buffer: Any) -> NDArray[np.uint8]:
    """uint8 [n]: the bytes of a buffer, not copied."""
    return np.frombuffer(buffer, np.uint8)
