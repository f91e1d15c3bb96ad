"""Idle compute lanes help a bandwidth-bound step, never the other way (HeteroServe, arXiv 2603.12707).

A lane whose own steps are bound by arithmetic, and which has nothing to do, takes batches of a step that is
bound by memory traffic and has piled up at home. It may do so where a batch would be done there, with the
stage opened first if it is not open yet, before the backlog is worked off at home.

When not: the backlog is short (two batches for each lane at home); opening takes longer than that; rows
have state, such as a KV cache, that takes as long to move as to be worked on; the lane's own steps, or those
of the step's home, are bound by anything else or unknown. Lanes bound by memory never take a step bound by
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.policy import Job, Lane, View

BACKLOG = 2
"""Batches for each lane at home that must wait before others help."""


def backlog(waiting: int, batch: int, homes: int) -> bool:
    """Whether rows have piled up: more than two full batches for each lane at home."""
    return waiting > BACKLOG * batch * homes


def pays(waiting: int, batch: int, homes: Sequence[Lane], there: Lane, opened: bool = True) -> bool:
    """Whether a batch is done there before the homes, all at work, are through with what waits.

    Ours: the last rows wait at least waiting / sum(batch / seconds(batch)) at home. So the run ends no
    later for a batch that is given away. False where a speed is unknown.
    """
    if not all(lane.seconds(batch) > 0 for lane in (*homes, there)):
        return False
    speed = sum(batch / lane.seconds(batch) for lane in homes)
    return there.seconds(batch) + (0.0 if opened else there.opening) < waiting / speed


class Steal:
    """Lanes beyond the planned ones, for steps bound by memory."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._thieves = {job.name: _thieves(job, jobs) for job in jobs}

    def lanes(self, step: str, view: View) -> Sequence[str]:
        """The planned ones, and those that steal."""
        job, waiting = self._jobs[step], view.waiting(step)
        if not backlog(waiting, job.batch, len(job.planned)):
            return job.planned
        homes = [job.lanes[name] for name in job.planned]
        # A lane that steals keeps its own next rows waiting for one batch. That is no loss: what it
        # would do with them joins the backlog.
        return (
            *job.planned,
            *(
                name
                for name in self._thieves[step]
                if view.idle(name)
                and pays(waiting, job.batch, homes, job.lanes[name], view.opened(step, name))
            ),
        )


def _thieves(job: Job, jobs: Sequence[Job]) -> tuple[str, ...]:
    """The lanes that may ever steal from a step."""
    if job.transfer and job.transfer >= min(job.lanes[name].per_row for name in job.planned):
        return ()
    if any(job.lanes[name].bound != "memory" for name in job.planned):
        return ()
    return tuple(name for name in job.lanes if name not in job.planned and _computes(name, jobs))


def _computes(name: str, jobs: Sequence[Job]) -> bool:
    """Whether a lane has steps of its own, and all are bound by arithmetic there."""
    own = [job.lanes[name].bound for job in jobs if name in job.planned]
    return bool(own) and set(own) == {"compute"}
