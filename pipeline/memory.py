"""Memory before the run: what a batch takes, and the largest batch that fits. Pure.

What stages say in their `cost` is checked against `pipeline.dryrun`, which needs torch; a plan does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import PlanError
from pipeline.roofline import Cost, Work

__all__ = ["Footprint", "footprint", "largest_batch"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a step on a device: `resident` while it is open, the others for each batch."""

    resident: float
    scratch: float
    values: float

    @property
    def nbytes(self) -> float:
        """All in all."""
        return self.resident + self.scratch + self.values


def footprint(cost: Cost, work: Work) -> Footprint:
    """What a batch takes: `values` are the rows that come in and those that go out."""
    flows = [*work.ports.values(), cost.output]
    return Footprint(cost.resident, cost.scratch, sum(f.rows * f.nbytes for f in flows))


def largest_batch(step: str, batch: int, need: Callable[[int], Footprint], room: float) -> int:
    """The first of `batch`, half of it, a quarter... that fits into `room` bytes.

    Raises PlanError where not even one row fits, naming what is lacking.
    """
    while need(batch).nbytes > room:
        if batch == 1:
            raise PlanError(_lacking(step, need(1), room))
        batch //= 2
    return batch


def _lacking(step: str, one: Footprint, room: float) -> str:
    """Why not even one row fits, and the smallest change that would help."""
    beyond = one.nbytes - room
    what = f"step {step!r} needs {_gib(one.nbytes)} for one row, but {_gib(room)} are free"
    if one.resident > beyond:
        other = (
            f"or make what it keeps there ({_gib(one.resident)}) smaller by as much: another model or dtype"
        )
    else:
        other = f"or give it shorter rows: {_gib(one.scratch + one.values)} are for the row alone"
    return f"{what}: put it on a device with {_gib(beyond)} more, {other}"


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
