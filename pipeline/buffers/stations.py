"""Upload, run and download as stations in a row, so that three batches are under way at once.

HPXCL (Diehl et al., 2018, arXiv 1810.11482) makes upload, run and download steps of their own, which overlap;
PIPO (Liu et al., 2025, arXiv 2504.03664) hides loads behind compute with double buffers. The bound on what is
alive is ours: a station holds one batch, and a batch leaves it only once it has the next. So nobody is
overtaken, and a slow download holds the run back instead of letting values pile up.

N batches whose stations take t_1 ... t_k seconds take, instead of N sum t_i,

    sum t_i + (N - 1) max t_i        (derived: the slowest station never waits)

When not: stations that hold the interpreter's lock (pure Python, pickle) or that are bound by the same
resource share it, and nothing is gained; the way through then costs a few microseconds a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Protocol

__all__ = ["Onward", "Stations"]


class Onward(Protocol):
    """Go to the next station, which up to `most` may share who come with the same `key`."""

    def __call__(self, key: Hashable = None, most: int = 1) -> None:
        """Wait until there is room."""


class _Station:
    """Room for one, or for several with the same key."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._key: Hashable = None

    def enter(self, key: Hashable = None, most: int = 1) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._inside or (self._key == key and self._inside < most))
            self._inside += 1
            self._key = key

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()


class Stations:
    """`count` stations in a row, each for one thread at a time, or for several that agree to share it."""

    def __init__(self, count: int) -> None:
        self._stations = tuple(_Station() for _ in range(count))

    @contextmanager
    def through(self, seen: Callable[[], None] = lambda: None) -> Iterator[Onward]:
        """Go through, with a thread of one's own: at the first station here, at the next after each call.

        Whoever fails leaves from where it is. `seen` is called on entering a station and on leaving it. Who
        waits for the first station gets it in no order; from there on all keep theirs, but those who share
        one, who leave it as they are done.
        """
        ahead = iter(self._stations)
        here = next(ahead)
        here.enter()
        seen()

        def onward(key: Hashable = None, most: int = 1) -> None:
            nonlocal here
            seen()
            following = next(ahead)
            following.enter(key, most)
            here.leave()
            here = following
            seen()

        try:
            yield onward
        finally:
            seen()
            here.leave()
