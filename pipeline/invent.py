"""Rows that nobody computed: what a stage would give, by its flow. For simulations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipeline.errors import RowId
from pipeline.estimate import Estimates
from pipeline.events import Meta, Submit
from pipeline.program import Turn
from pipeline.roofline import Flow
from pipeline.stage import expands


class Inventor:
    """Gives each batch its rows: as many, as long and as heavy as the flows say, long rows more of them.

    Fractions are carried from row to row, so that numbers come out right in sum; nothing is random.
    """

    def __init__(self, estimates: Estimates) -> None:
        self._steps = estimates.steps
        self._flows = estimates.flows
        self._rest: dict[str, float] = defaultdict(float)
        self._ends = {n.until: n.name for n in estimates.program.nodes if isinstance(n, Turn)}
        self._passes: dict[tuple[str, RowId], int] = {}
        self._facts = {name: self._fact(name) for name in self._steps}

    def made(self, task: Submit, lengths: Sequence[int]) -> Meta:
        """What a task gives; `lengths`: the cost hints of its rows, where they have any."""
        flow, fan_out, mean = self._facts[task.step]
        scale = [x / mean for x in lengths] if mean and len(lengths) == len(task.owed) else []
        ids = task.owed
        if expands(self._steps[task.step].stage):
            numbers = [self._whole(task.step, fan_out * s) for s in scale or [1.0] * len(ids)]
            ids = tuple((*i, k) for i, number in zip(ids, numbers, strict=True) for k in range(number))
            scale = []
        nbytes = round(flow.nbytes * len(ids))
        done = tuple(self._is_done(task.step, i) for i in ids) if task.step in self._ends else None
        return Meta(ids, nbytes, self._lengths(task.step, flow.length, scale, len(ids)), done)

    def _fact(self, name: str) -> tuple[Flow, float, float]:
        step = self._steps[name]
        flow, rows = self._flows.made(name), self._flows.rows(step)
        return flow, flow.rows / rows if rows else 0.0, self._flows.length(step)

    def _whole(self, key: str, number: float) -> int:
        self._rest[key] += number
        whole = int(self._rest[key] + 1e-9)
        self._rest[key] -= whole
        return whole

    def _lengths(self, step: str, mean: float, scale: list[float], rows: int) -> tuple[int, ...] | None:
        if not mean:
            return None
        return tuple(self._whole(f"{step} length", mean * s) for s in scale or [1.0] * rows)

    def _is_done(self, step: str, row: RowId) -> bool:
        """Whether a row leaves its loop after this round."""
        left = self._passes.pop((step, row), None)
        if left is None:
            left = max(self._whole(f"{step} rounds", self._flows.rounds(self._ends[step])), 1)
        if left > 1:
            self._passes[step, row] = left - 1
        return left <= 1


def given(sources: Mapping[str, Flow], whole: Mapping[str, bool]) -> dict[str, Meta]:
    """Rows for the sources of a simulation, numbered; `whole`: those that are one row, under the id ()."""
    return {
        name: Meta(
            ((),) if whole[name] else tuple((f"{name}-{i}",) for i in range(round(flow.rows))),
            round(flow.nbytes * flow.rows),
            _lengths(flow.length, 1 if whole[name] else round(flow.rows)) if flow.length else None,
        )
        for name, flow in sources.items()
    }


def _lengths(mean: float, rows: int) -> tuple[int, ...]:
    """Whole numbers as near to `mean` as can be, and right in sum."""
    return tuple(int((i + 1) * mean + 1e-9) - int(i * mean + 1e-9) for i in range(rows))
