"""One batch on all cores, or one on each part of them, by backlog (Shift Parallelism, arXiv 2509.16495).

The same cores are declared twice: as one wide lane (all threads in one batch) and as narrow lanes (some
threads for each of several batches). A short backlog is done sooner by the wide lane, a long one by
the narrow ones; the crossing comes from predicted seconds, and the mode changes only well past it. The
planner lays lanes out so where this policy is asked for, and a machine file may declare them.

When not: a step has lanes in one layout only; their speeds are unknown; one layout is better at any backlog
(then it stays); or the layouts work in different memory, so that a change would move bytes. Each lane opens
its own models, so both layouts must fit; and a wide lane waits until all narrow ones are free, so steps in
different modes hold each other up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.policy import Job, Lane, View

BAND = 0.25
"""Share of the crossing by which a backlog must pass it before the mode changes."""


def drain(rows: int, batch: int, lanes: Sequence[Lane]) -> float:
    """Seconds for `rows` in equal shares on all `lanes`, `batch` at most at once; the slowest counts."""
    full, rest = divmod(-(-rows // len(lanes)), batch)
    return max(full * lane.seconds(batch) + (lane.seconds(rest) if rest else 0.0) for lane in lanes)


@dataclass(frozen=True, slots=True)
class Layouts:
    """Two ways to use the same cores. `below`, `above`: whether narrow is faster below and above `rows`."""

    wide: str
    narrow: tuple[str, ...]
    rows: int
    below: bool
    above: bool

    def lanes(self, up: bool) -> tuple[str, ...]:
        """The lanes to use above the crossing, or below it."""
        return self.narrow if (self.above if up else self.below) else (self.wide,)

    def switch(self, backlog: int, up: bool | None) -> bool:
        """Whether to be above, from where one is (None: anew): it changes past the band, and stays within."""
        if up is None:
            return backlog >= self.rows
        return backlog >= self.rows * (1 - BAND) if up else backlog >= self.rows * (1 + BAND)


def calibrate(wide: Lane, narrow: Sequence[Lane], batch: int) -> Layouts:
    """The crossing between 1 row and a full batch on each narrow lane, by bisection; equal times are wide.

    Where the same layout is faster at both ends, there is none (`rows` 0). As shares are whole rows, there
    may be several close together; it is one of them.
    """

    def better(rows: int) -> bool:
        return drain(rows, batch, narrow) < drain(rows, batch, [wide])

    most = batch * len(narrow)
    below, above = better(1), better(most)
    rows = bisect_left(range(most + 1), True, lo=1, key=lambda n: better(n) == above) if below != above else 0
    return Layouts(wide.name, tuple(lane.name for lane in narrow), rows, below, above)


class Modes:
    """Lanes by backlog, for steps that could run in two layouts; and shares of it in the narrow one."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._layouts = {job.name: _layouts(job) for job in jobs}
        self._up: dict[tuple[str, str], bool] = {}
        self._last: dict[str, int] = {}

    def lanes(self, step: str, view: View) -> Sequence[str]:
        """The lanes of the better layout, and those planned that are in none."""
        planned, layouts = self._jobs[step].planned, self._layouts[step]
        touched = {name for found in layouts for name in (found.wide, *found.narrow)}
        backlog = -(-self._backlog(step, view) // max(1, len(layouts)))
        chosen = [name for found in layouts for name in self._mode(step, found, backlog)]
        return (*(name for name in planned if name not in touched), *chosen)

    def size(self, step: str, lane: str, batch: int, view: View) -> int:
        """On a narrow lane its share of what waits, so that the lanes beside it that are free have theirs."""
        narrow = [name for found in self._layouts[step] for name in found.narrow]
        free = sum(1 for name in narrow if name == lane or not view.busy(name))
        size = max(1, min(batch, -(-view.waiting(step) // free))) if lane in narrow else batch
        self._last[step] = min(size, max(1, view.waiting(step)))
        return size

    def _backlog(self, step: str, view: View) -> int:
        """Rows that wait and, in batches as large as the last, those under way.

        Else the first narrow lane that takes its share would make the rest look like a short backlog.
        """
        return view.waiting(step) + view.flying(step) * self._last.get(step, 0)

    def _mode(self, step: str, found: Layouts, backlog: int) -> tuple[str, ...]:
        at = (step, found.wide)
        if backlog:  # nothing at all says nothing of the next backlog
            self._up[at] = found.switch(backlog, self._up.get(at))
        return found.lanes(self._up.get(at, False))


def _layouts(job: Job) -> tuple[Layouts, ...]:
    """One for each wide lane of which the step is planned on some cores."""
    found = ((wide, _parts(wide, job)) for wide in job.lanes.values())
    return tuple(
        calibrate(wide, parts, job.batch)
        for wide, parts in found
        if len(parts) > 1
        and all(lane.seconds(job.batch) > 0 for lane in (wide, *parts))
        and {wide.name, *(p.name for p in parts)} & set(job.planned)
    )


def _parts(wide: Lane, job: Job) -> tuple[Lane, ...]:
    """The lanes on parts of a lane's cores and in its memory; none where they overlap among themselves."""
    whole = set(wide.device.cores)
    inside = [lane for lane in job.lanes.values() if _inside(lane, whole) and lane is not wide]
    cores = [core for lane in inside for core in lane.device.cores]
    same = all(lane.device.pool == wide.device.pool for lane in inside)
    return tuple(inside) if same and len(cores) == len(set(cores)) else ()


def _inside(lane: Lane, cores: set[int]) -> bool:
    return bool(lane.device.cores) and set(lane.device.cores) < cores
