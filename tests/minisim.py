"""Rows that walk through steps on lanes, on a virtual clock: enough to see what a policy does."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from pipeline.policy import Job, Lanes, Sizes
from pipeline.timeline import Span, Timeline

Routes = Mapping[int, Sequence[str]]


class MiniSim:
    """The View and the loop in one. `routes`: by row, its steps; `opened`: (step, lane) open from the start.

    A free lane takes what rows there are, planned steps first. Lanes that share a core never run at once.
    """

    def __init__(self, jobs: Sequence[Job], routes: Routes, opened: Iterable[tuple[str, str]] = ()) -> None:
        self.jobs, self.routes, self.ready = {job.name: job for job in jobs}, routes, {*opened}
        self.machine = {lane.name: lane.device for job in jobs for lane in job.lanes.values()}
        self.at, self.done = dict.fromkeys(routes, 0), list[int]()
        self.queues: dict[str, list[int]] = {job.name: [] for job in jobs}
        self.flights: list[tuple[float, str, Span, list[int]]] = []

    def waiting(self, step: str) -> int:
        return len(self.queues[step])

    def coming(self, step: str) -> bool:
        away = [r for r in self.routes if r not in self.queues[step]]
        return any(step in self.routes[r][self.at[r] + 1 :] for r in away)

    def flying(self, step: str) -> int:
        return sum(span.step == step for _, _, span, _ in self.flights)

    def busy(self, lane: str) -> int:
        return sum(name == lane for _, name, _, _ in self.flights)

    def idle(self, lane: str) -> bool:
        own = any(self.queues[name] for name, job in self.jobs.items() if lane in job.planned)
        return not own and not self.busy(lane)

    def opened(self, step: str, lane: str) -> bool:
        return (step, lane) in self.ready

    def run(self, policy: object = None) -> Timeline:
        now, spans = 0.0, list[Span]()
        self._queue(self.routes)
        while True:
            for lane in self.machine:
                self._start(lane, policy, now)
            if not self.flights:
                assert not any(self.queues.values()), "rows wait that nobody takes"
                return Timeline(now, tuple(spans))
            now = self.flights[0][0]
            while self.flights and self.flights[0][0] == now:
                _, _, span, rows = heapq.heappop(self.flights)
                spans.append(span)
                self.at.update({r: self.at[r] + 1 for r in rows})
                self._queue(rows)

    def _queue(self, rows: Iterable[int]) -> None:
        for row in rows:
            left = self.routes[row][self.at[row] :]
            (self.queues[left[0]] if left else self.done).append(row)

    def _start(self, lane: str, policy: object, now: float) -> None:
        used = {core for _, name, _, _ in self.flights for core in self.machine[name].cores}
        for job in sorted(self.jobs.values(), key=lambda j: lane not in j.planned):
            lanes = policy.lanes(job.name, self) if isinstance(policy, Lanes) else job.planned
            free = not self.busy(lane) and not used & {*self.machine[lane].cores}
            if self.queues[job.name] and lane in lanes and free:
                most = job.batch
                size = policy.size(job.name, lane, most, self) if isinstance(policy, Sizes) else most
                assert 1 <= size <= most
                rows, self.queues[job.name] = self.queues[job.name][:size], self.queues[job.name][size:]
                self.ready.add((job.name, lane))
                end = now + job.lanes[lane].seconds(len(rows))
                heapq.heappush(self.flights, (end, lane, Span(job.name, lane, now, end, len(rows)), rows))
