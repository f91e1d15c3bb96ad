"""Stages of which nothing is known, tried on a few rows before the run: what these take, and what they give.

Rows of the inputs go through the steps before such a stage and through the stage itself, at most `ROWS` at a
step and for about `SECONDS` in all, as `run_local` would send them. Batches of several sizes are timed,
behind one that pays for imports. What is seen is for one plan only: the run starts from its inputs again.

When not: behind a stage that gathers (what it makes of few rows is not what it makes of all, and it may lie
on disk), in a loop, behind or in a stage that takes long to open. Then the assumption stands, and it is said
why. On one lane of each stage, by the plain rule: other kinds of lanes stay unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pipeline.apply import apply, assemble
from pipeline.errors import PlanError, RowId
from pipeline.estimate import Estimates
from pipeline.learned import Learned, Point, lane_key, stage_key
from pipeline.machine import Device
from pipeline.plan import allowed
from pipeline.program import Step
from pipeline.stage import gathers, length_of, open_stage, ports, state_key
from pipeline.values import Rows
from pipeline.yields import Yield

SIZES = (1, 1, 2, 4)
"""Batches to time; the first also pays for imports, and counts only where it stays the only one."""
ROWS = sum(SIZES)
SECONDS = 2.5
"""For all stages together, reckoned before each batch; no batch is broken off."""
OPENING = 0.5
"""Seconds that a stage may have taken to open in earlier runs."""

Row = Mapping[str, Rows]
"""What a row of a step reads, by port."""
Given = Mapping[RowId, Rows]
"""The rows of one producer, one a batch."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`learned`: with what was seen; `untried`: why others of which nothing is known were not, by step."""

    learned: Learned
    untried: Mapping[str, str]


def tried(
    estimates: Estimates, inputs: Mapping[str, Rows], clock: Callable[[], float] = time.monotonic
) -> Trial:
    """Try the stages of a program of which nothing is known on the first of the rows in `inputs`."""
    wanted = unknown(estimates) if inputs else []
    sample = _Sample(estimates, inputs, clock)
    for step in _before(wanted, estimates):
        sample.add(step, timed=step in wanted)
    return Trial(sample.learned, {s.name: sample.why[s.name] for s in wanted if s.name in sample.why})


def unknown(estimates: Estimates) -> list[Step]:
    """The steps whose stages have no `cost` and never ran here, on lanes of any kind."""
    seen = {key.partition("@")[0] for key in estimates.learned.points}
    steps = estimates.program.steps
    return [s for s in steps if not hasattr(s.stage, "cost") and stage_key(s.stage) not in seen]


def _before(wanted: Iterable[Step], estimates: Estimates) -> list[Step]:
    """Those steps and all before them, in order."""
    found, todo = set[str](), [s.name for s in wanted]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [m for e in estimates.steps[name].edges for m in estimates.makers[e.producer]]
    return [s for s in estimates.program.steps if s.name in found]


class _Sample:
    """The few rows, as far as they have come. `why`: what keeps them from a step."""

    def __init__(self, estimates: Estimates, inputs: Mapping[str, Rows], clock: Callable[[], float]) -> None:
        self.learned = estimates.learned
        self.why: dict[str, str] = {}
        self._estimates = estimates
        self._clock = clock
        self._end = clock() + SECONDS
        self._states: dict[tuple[Any, ...], Any] = {}
        self._given: dict[str, Given] = {
            name: {r.ids[0]: r for r in rows.take(range(min(ROWS, len(rows)))).split()}
            for name, rows in inputs.items()
        }

    def add(self, step: Step, timed: bool) -> None:
        """Send the rows through a step; `timed`: to learn what it takes."""
        try:
            lane = allowed(step, self._estimates.machine)[0]
            why = self._obstacle(step, lane, timed) or self._through(step, lane, timed)
        except PlanError as error:
            why = str(error)
        except Exception as error:  # the run meets it again, and reports it
            why = f"{step.name} cannot be opened ({type(error).__name__})"
        if why:
            self.why[step.name] = why

    def _obstacle(self, step: Step, lane: Device, timed: bool) -> str:
        """Why a step is not tried, or nothing."""
        makers = [m for e in step.edges for m in self._estimates.makers[e.producer]]
        found = [self.why[m] for m in makers if m in self.why]
        missing = [e.producer for e in step.edges if e.producer not in self._given]
        if found:
            return found[0]
        if step.scope:
            return f"{step.name} is in a loop"
        if missing:
            return f"no rows of {missing[0]} are at hand"
        if gathers(step.stage) is not None:
            return f"{step.name} gathers its rows"
        if not self._opens_soon(step, lane):
            return f"{step.name} opens first"
        takes, left = self._estimates.seconds(step.name, lane, 1), self._end - self._clock()
        if left <= 0:
            return "the stages before took all the time"
        return f"{step.name} takes too long" if takes > left and not timed else ""

    def _opens_soon(self, step: Step, lane: Device) -> bool:
        """Whether opening is known to be short: it was, or nothing is read; else it may load a model."""
        stage = step.stage
        if not hasattr(stage, "open") or self._key(stage, lane) in self._states:
            return True
        seen = self.learned.opening(stage, lane)
        if seen is not None:
            return seen <= OPENING
        cost = self._estimates.cost(step.name, lane, 1)
        return cost is not None and not cost.opening

    @staticmethod
    def _key(stage: Any, lane: Device) -> tuple[Any, ...]:
        return (lane.name, *state_key(stage))

    def _through(self, step: Step, lane: Device, timed: bool) -> str:
        """Open the stage and send rows through; returns why none came out, or nothing."""
        rows, key = list(self._joined(step)), self._key(step.stage, lane)
        if key not in self._states:
            self._states[key] = open_stage(step.stage, lane)
        seen: list[tuple[Point, Rows]] = []
        takes = 0.0 if timed else self._estimates.seconds(step.name, lane, 1)
        for batch in _cut(rows, SIZES):
            if self._clock() + takes * len(batch) > self._end:
                break
            found = self._timed(step, self._states[key], batch)
            if found is not None:
                seen.append(found)
                takes = found[0].seconds / found[0].rows
        if not seen:
            return f"none of its rows came through {step.name}"
        made = [r for _, rows in seen for r in rows.split()]
        self._given[step.name] = {r.ids[0]: r for r in made}
        if timed:
            self._learn(step, lane, [p for p, _ in seen], made)
        return ""

    def _joined(self, step: Step) -> Iterable[Row]:
        """The first rows of a step of which all is there."""
        own = next(e for e in step.edges if e.depth == step.depth)
        found = (
            {e.port: self._given[e.producer].get(i[: e.depth]) for e in step.edges}
            for i in self._given[own.producer]
        )
        whole = ({p: r for p, r in row.items() if r is not None} for row in found)
        return islice((row for row in whole if len(row) == len(step.edges)), ROWS)

    def _timed(self, step: Step, state: Any, rows: Sequence[Row]) -> tuple[Point, Rows] | None:
        """A batch, with what it took; None where it failed."""
        kinds = ports(type(step.stage))
        parts = {p: list({r[p].ids[0]: r[p] for r in rows}.values()) for p in kinds.inputs}
        owed = tuple(max((r.ids[0] for r in row.values()), key=len) for row in rows)
        batch = assemble(step.stage, kinds, parts)
        began = self._clock()
        try:
            made = apply(step.stage, kinds, state, batch, owed)
        except Exception:  # the run meets it again, and reports it
            return None
        return Point(len(rows), length_of(step.stage, batch), self._clock() - began), made

    def _learn(self, step: Step, lane: Device, points: Sequence[Point], made: Sequence[Rows]) -> None:
        known, key = self.learned, stage_key(step.stage)
        rows, read = sum(p.rows for p in points), sum(p.length for p in points)
        nbytes, length = sum(r.nbytes for r in made), sum(sum(r.lengths or ()) for r in made)
        self.learned = replace(
            known,
            points={**known.points, lane_key(step.stage, lane): tuple(points[1:] or points)},
            yields={key: Yield(rows, len(made), nbytes, length, read), **known.yields},
            sampled=known.sampled | {key},
        )


def _cut(rows: Sequence[Row], sizes: Iterable[int]) -> Iterable[Sequence[Row]]:
    """Batches of such sizes, as far as rows go."""
    start = 0
    for size in sizes:
        if rows[start:]:
            yield rows[start : start + size]
        start += size
