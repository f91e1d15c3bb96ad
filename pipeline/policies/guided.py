"""Chunks by speed: a slow lane takes fewer rows, and fewer still near the end (ENEAC, arXiv 1802.03316).

The fastest lane takes its efficient chunk S_f, the planned batch. A lane that is f times slower takes
min(S_f / f, r / (f + n)) rows, with r rows left and n such lanes: as long as the fastest needs for its
own, and near the end at most the share with which all would finish together.

Speed counts the way of the rows to the lane (ours): one behind a slow link is slow, however fast it computes.

When not: one lane; a lane whose speed is unknown; lanes of equal speed; and no limit by r as long as more
rows come. It looks at one step: lanes that are kept from it by other steps count as if they were free.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.policy import Job, View

ROUNDING = 1e-9
"""What a quotient may miss of a whole number of rows."""


def chunk(batch: int, speed: float, speeds: Sequence[float], rows: int | None) -> int:
    """Rows for a lane of `speed` rows/s among all `speeds`, at least 1. `rows`: left; None: no end in sight.

    min(S_f / f, r / (f + n)) after ENEAC; f + n, the speed of all in units of this lane, becomes
    sum(speeds) / speed (ours: lanes of any speeds).
    """
    if speed >= max(speeds):
        return batch
    most = batch * speed / max(speeds)
    if rows is not None:
        most = min(most, rows * speed / sum(speeds))
    return max(1, int(most + ROUNDING))


class Guided:
    """Sizes by speed; at the end a lane on which one more chunk would outlast the faster ones has none."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._speeds = {job.name: _speeds(job, job.planned) for job in jobs}

    def size(self, step: str, lane: str, batch: int, view: View) -> int:
        """The chunk of the lane."""
        job, speeds = self._jobs[step], self._speeds[step]
        if lane not in job.planned:
            speeds = _speeds(job, (*job.planned, lane))
        return chunk(batch, speeds[lane], list(speeds.values()), _left(step, view)) if speeds else batch

    def lanes(self, step: str, view: View) -> Sequence[str]:
        """The planned ones; near the end those that would still be done before the faster ones."""
        job, speeds = self._jobs[step], self._speeds[step]
        left = _left(step, view) if speeds else None
        if left is None:
            return job.planned
        return [name for name in job.planned if self._helps(job, name, speeds, left)]

    def _helps(self, job: Job, name: str, speeds: dict[str, float], left: int) -> bool:
        """Whether the lane's next chunk is done before the faster lanes have worked off all that is left.

        Ours: then no schedule ends later than that of the fastest lane alone.
        """
        faster = sum(s for s in speeds.values() if s > speeds[name])
        rows = chunk(job.batch, speeds[name], list(speeds.values()), left)
        return not faster or job.lanes[name].seconds(rows) * faster <= left


def _speeds(job: Job, names: Sequence[str]) -> dict[str, float]:
    """Rows/s of lanes in full batches; none where there is but one, or one that is unknown."""
    seconds = {name: job.lanes[name].seconds(job.batch) for name in names}
    known = len(seconds) > 1 and all(s > 0 for s in seconds.values())
    return {name: job.batch / s for name, s in seconds.items()} if known else {}


def _left(step: str, view: View) -> int | None:
    """Rows that are left for good, or None while more may come."""
    return None if view.coming(step) else view.waiting(step)
