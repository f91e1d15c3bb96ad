"""`run`: the Scheduler driven by Dask.

A loop that turns instructions into Dask calls and Dask results into events, and decides nothing. Each
`Submit` is one Dask task on the worker named after its device, its inputs are the futures of the tasks
before it, and its value stays there; a second, tiny task behind it tells the client what came of it.
Without a client of the user's own, the lanes are threads of this process, and values go by reference.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from distributed import Client
from distributed.client import as_completed
from distributed.scheduler import KilledWorker

from pipeline.apply import Fault
from pipeline.cluster import Pulse, StatesPlugin, check_lanes, given, lanes, local_client, work
from pipeline.errors import Failure
from pipeline.events import Done, Emit, Event, Fail, Failed, Free, Key, Lost, Meta, Start, Submit, describe
from pipeline.graph import Graph
from pipeline.hands import Hands
from pipeline.local import Result, check_inputs
from pipeline.machine import Device, detect
from pipeline.merging import moved, shares, spans
from pipeline.plan import Plan, place
from pipeline.program import Program, flatten
from pipeline.scheduler import Scheduler
from pipeline.timeline import Counts, Span, Tally, Timeline
from pipeline.values import Rows
from pipeline.watch import Watch
from pipeline.worker import Order, Report, report

_runs = itertools.count()


class Run:
    """A run under way: iterate (or `async for`) to get results as they leave, or await them all.

    `failures`, `spans`, and by step `tallies` (rows made), `lengths` (their cost hints, in sum) and `handed`
    (bytes handed over) grow while it runs; `timeline` is there after it.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Rows],
        client: Client | None,
        ordered: bool,
        listen: Callable[[Run], None],
        plan: Plan | None,
    ) -> None:
        check_inputs(graph, inputs)
        self.failures: list[Failure] = []
        self.spans: list[Span] = []
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.lengths: dict[str, float] = defaultdict(float)
        self.handed: dict[str, Counts] = defaultdict(Counts)
        self.timeline: Timeline | None = None
        self.plan = plan
        self._graph = graph
        self.program = flatten(graph)
        self._inputs = inputs
        self._client = client
        self._ordered = ordered
        self._listen = listen

    def __iter__(self) -> Generator[Result]:
        with ExitStack() as stack:
            wanted, apart = (self.plan.machine, self.plan.apart) if self.plan else (detect(), False)
            client = self._client or stack.enter_context(local_client(wanted, apart))
            machine, addresses = lanes(client)
            self.plan = self.plan or place(self.program, machine)
            check_lanes(self.plan, addresses)
            client.register_plugin(StatesPlugin())
            pulse = Pulse(client, addresses) if self._client or apart else None
            yield from _Obey(self, self.plan, client, addresses, pulse).results()

    async def __aiter__(self) -> AsyncIterator[Result]:
        results = iter(self)
        while (result := await asyncio.to_thread(next, results, None)) is not None:
            yield result

    def __await__(self) -> Generator[Any, None, list[Result]]:
        return asyncio.to_thread(list, self).__await__()


def run(
    graph: Graph,
    inputs: Mapping[str, Rows],
    client: Client | None = None,
    ordered: bool = True,
    listen: Callable[[Run], None] = lambda _: None,
    plan: Plan | None = None,
) -> Run:
    """Run `graph` over `inputs` on Dask; nothing happens until the result is iterated or awaited.

    Results leave in the order of the inputs, each once; with `ordered=False` as they finish. `client`
    is a Dask client of the user's own; its workers are the lanes. `listen` is called with the run after
    each batch. `plan`: see `pipeline.planning.plan_for`; by default the plain rule of `pipeline.plan`.
    Raises GraphError, PlanError, ModelError.
    """
    return Run(graph, inputs, client, ordered, listen, plan)


class _Obey:
    """Carries out instructions; holds the futures of live values."""

    def __init__(
        self, run_: Run, plan: Plan, client: Client, addresses: Mapping[str, str], pulse: Pulse | None
    ) -> None:
        self._run = run_
        self._pulse = pulse
        self._plan = plan
        self._client = client
        self._addresses = addresses
        self._program: Program = run_.program
        self._stages = {s.name: s.stage for s in self._program.steps}
        self._scheduler = Scheduler(self._program, plan, run_._ordered)
        self._futures: dict[Key, Any] = {}
        self._values: dict[Key, Rows] = {}
        self._told: dict[Any, tuple[Submit, Any]] = {}
        self._completed = as_completed([], loop=client.loop, with_results=True, raise_errors=False)
        self._started = time.monotonic()
        self._watch = Watch(self._scheduler)
        self._hands = Hands(self._program, plan, client, addresses, run_._client is None)
        run_.plan = self._hands.plan
        self._name = next(_runs)

    def results(self) -> Iterator[Result]:
        try:
            sources = self._run._inputs
            for name, rows in sources.items():
                self._futures[name] = self._client.submit(given, rows, pure=False)
            yield from self._tell(Start(tuple((name, describe(rows)) for name, rows in sources.items())))
            for future, result in self._completed:
                if future.key in self._told:  # else its lane was lost, and it was asked for again
                    yield from self._tell(self._event(self._told.pop(future.key)[0], result))
                    self._run._listen(self._run)
                yield from self._lost()
            assert self._scheduler.finished, "nothing runs and inputs are left"
            took = time.monotonic() - self._started
            self._run.timeline = Timeline(took, tuple(self._run.spans), self._watch.stalls(took))
        finally:
            for future in [*self._futures.values(), *(told for _, told in self._told.values())]:
                future.release()  # not cancel(): Dask's scheduler breaks over dependents that nobody wants
            self._hands.close()

    def _lost(self) -> Iterator[Result]:
        """Tell the Scheduler of lanes that are gone; what they had under way comes again from elsewhere."""
        for lane in self._pulse.gone() if self._pulse else ():
            for key in [key for key, (task, _) in self._told.items() if task.device == lane]:
                task, _ = self._told.pop(key)
                self._futures.pop(task.task, None)
            yield from self._tell(Lost(lane))
        self._hands.bury(self._pulse.addresses if self._pulse else self._addresses)

    def _event(self, task: Submit, result: Report | BaseException | tuple[Any, ...]) -> Event:
        """What became of a task."""
        if not isinstance(result, Report):
            error = result[1] if isinstance(result, tuple) else result
            category = "worker died" if isinstance(error, KilledWorker) else "bug"
            return Failed(task.task, Fault(category, f"{type(error).__name__}: {error}"))
        if result.fatal is not None:
            raise result.fatal
        self._run.spans += spans(task, self._span(task, result))
        for step, counts in moved(task, result.times.moved):
            self._run.handed[step].add(counts)
        self._hands.made(task, result.token)
        if result.meta is not None:
            for step, at in shares(task):
                self._run.tallies[step].add(result.meta.ids[at], (result.meta.counted or ())[at])
                self._run.lengths[step] += sum((result.meta.lengths or ())[at])
            return Done(task.task, result.meta)
        assert result.fault is not None
        return Failed(task.task, result.fault)

    def _span(self, task: Submit, result: Report) -> Span:
        t, meta, now = result.times, result.meta or Meta((), 0), time.monotonic()
        theirs = not self._started <= t.start <= t.end <= now  # another machine's clock
        late = now - t.end - t.handing if theirs else 0.0
        at = (t.start + late - self._started, t.end + late - self._started)
        made = (len(meta.ids), float(meta.nbytes))
        beside = (t.opening, t.preparing, t.handing)
        return Span(task.step, task.device, *at, len(task.owed), t.length, *made, *beside)

    def _tell(self, event: Event) -> Iterator[Result]:
        found = self._scheduler.handle(event)
        self._watch.see(time.monotonic() - self._started)
        for said in found:
            if isinstance(said, Submit):
                self._submit(said)
            elif isinstance(said, Free):
                self._futures.pop(said.key)
                self._values.pop(said.key, None)
                self._hands.free(said.key)
            elif isinstance(said, Fail):
                self._run.failures.append(said.failure)
            else:
                yield self._emit(said)

    def _submit(self, task: Submit) -> None:
        keys = list(dict.fromkeys(p.key for _, parts in task.ports for p in parts))
        at = {key: i for i, key in enumerate(keys)}
        ports = tuple((port, tuple((at[p.key], p.rows) for p in parts)) for port, parts in task.ports)
        lane = self._plan.machine.device(task.device)
        where = Device(lane.name, lane.threads, cores=lane.cores, share=lane.share)  # without its profile
        name = f"{task.step}-{self._name}-{task.task}"
        carry, freed = self._hands.order(task)
        order = Order(self._stages[task.step], where, ports, task.owed, carry, freed)
        # in the order of the Scheduler; elsewhere only when the lane's worker is gone
        addresses = self._pulse.addresses if self._pulse else self._addresses
        how = {"workers": [addresses[task.device]], "allow_other_workers": True, "pure": False}
        how["priority"] = -task.task
        made = self._client.submit(work, order, *(self._futures[k] for k in keys), key=name, **how)
        told = self._client.submit(report, made, key=f"report-{name}", **how)
        self._futures[task.task] = made
        self._told[told.key] = (task, told)
        self._completed.add(told)

    def _emit(self, said: Emit) -> Result:
        kind = self._run._graph.type_of(self._run._graph.outputs[said.output])
        rows = kind.concat([self._value(p.key).take(p.rows) for p in said.parts])
        return Result(said.output, said.root, rows, said.failures)

    def _value(self, key: Key) -> Rows:
        if key not in self._values:
            self._values[key] = self._hands.take(self._client.gather(self._futures[key]))
        return self._values[key]
