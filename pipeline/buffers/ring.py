"""The next batch loads while this one computes: steps in threads, joined by rings of few places.

PIPO (Liu et al., 2025, arXiv 2504.03664) hides loads behind compute with double buffers; HPXCL (Diehl et al.,
2018, arXiv 1810.11482) makes upload, run and download tasks of their own, so that they overlap. The bound on
what is alive is ours: a place is taken before a value is made and given back when its reader is done with it.

N items whose steps take t_1 ... t_k seconds, the reader's own work among them, take for depth 2 or more

    sum t_i + (N - 1) max t_i        instead of        N sum t_i        (derived: the slowest never waits)

where steps vary, greater depth evens them out. At depth 1 a step and its reader take turns.

When not: steps that hold the interpreter's lock (pure Python, pickle) or that are bound by the same resource:
they share it, and nothing is gained; and loads so short (below about 0.1 ms) that waking a thread costs more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from pipeline.errors import PlanError

__all__ = ["Ring", "overlapped", "prefetched"]

In = TypeVar("In")
Up = TypeVar("Up")
Ran = TypeVar("Ran")
Out = TypeVar("Out")
END = object()


class Ring(Generic[Out]):
    """A line of values, at most `depth` of them alive, between a thread that makes them and one that reads.

    The maker: `reserve`, then `put` or `end`. The reader: iterate, and `release` each value once done with
    it. Either: `close`, and both stop waiting. Raises PlanError for a depth below 1.
    """

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise PlanError(f"a ring has one place or more, found depth {depth}")
        self.depth = depth
        self._free = depth
        self._ready: deque[Out] = deque()
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._change = threading.Condition()

    @property
    def live(self) -> int:
        """How many values are being made, are ready, or are with the reader."""
        return self.depth - self._free

    def reserve(self) -> bool:
        """Wait for a place for one more value. False once the ring is closed."""
        with self._change:
            self._change.wait_for(lambda: self._free or self._closed)
            if self._closed:
                return False
            self._free -= 1
            return True

    def put(self, value: Out) -> None:
        """Hand the value on that the place was reserved for; dropped where the ring is closed."""
        with self._change:
            if not self._closed:
                self._ready.append(value)
            self._change.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """No more values come: the reader stops after the last, or gets `error` there."""
        with self._change:
            self._ended, self._error = True, error
            self._change.notify_all()

    def release(self) -> None:
        """The reader is done with a value: its place is free."""
        with self._change:
            self._free += 1
            self._change.notify_all()

    def close(self) -> None:
        """Nobody reads on: what is ready is dropped, and who waits returns."""
        with self._change:
            self._closed = True
            self._ready.clear()
            self._change.notify_all()

    def __iter__(self) -> Iterator[Out]:
        return self

    def __next__(self) -> Out:
        with self._change:
            self._change.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                return self._ready.popleft()
            if self._error is not None and not self._closed:
                raise self._error
            raise StopIteration


def prefetched(items: Iterable[In], load: Callable[[In], Out], depth: int) -> Iterator[Out]:
    """What `load` makes of each item, in order, made in a thread while the reader works on earlier ones.

    At most `depth` results are alive: those in the making, those that wait, and the one that the reader has,
    until it asks for the next (a `for` variable keeps its value a moment longer: `del` it where that is one
    too many). Items are taken in that thread, none before there is a place for its result.
    An exception arrives in place of the item that it belongs to, and ends the iterator. Closing it, or
    dropping it, waits for the load under way and stops the thread. Raises PlanError for a depth below 1.
    """
    return _read(items, (load,), (Ring(depth),))


def overlapped(
    items: Iterable[In],
    upload: Callable[[In], Up],
    run: Callable[[Up], Ran],
    download: Callable[[Ran], Out],
    depth: int,
) -> Iterator[Out]:
    """Each item uploaded, run and downloaded, in order; the three steps have a thread each and overlap.

    At most `depth` values are alive between two steps, and between the last and the reader. All else is as in
    `prefetched`. A step on a GPU sets its device and its stream itself: both belong to a thread.
    """
    return _read(items, (upload, run, download), tuple(Ring[Any](depth) for _ in range(3)))


def _read(
    items: Iterable[Any], steps: tuple[Callable[[Any], Any], ...], rings: tuple[Ring[Any], ...]
) -> Iterator[Any]:
    """The values of the last ring, with a thread for each step from the first value on until closed."""
    threads = [
        threading.Thread(target=_work, args=(source, *pair), name=f"ring-{i}", daemon=True)
        for i, (source, *pair) in enumerate(zip((iter(items), *rings), steps, rings, strict=False))
    ]
    try:
        for thread in threads:
            thread.start()
        for value in rings[-1]:
            yield value
            del value
            rings[-1].release()
    finally:
        for ring in rings:
            ring.close()
        for thread in threads:
            if (
                thread.is_alive() and thread is not threading.current_thread()
            ):  # where it is garbage collected
                thread.join()


def _work(source: Iterator[Any], step: Callable[[Any], Any], ring: Ring[Any]) -> None:
    """Fill a ring from a source, which may be a ring too, until the source ends or someone fails."""
    done = source.release if isinstance(source, Ring) else lambda: None
    try:
        while ring.reserve() and (given := next(source, END)) is not END:
            made = step(given)
            del given
            done()
            ring.put(made)
            del made
        ring.end()
    except BaseException as error:  # all of them are the reader's to handle, an interrupt in a load too
        ring.end(error)
