"""How long a batch takes on a lane, before it runs: measured where it has been, else by formula.

Sources, best first. *measured*: batches of the very stage on such a lane, fitted. *sampled*: likewise, but
of a few rows that were tried before the run, as it has no `cost` (see `pipeline.trial`). *scaled*: its
formula on this lane, times how much slower than its formula it was where it has run. *formula*: the roofline
of its `cost` alone, which is a bound. A stage with none of these is *assumed* to take `ASSUMED_SECONDS` a
row, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import PlanError
from pipeline.flows import Flows, makers
from pipeline.learned import Learned, Point, differ, fit, stage_key
from pipeline.machine import HOST, Device, Machine
from pipeline.policy import Lane
from pipeline.program import Program, Step
from pipeline.roofline import Cost, Flow, Terms, terms
from pipeline.stage import accelerated, cost_of, state_key

ASSUMED_SECONDS = 0.005
"""What a row of a stage takes of which nothing is known."""
ENOUGH = 6
"""Batches from which a fit says more than a formula, if they are unlike."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Seconds of a batch, where they come from, and by formula what they are spent on."""

    seconds: float
    source: str
    terms: Terms | None = None
    cost: Cost | None = None

    @property
    def bound(self) -> str:
        """ "compute", "memory", "scalar", "overhead", or "" where there is no formula."""
        return self.terms.bound if self.terms else ""


class Estimates:
    """Seconds, bytes and rows of every step of a program on the lanes of a machine.

    `sources`: name to the rows that come in. Raises PlanError where a step can run nowhere.
    """

    def __init__(
        self, program: Program, machine: Machine, sources: Mapping[str, Flow], learned: Learned | None = None
    ) -> None:
        self.program = program
        self.machine = machine
        self.learned = learned or Learned()
        self.flows = Flows(program, sources, self.learned)
        self.steps = {s.name: s for s in program.steps}
        self.makers = makers(program)
        self._guesses: dict[tuple[str, str, int, float], Guess] = {}
        self._curves: dict[tuple[str, str], tuple[float, float, float] | None] = {}
        self._ratios: dict[tuple[str, str], float] = {}
        self._openings: dict[tuple[str, str], float] = {}
        self.states = {name: state_key(s.stage) for name, s in self.steps.items()}

    def can_run(self, step: str, device: Device) -> bool:
        """Whether a lane can run a step at all: ordinary code needs a CPU, products a dtype it has."""
        stage = self.steps[step].stage
        if device.kind != "cpu" and not accelerated(stage):
            return False
        try:
            self.guess(step, device, 1)
        except PlanError:
            return False
        return True

    def seconds(self, step: str, device: Device, rows: int, length: float | None = None) -> float:
        """Seconds of a batch of `rows` whose mean cost hint is `length`."""
        return self.guess(step, device, rows, length).seconds

    def guess(self, step: str, device: Device, rows: int, length: float | None = None) -> Guess:
        """As `seconds`, with where it comes from."""
        at = round(self.flows.length(self.steps[step]) if length is None else length, 1)
        key = (step, device.name, rows, at)
        if key not in self._guesses:
            self._guesses[key] = self._guess(self.steps[step], device, rows, at)
        return self._guesses[key]

    def cost(self, step: str, device: Device, rows: float, length: float | None = None) -> Cost | None:
        """What a batch asks of a lane by the stage's own formula."""
        s = self.steps[step]
        return cost_of(s.stage, self.flows.work(s, rows, device.profile.auto(), length))

    def opening(self, step: str, device: Device) -> float:
        """Seconds until a stage is open on a lane: as seen, else what it reads from storage.

        Stages that share what they open are seen together: only the first of them opens it.
        """
        key = (step, device.name)
        if key not in self._openings:
            known = self._seen_opening(self.steps[step].stage, device)
            cost = self.cost(step, device, 1) if known is None else None
            self._openings[key] = known or (cost.opening / device.profile.load if cost else 0.0)
        return self._openings[key]

    def _seen_opening(self, stage: Any, device: Device) -> float | None:
        key = state_key(stage)
        alike = [self.steps[name].stage for name, other in self.states.items() if other == key]
        seen = [self.learned.opening(s, device) for s in (stage, *alike)]
        return next((seconds for seconds in seen if seconds is not None), None)

    def lane(self, step: str, device: Device, batch: int) -> Lane:
        """What policies know: a line through one row and a full batch, and what binds the latter."""
        one, full = self.seconds(step, device, 1), self.guess(step, device, batch)
        per_row = (full.seconds - one) / (batch - 1) if batch > 1 else one
        opening = self.opening(step, device)
        return Lane(device, max(one - per_row, 0.0), max(per_row, 0.0), full.bound, opening)

    def link(self, step: str, device: Device, batch: int, placed: Mapping[str, Sequence[str]]) -> float:
        """Seconds a row for which a full batch on a lane waits until its inputs have come over links.

        `placed`: lanes by step; of several each is as likely to have made a row. What comes into the program,
        or into a loop for the first time, is in main memory.
        """
        s, seconds = self.steps[step], 0.0
        for e in s.edges:
            lanes = [self.machine.device(d) for maker in self.makers[e.producer] for d in placed[maker]]
            away = [d for d in lanes or [Device(HOST)] if d.pool != device.pool]
            if away:
                part = self.flows.work(s, batch).port(e.port)
                each = (self.machine.seconds(d, device, part.rows * part.nbytes) for d in away)
                seconds += sum(each) / max(len(lanes), 1)
        return seconds / batch

    def _guess(self, s: Step, device: Device, rows: int, length: float) -> Guess:
        cost = self.cost(s.name, device, rows, length)
        split = terms(cost, device) if cost else None
        curve = self._curve(s, device)
        if curve is not None:
            fixed, per_row, per_length = curve
            told = max(fixed + per_row * rows + per_length * rows * length, device.profile.overhead)
            sampled = stage_key(s.stage) in self.learned.sampled
            return Guess(told, "sampled" if sampled else "measured", split, cost)
        if split is None:
            return Guess(device.profile.overhead + ASSUMED_SECONDS * rows, "assumed")
        ratio = self._ratio(s, device)
        return Guess(split.seconds * ratio, "scaled" if ratio != 1.0 else "formula", split, cost)

    def _curve(self, s: Step, device: Device) -> tuple[float, float, float] | None:
        """The fit of a stage on such lanes, where it has run often enough, or has no formula."""
        key = (s.name, device.name)
        if key not in self._curves:
            points = self.learned.of(s.stage, device)
            if self.cost(s.name, device, 1) is None:
                points = points or self.learned.nearest(s.stage, device)[1]
            elif len(points) < ENOUGH or not differ(points):
                points = ()
            self._curves[key] = fit(points) if points else None
        return self._curves[key]

    def _ratio(self, s: Step, device: Device) -> float:
        """How much slower than its formula a stage has been: on such lanes, else on the nearest of its kind.

        So lanes of another width are compared by what was measured too, not by a bound.
        """
        key = (s.name, device.name)
        if key not in self._ratios:
            self._ratios[key] = self._find_ratio(s, device)
        return self._ratios[key]

    def _find_ratio(self, s: Step, device: Device) -> float:
        threads, points = self.learned.nearest(s.stage, device)
        if not points:
            return 1.0
        profile = device.profile if threads == device.threads else self.machine.lane_profile(threads)
        lane = replace(device, threads=threads, profile=profile)
        return sum(p.seconds for p in points) / sum(self._formula(s, lane, p) for p in points)

    def _formula(self, s: Step, lane: Device, p: Point) -> float:
        cost = self.cost(s.name, lane, p.rows, p.length / p.rows if p.rows else 0.0)
        assert cost is not None
        return terms(cost, lane).seconds
