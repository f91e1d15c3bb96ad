"""Several micro-batches in a loop that goes to and fro between two pools of lanes (Lamina, arXiv 2405.01814).

Where a loop's steps run on two pools and all its rows make one batch, each pool stands still while the other
works. So the rows that circulate are cut into as many micro-batches as make a round shortest (two, where
each pool is one lane), and these rotate.

When not: the loop's steps share their lanes; there are rows for full batches anyway; what a step costs is
unknown; or the seconds per batch (`fixed`) outweigh half of those for its rows, so that lanes which
might do something else would work for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.policy import Job, Lane, View


@dataclass(frozen=True, slots=True)
class Pool:
    """Lanes that serve the same steps of a loop; a round of `rows` takes `fixed + per_row * rows` there."""

    lanes: int
    fixed: float
    per_row: float


def round_seconds(pools: Sequence[Pool], rows: int, parts: int) -> float:
    """Seconds a round of `rows` takes in `parts` micro-batches: the busiest pool, or the way of one part.

    Ours: pool i of m lanes works (parts * fixed + per_row * rows) / m; one part passes all pools in turn.
    """
    busiest = max((parts * p.fixed + p.per_row * rows) / p.lanes for p in pools)
    return max(busiest, sum(p.fixed + p.per_row * rows / parts for p in pools))


def best_parts(pools: Sequence[Pool], rows: int) -> int:
    """The number of micro-batches with the shortest round: 1 to one for each lane; the fewest of equals."""
    return min(range(1, sum(p.lanes for p in pools) + 1), key=lambda k: round_seconds(pools, rows, k))


class Rotate:
    """Sizes of the steps in loops over disjoint pools.

    `Job.loops` does not say which loop: the steps of all loops are taken for one.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs if job.loops > 0}
        pools = _pools(list(self._jobs.values()))
        self._pools = pools if len(pools) > 1 else ()
        self._last: dict[str, int] = {}

    def size(self, step: str, lane: str, batch: int, view: View) -> int:
        """The step's part of the rows that circulate."""
        if not self._pools or step not in self._jobs:
            return batch
        rows = self._circulating(view)
        size = batch if _fixed_dominates(self._jobs[step].lanes[lane], rows) else self._part(rows, batch)
        self._last[step] = min(size, max(1, view.waiting(step)))
        return size

    def _part(self, rows: int, batch: int) -> int:
        if rows >= batch * sum(p.lanes for p in self._pools):
            return batch
        parts = best_parts(self._pools, rows)
        return max(1, min(batch, -(-rows // parts))) if parts > 1 else batch

    def _circulating(self, view: View) -> int:
        """Rows in the loop: those that wait, and those under way, in batches as large as the last."""
        flying = sum(view.flying(s) * self._last.get(s, 0) for s in self._jobs)
        return flying + sum(view.waiting(s) for s in self._jobs)


def _fixed_dominates(lane: Lane, rows: int) -> bool:
    return lane.fixed > lane.per_row * rows / 2


def _pools(jobs: Sequence[Job]) -> tuple[Pool, ...]:
    """The jobs by what lanes they share, each with its cost on the first lane it is planned on."""
    groups: list[list[Job]] = []
    for job in jobs:
        near = [g for g in groups if any(set(job.planned) & set(other.planned) for other in g)]
        groups = [g for g in groups if g not in near] + [[*(j for g in near for j in g), job]]
    return tuple(_pool(group) for group in groups)


def _pool(jobs: Sequence[Job]) -> Pool:
    homes = [job.lanes[job.planned[0]] for job in jobs]
    lanes = {name for job in jobs for name in job.planned}
    return Pool(len(lanes), sum(h.fixed for h in homes), sum(h.per_row for h in homes))
