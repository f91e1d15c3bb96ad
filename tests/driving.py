"""A driver for the Scheduler without Dask: tasks run here, one at a time, in an order drawn by the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pipeline.apply import Fault, apply, assemble, fault
from pipeline.board import QUEUED
from pipeline.events import (
    Done,
    Emit,
    Event,
    Fail,
    Failed,
    Free,
    Instruction,
    Key,
    Lost,
    Meta,
    Start,
    Submit,
    describe,
)
from pipeline.graph import Graph
from pipeline.local import Outcome, Result
from pipeline.machine import Device, Machine
from pipeline.merging import alone
from pipeline.plan import Plan, place
from pipeline.program import flatten
from pipeline.scheduler import Scheduler
from pipeline.stage import open_stage, ports
from pipeline.values import Rows

LANES = Machine((Device("cpu:0"), Device("cpu:1")))
NOTHING: Mapping[int, str] = MappingProxyType({})


class Driver:
    """Obeys a Scheduler, and checks what any executor relies on: values exist when read, and are freed.

    `log`: events and instructions in order; `sizes`: step and rows of each task.
    """

    def __init__(
        self,
        graph: Graph,
        window: int = 1 << 30,
        ordered: bool = True,
        machine: Machine = LANES,
        plan: Plan | None = None,
    ) -> None:
        self.program = flatten(graph)
        self.steps = {s.name: s for s in self.program.steps}
        self.plan = plan or place(self.program, machine, window)
        self.able = {job.name: {*job.lanes, *job.planned} for job in self.plan.jobs}
        self.scheduler = Scheduler(self.program, self.plan, ordered)
        self.values: dict[Key, Rows] = {}
        self.waiting: list[Submit] = []
        self.lost: set[str] = set()
        self.sizes: list[tuple[str, int]] = []
        self.log: list[Event | Instruction] = []
        self.outcome = Outcome((), ())
        self.graph = graph

    def run(
        self,
        inputs: Mapping[str, Rows],
        choose: Callable[[Sequence[Submit]], int] = lambda _: 0,
        lose: Mapping[int, str] = NOTHING,
    ) -> Outcome:
        """Run to the end; `choose` picks which waiting task finishes next.

        `lose`: lanes that go away, by how many tasks have finished then.
        """
        self.values.update(inputs)
        self.tell(Start(tuple((name, describe(rows)) for name, rows in inputs.items())))
        finished = 0
        while self.waiting:
            if finished in lose and lose[finished] not in self.lost:
                self.lose(lose[finished])
                continue
            self.tell(self.work(self.waiting.pop(choose(self.waiting))))
            finished += 1
        assert self.scheduler.finished, "nothing runs and inputs are left"
        assert not self.values, f"never freed: {sorted(map(str, self.values))}"
        assert self.scheduler.live_bytes == 0
        return self.outcome

    def lose(self, lane: str) -> None:
        """The lane goes away, with the tasks that it had."""
        self.lost.add(lane)
        self.waiting = [t for t in self.waiting if t.device != lane]
        self.tell(Lost(lane))

    def tell(self, event: Event) -> None:
        self.log.append(event)
        for said in self.scheduler.handle(event):
            self.log.append(said)
            if isinstance(said, Submit):
                self.sizes.append((said.step, len(said.owed)))
                self.waiting.append(said)
                self.check(said)
            elif isinstance(said, Free):
                del self.values[said.key]
            elif isinstance(said, Fail):
                self.outcome = Outcome(self.outcome.results, (*self.outcome.failures, said.failure))
            else:
                self.emit(said)

    def check(self, task: Submit) -> None:
        for part in alone(task):
            placement = self.plan.placements[part.step]
            assert task.device in self.able[part.step] - self.lost
            assert 0 < len(part.owed) == len(set(part.owed)) <= len(task.owed) <= placement.batch
        assert sum(w.device == task.device for w in self.waiting) <= QUEUED

    def work(self, task: Submit) -> Event:
        stage = self.steps[task.step].stage
        try:
            state = open_stage(stage, Device(task.device))
            parts = {port: [self.values[p.key].take(p.rows) for p in found] for port, found in task.ports}
            kinds = ports(type(stage))
            made = apply(stage, kinds, state, assemble(stage, kinds, parts), task.owed)
        except Exception as error:
            return Failed(task.task, self.fault(error))
        self.values[task.task] = made
        return Done(task.task, describe(made))

    def fault(self, error: Exception) -> Fault:
        return fault(error)

    def emit(self, said: Emit) -> None:
        kind = self.graph.type_of(self.graph.outputs[said.output])
        rows = kind.concat([self.values[p.key].take(p.rows) for p in said.parts])
        result = Result(said.output, said.root, rows, said.failures)
        self.outcome = Outcome((*self.outcome.results, result), self.outcome.failures)


def meta(*ids: str) -> Meta:
    """The description of a value of one byte a row."""
    return Meta(tuple((i,) for i in ids), len(ids))


def essence(outcome: Outcome) -> tuple[object, ...]:
    """What two ways to run a graph must agree on."""
    assert len({(r.output, r.id) for r in outcome.results}) == len(outcome.results), "an input left twice"
    results = {(r.output, r.id): (r.rows, bool(r.failures)) for r in outcome.results}
    return results, Counter((f.id, f.stage, f.category) for f in outcome.failures)
