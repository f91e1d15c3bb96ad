"""Runs to be timed: each in a fresh process, and with the machine to itself as far as can be had."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

USED, PATIENCE, TRIES = 0.05, 60, 3
"""Share of the cores that others may use, seconds to wait for that, and runs to make until it is so."""


def apart(function: Any, *arguments: Any) -> tuple[Any, float]:
    """Call a function in a fresh process, with the machine to itself as far as can be had.

    Returns what it returns, and the share of the cores that others used meanwhile.
    """
    found: list[tuple[float, Any]] = []
    while len(found) < TRIES and (not found or found[-1][0] > USED):
        began = time.monotonic()
        while others(lambda: time.sleep(0.5))[1] > USED and time.monotonic() - began < PATIENCE:
            pass
        result, used = others(lambda: _alone(function, *arguments))
        found.append((used, result))
    used, result = min(found, key=lambda pair: pair[0])
    return result, used


def _alone(function: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def others(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and the share of the cores that others used while it ran."""
    before, result, after = _clocks(), call(), _clocks()
    return result, share(before, after)


def share(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    """Share of the cores that others used between two looks at the clocks."""
    busy, total, own = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, busy - own) / total if total else 0.0


def _clocks() -> tuple[float, float, float]:
    """Seconds of all cores: in use, in all, and in use by this process and those that it started."""
    tick = os.sysconf("SC_CLK_TCK")
    found = [int(n) / tick for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(found) - found[3] - found[4], sum(found), sum(os.times()[:4])
