"""The best plan for a program on a machine: what to run where, chosen by estimates and simulation.

Every layout of the machine and every placement that memory allows is compared: by a bound where there are
many, the most promising by simulation on few rows, then on more (`pipeline.search`). A pure function: the
same program, machine, rows and experience give the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

from pipeline.bounds import Bounds
from pipeline.candidates import Candidate, job, joined, shrunk
from pipeline.errors import PlanError
from pipeline.estimate import Estimates
from pipeline.handover import settled
from pipeline.invent import given
from pipeline.learned import Learned
from pipeline.machine import Machine, layouts
from pipeline.pipelined import best_runs
from pipeline.plan import WINDOW_BYTES, Plan
from pipeline.policies import MODES
from pipeline.program import Program
from pipeline.roofline import Flow
from pipeline.search import Found, halving, shaken
from pipeline.simulate import Simulated, simulate
from pipeline.spaces import Choice, Space, fitted, space
from pipeline.timeline import Timeline

ENUMERATED = 4096
"""Placements of a layout up to which all are looked at."""
FINALISTS = 16
"""Candidates that are simulated."""
LONG = 16
"""Steps beyond which a simulation is slow: of a third as many, and without going on from the best."""
EFFORTS = (0.1, 0.4, 1.0)
TOLD = 200_000
"""Rows times steps up to which a run is simulated in full after it, to be compared step by step."""
ROW_STEPS = 4000
"""Rows times steps of a full simulation while searching; a larger run is cut down to it."""
SWEEPS = 3
MOVES, NEAR = 4, 2
"""Of so many of the heaviest steps so many other lanes are simulated in full, in each of `SWEEPS` turns."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what it is expected to do, and what else was looked at.

    `seconds`: predicted; `simulated`: of the rows in full, or of as many as `ROW_STEPS` allow; `others`:
    plans that were simulated, with their seconds, best first; `evaluations`: full simulations' worth of
    work; `considered`: placements compared in all; `share`: of the rows that `simulated` has; `untried`: why
    stages of which nothing is known were not tried, by step (see `pipeline.trial`).
    """

    plan: Plan
    estimates: Estimates
    sources: Mapping[str, Flow]
    seconds: float
    simulated: Simulated
    others: tuple[tuple[Plan, float], ...]
    evaluations: float
    considered: int
    share: float = 1.0
    untried: Mapping[str, str] = field(default_factory=dict)

    def in_full(self) -> Timeline | None:
        """The predicted timeline of all rows; None where these are more than is worth simulating."""
        if self.share == 1.0:
            return self.simulated.timeline
        if self.share < ROW_STEPS / TOLD:
            return None
        program = self.estimates.program
        whole = {n: kind.whole for n, kind in program.sources.items()}
        return simulate(self.plan, self.estimates, given(self.sources, whole)).timeline


class Planner:
    """Plans of one program for one workload. `divide`: the CPU's lanes may be laid out anew."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        sources: Mapping[str, Flow],
        learned: Learned | None = None,
        window: int = WINDOW_BYTES,
        policies: tuple[str, ...] = (),
        divide: bool = True,
        seed: int = 0,
    ) -> None:
        self._program = program
        self._learned = learned or Learned()
        self._sources = sources
        self._window = window
        self._policies = policies
        self._seed = seed
        self._machines = layouts(machine, MODES in policies) if divide else (machine,)
        self._estimates: dict[tuple[int, float], Estimates] = {}
        self._bounds: dict[tuple[int, float], Bounds] = {}
        self.spaces = [space(self.estimates(i)) for i in range(len(self._machines))]
        steps = max(1.0, sum(self.estimates(0).flows.rows(s) for s in program.steps))
        self._share = min(1.0, ROW_STEPS / steps)
        self._efforts = EFFORTS if self._share < 1 else EFFORTS[-1:]  # a tenth of few rows says little

    def best(self) -> Planned:
        """The plan to run. Raises PlanError where nothing fits."""
        ranked, considered = self._ranked()
        found = halving([c for _, c in ranked], self.score, self._efforts)
        if len(self._program.steps) <= LONG:
            found = self._improved(found)
        others = tuple((self.plan(c), self._in_full(c, s)) for c, s in found.ranking[1:])
        result = self._simulate(found.best, self._share, stalls=True)
        seconds = self._in_full(found.best, result.timeline.seconds)
        plan, estimates = self.plan(found.best), self.estimates(found.best.layout)
        plan = settled(self._program, replace(plan, live=result.peak))
        effort, share = found.evaluations, self._share
        return Planned(plan, estimates, self._sources, seconds, result, others, effort, considered, share)

    def score(self, candidate: Candidate, effort: float) -> float:
        """Predicted makespan, from a simulation of a share of the rows, in which openings weigh too much."""
        seconds = self._simulate(candidate, self._share * effort).timeline.seconds
        return self._grown(candidate, seconds, self._share * effort, self._share)

    def plan(self, candidate: Candidate, share: float = 1.0) -> Plan:
        """The plan of a candidate, with batches that fit into memory."""
        estimates = self.estimates(candidate.layout, share)
        bare = self._bare(candidate, share)
        return replace(bare, jobs=tuple(job(name, bare.placements, estimates) for name in bare.placements))

    def _bare(self, candidate: Candidate, share: float) -> Plan:
        """A plan without what policies know of its steps."""
        estimates = self.estimates(candidate.layout, share)
        placed = fitted(self.spaces[candidate.layout], candidate.chosen, estimates, self._window)
        return Plan(self._machines[candidate.layout], placed, self._window, self._policies)

    def estimates(self, layout: int, share: float = 1.0) -> Estimates:
        """Estimates on a layout, of a share of the rows."""
        key = (layout, share)
        if key not in self._estimates:
            sources = {n: shrunk(f, share) for n, f in self._sources.items()}
            machine = self._machines[layout]
            self._estimates[key] = Estimates(self._program, machine, sources, self._learned)
        return self._estimates[key]

    def _simulate(self, candidate: Candidate, share: float, stalls: bool = False) -> Simulated:
        estimates = self.estimates(candidate.layout, share)
        sources = {n: shrunk(f, share) for n, f in self._sources.items()}
        whole = {n: kind.whole for n, kind in self._program.sources.items()}
        plan = self.plan(candidate, share) if self._policies else self._bare(candidate, share)
        return simulate(plan, estimates, given(sources, whole), stalls=stalls)

    def _in_full(self, candidate: Candidate, seconds: float) -> float:
        return self._grown(candidate, seconds, self._share, 1.0)

    def _grown(self, candidate: Candidate, seconds: float, share: float, to: float) -> float:
        """The makespan of a share of the rows from that of another: both grow as their bounds do."""
        if share == to:
            return seconds
        part, whole = (self._bound(candidate, each) for each in (share, to))
        return seconds * whole / part if part else seconds

    def _bound(self, candidate: Candidate, share: float, limit: float = math.inf) -> float:
        chosen = dict(zip(self.spaces[candidate.layout].steps, candidate.chosen, strict=True))
        return self._bounds_of(candidate.layout, share).bound(chosen, limit)

    def _bounds_of(self, layout: int, share: float) -> Bounds:
        key = (layout, share)
        if key not in self._bounds:
            self._bounds[key] = Bounds(self.estimates(layout, share))
        return self._bounds[key]

    def _improved(self, found: Found[Candidate]) -> Found[Candidate]:
        """Goes on to a neighbour as long as one is better in full: bounds mislead where lanes differ."""
        scores, best = dict(found.ranking), found.best
        for _ in range(SWEEPS):
            near = {c: self.score(c, 1.0) for c in self._neighbours(best, scores)}
            both = joined(best, sorted(near, key=near.__getitem__))
            scores |= near | {c: self.score(c, 1.0) for c in both if c not in scores and self._fits(c)}
            before, best = best, min(scores, key=scores.__getitem__)
            if best == before:
                break
        ranking = tuple(sorted(scores.items(), key=lambda pair: pair[1]))
        spent = found.evaluations + len(scores) - len(found.ranking)
        return Found(best, scores[best], spent, ranking)

    def _neighbours(self, here: Candidate, scores: Mapping[Candidate, float]) -> list[Candidate]:
        """New candidates that differ from `here` in one step and may be better.

        Of each of the heaviest steps those of the least bounds: one step must not crowd out another.
        """
        space, limit = self.spaces[here.layout], scores[here]
        bounds = self._bounds_of(here.layout, self._share)
        spread = [bounds.piece(s, c).spread for s, c in zip(space.steps, here.chosen, strict=True)]
        found: list[Candidate] = []
        for at in sorted(range(len(spread)), key=lambda at: -spread[at])[:MOVES]:
            moved = [
                Candidate(here.layout, (*here.chosen[:at], choice, *here.chosen[at + 1 :]))
                for choice in space.choices[at]
            ]
            least = {c: self._bound(c, self._share, limit) for c in moved if c not in scores}
            ranked = sorted((c for c, b in least.items() if b < limit), key=least.__getitem__)
            found += islice(filter(self._fits, ranked), NEAR)
        return found

    def _ranked(self) -> tuple[list[tuple[float, Candidate]], int]:
        """The candidates with the lowest bounds among those that fit; how many there were in all."""
        found: dict[Candidate, float] = {}
        for i, here in enumerate(self.spaces):
            bounds = Bounds(self.estimates(i))
            for chosen in self._candidates(here, bounds):
                found[Candidate(i, chosen)] = bounds.bound(dict(zip(here.steps, chosen, strict=True)))
        ranked = sorted(((b, c) for c, b in found.items()), key=lambda pair: pair[0])
        most = FINALISTS if len(self._program.steps) <= LONG else FINALISTS // 3
        fitting = list(islice(((b, c) for b, c in ranked if self._fits(c)), most))
        if not fitting:
            self.plan(ranked[0][1])  # raises, and says what would help
        return fitting, len(found)

    def _candidates(self, here: Space, bounds: Bounds) -> Sequence[tuple[Choice, ...]]:
        proven = best_runs(bounds.estimates, bounds)
        runs = [proven[0]] if proven else []
        if here.size <= ENUMERATED:
            return list(dict.fromkeys([*runs, *product(*here.choices)]))
        starts = [*runs, tuple(c[0] for c in here.choices), tuple(c[-1] for c in here.choices)]
        starts += shaken(here.choices, self._seed, 2 - len(runs))
        return list(dict.fromkeys(c for start in starts for c in self._swept(start, here, bounds)))

    def _swept(self, start: tuple[Choice, ...], here: Space, bounds: Bounds) -> list[tuple[Choice, ...]]:
        """All placements seen while each step in turn moves to where the bound is smallest."""
        best, seen = list(start), [start]
        for _ in range(SWEEPS):
            before = list(best)
            for at, choices in enumerate(here.choices):
                best[at] = bounds.cheapest(dict(zip(here.steps, best, strict=True)), here.steps[at], choices)
                seen.append(tuple(best))
            if best == before:
                break
        return seen

    def _fits(self, candidate: Candidate) -> bool:
        try:
            self._bare(candidate, 1.0)
        except PlanError:
            return False
        return True
