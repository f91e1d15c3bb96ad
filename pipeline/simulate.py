"""A run on a virtual clock: the very Scheduler that drives Dask, and estimates instead of work.

Nothing is computed: each batch takes as long as it is estimated to with the rows that are in it (padded to
the longest, where its stage pads), gives as many rows as its flow says, and moves between memories at the
speed of their link. The same plan and rows give the same timeline.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.estimate import Estimates
from pipeline.events import Done, Event, Free, Key, Lost, Meta, Start, Submit
from pipeline.invent import Inventor
from pipeline.machine import HOST, Device
from pipeline.merging import alone, shares, spans, together
from pipeline.plan import Plan
from pipeline.roofline import Bill, bill, joules
from pipeline.scheduler import Scheduler
from pipeline.stage import batch_length
from pipeline.timeline import Span, Stall, Timeline
from pipeline.watch import Watch

BUSY = 0.5
"""Share of a handoff in which Dask and the Scheduler work, one batch after another; the rest is messages that
wait for each other. An empty batch in a chain takes 11.5 ms, many side by side 5.9 (2-core VM, 2026-11)."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a run would be. `moved`: bytes between memories, by step; `peak`: most bytes that waited."""

    timeline: Timeline
    bill: Bill
    moved: Mapping[str, float]
    peak: int


@dataclass(frozen=True, slots=True)
class _Value:
    """Where a value is, bytes a row, and its rows' cost hints."""

    device: Device
    nbytes: float
    lengths: tuple[int, ...] | None


class Simulation:
    """One run over `sources`. `lose`: lanes that go away, with the second in which they do."""

    def __init__(
        self,
        plan: Plan,
        estimates: Estimates,
        sources: Mapping[str, Meta],
        lose: Mapping[str, float] | None = None,
        ordered: bool = True,
        stalls: bool = True,
    ) -> None:
        self._estimates = estimates
        self._scheduler = Scheduler(estimates.program, plan, ordered)
        self._watch = Watch(self._scheduler)
        self._sources = sources
        self._stalls = stalls
        self._inventor = Inventor(estimates)
        self._devices = {d.name: d for d in plan.machine.devices}
        self._machine = plan.machine
        self._lanes: dict[str, deque[Submit]] = {name: deque() for name in self._devices}
        self._running: dict[str, Span] = {}
        steps = estimates.program.steps
        self._own = {s.name: {e.port for e in s.edges if 0 < e.depth == s.depth} for s in steps}
        self._values: dict[Key, _Value] = {}
        self._clock: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._opened: set[tuple[object, ...]] = set()
        self._moved: dict[str, float] = defaultdict(float)
        self._spans: list[Span] = []
        self._joules = 0.0
        self._numbers = self._peak = 0
        self._told = 0.0
        for lane, at in (lose or {}).items():
            self._at(at, self._lose, lane)

    def run(self) -> Simulated:
        """To the end."""
        home = Device(HOST)  # what comes in is in main memory
        for name, meta in self._sources.items():
            self._values[name] = _Value(home, meta.nbytes / max(len(meta.ids), 1), meta.lengths)
        now = 0.0
        self._tell(now, Start(tuple(self._sources.items())))
        while self._clock and not self._scheduler.finished:
            now, _, happens, what = heapq.heappop(self._clock)
            happens(now, *what)
        assert self._scheduler.finished, "nothing runs and inputs are left"
        spans = tuple(self._spans)
        timeline = Timeline(now, spans, self._watch.stalls(now))
        return Simulated(
            timeline, bill(self._machine.devices, now, self._joules), dict(self._moved), self._peak
        )

    def _tell(self, now: float, event: Event) -> None:
        for said in self._scheduler.handle(event):
            if isinstance(said, Submit):
                self._lanes[said.device].append(said)
                if len(self._lanes[said.device]) == 1:
                    self._begin(now, said.device)
            elif isinstance(said, Free):
                self._values.pop(said.key)
        self._peak = max(self._peak, self._scheduler.live_bytes)
        if self._stalls:
            self._watch.see(now)

    def _begin(self, now: float, lane: str) -> None:
        task = self._lanes[lane][0]
        device, rows = self._devices[lane], len(task.owed)
        start = now + self._transfer(task, device)
        if start > now:
            self._watch.note(Stall(lane, now, start, "link", task.step))
        opening = self._opening(task.step, device)
        lengths = self._lengths(task)
        length = batch_length(self._estimates.steps[task.step].stage, lengths)
        took = self._estimates.seconds(task.step, device, rows, length / rows if rows else 0.0)
        end = start + opening + took
        self._running[lane] = Span(task.step, lane, start, end, rows, length, opening=opening)
        self._at(end, self._finish, lane, task, lengths)

    def _finish(self, now: float, lane: str, task: Submit, lengths: Sequence[int]) -> None:
        if task.task not in self._scheduler.board.tasks:
            return  # the lane was lost meanwhile
        span = self._running.pop(lane)
        self._lanes[lane].popleft()
        if self._lanes[lane]:
            self._begin(now, lane)
        parts = zip(alone(task), shares(task), strict=True)
        meta = together([self._inventor.made(part, lengths[at]) for part, (_, at) in parts])
        span = replace(span, made=len(meta.ids), nbytes=float(meta.nbytes))
        self._spans += spans(task, span)
        cost = self._estimates.guess(span.step, self._devices[lane], span.rows, span.length / span.rows).cost
        self._joules += joules(cost, self._devices[lane]) if cost else 0.0
        self._values[task.task] = _Value(
            self._devices[lane], meta.nbytes / max(len(meta.ids), 1), meta.lengths
        )
        busy = self._machine.handoff * BUSY
        self._told = max(now + self._machine.handoff - busy, self._told) + busy
        self._at(self._told, self._done, Done(task.task, meta))

    def _done(self, now: float, event: Done) -> None:
        if event.task in self._scheduler.board.tasks:
            self._tell(now, event)

    def _lose(self, now: float, lane: str) -> None:
        self._lanes[lane].clear()
        self._running.pop(lane, None)
        self._tell(now, Lost(lane))

    def _at(self, when: float, happens: Callable[..., None], *what: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._clock, (when, self._numbers, happens, what))

    def _opening(self, step: str, device: Device) -> float:
        key = (device.name, *self._estimates.states[step])
        if key in self._opened:
            return 0.0
        self._opened.add(key)
        return self._estimates.opening(step, device)

    def _transfer(self, task: Submit, device: Device) -> float:
        seconds = 0.0
        for _, parts in task.ports:
            for part in parts:
                value = self._values[part.key]
                if value.device.pool != device.pool:
                    nbytes = value.nbytes * len(part.rows)
                    seconds += self._machine.seconds(value.device, device, nbytes)
                    for step in alone(task):
                        self._moved[step.step] += nbytes * len(step.owed) / len(task.owed)
        return seconds

    def _lengths(self, task: Submit) -> list[int]:
        """The cost hint of each row of a batch, from the port where they are largest; not of shared rows."""
        found: list[list[int]] = [[]]
        for port, parts in task.ports:
            hints = [self._values[p.key].lengths for p in parts]
            if port in self._own[task.step] and None not in hints:
                found.append([x[i] for x, p in zip(hints, parts, strict=True) if x for i in p.rows])
        return max(found, key=sum)


def simulate(
    plan: Plan,
    estimates: Estimates,
    sources: Mapping[str, Meta],
    lose: Mapping[str, float] | None = None,
    ordered: bool = True,
    stalls: bool = True,
) -> Simulated:
    """Run `plan` over `sources` on a virtual clock. `stalls`: note why lanes stand still."""
    return Simulation(plan, estimates, sources, lose, ordered, stalls).run()
