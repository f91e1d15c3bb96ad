"""`run`: the Scheduler driven by Dask.

A loop that turns instructions into Dask calls and Dask results into events, and decides nothing. Each
`Submit` is one Dask task on the worker named after its device, its inputs are the futures of the tasks
before it, and its value stays there; a second, tiny task behind it tells the client what came of it.
Without a client of the user's own, the lanes are threads of this process, and values go by reference.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, SpecCluster, Worker, WorkerPlugin, get_worker, secede
from distributed import Scheduler as DaskScheduler
from distributed.client import as_completed
from distributed.scheduler import KilledWorker

from pipeline.apply import Fault
from pipeline.errors import Failure, PlanError
from pipeline.events import Done, Emit, Event, Fail, Failed, Free, Key, Start, Submit, describe
from pipeline.graph import Graph
from pipeline.local import Result, check_inputs
from pipeline.machine import Device, Machine, detect
from pipeline.plan import Plan, place
from pipeline.program import Program, flatten
from pipeline.scheduler import Scheduler
from pipeline.timeline import Span, Tally
from pipeline.values import Rows
from pipeline.worker import Made, Order, Report, States, report, rows_of

STATES = "ridgeway-states"
_runs = itertools.count()


class _StatesPlugin(WorkerPlugin):  # type: ignore[misc]
    """Gives each worker its states; they live as long as it does."""

    name = STATES
    idempotent = True

    def setup(self, worker: Worker) -> None:
        self.states = States()


def _work(order: Order, *values: Made | Rows) -> Made:
    states: States = get_worker().plugins[STATES].states
    return states.run(order, values, secede)  # what tells the client of a task must not wait for the next


def _given(rows: Rows) -> Rows:
    """A source as a task, so that Dask can make it, and all that came of it, again when a worker dies."""
    return rows


@contextmanager
def local_client(machine: Machine) -> Iterator[Client]:
    """A client whose workers are threads of this process, one named after each device of `machine`."""
    http = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options = {"nthreads": 1, "memory_limit": 0, **http}
    workers = {
        d.name: {"cls": Worker, "options": {**options, "resources": {"threads": d.threads}}}
        for d in machine.devices
    }
    settings = {"distributed.scheduler.work-stealing": False}
    with ExitStack() as stack:
        with dask.config.set(settings), warnings.catch_warnings():  # not for the run: they are the process's
            warnings.simplefilter("ignore")
            cluster = SpecCluster(
                workers=workers,
                scheduler={"cls": DaskScheduler, "options": {"protocol": "inproc://", **http}},
                silence_logs=logging.ERROR,
            )
            stack.enter_context(cluster)
            client = stack.enter_context(Client(cluster, set_as_default=False))
        yield client


def lanes(client: Client) -> tuple[Machine, dict[str, str]]:
    """The machine that a client's workers are, and the address of each lane. Raises PlanError if none.

    A lane is called as its worker if that looks like a device ("cuda:0"), else by its address. It may use
    as many cores as the worker has of the Dask resource `threads`, else as it has threads.
    """
    workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    if not workers:
        raise PlanError("the Dask cluster has no workers: start one, or leave the client out")
    names = {a: str(w["name"]) if ":" in str(w["name"]) else a for a, w in workers.items()}
    threads = {a: int(w["resources"].get("threads", w["nthreads"])) for a, w in workers.items()}
    machine = Machine(tuple(Device(names[a], threads[a]) for a in workers))
    return machine, {name: address for address, name in names.items()}


class Run:
    """A run under way: iterate (or `async for`) to get results as they leave, or await them all.

    `failures`, `spans` and `tallies` (rows made, by step) grow while it runs.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Rows],
        client: Client | None,
        ordered: bool,
        listen: Callable[[Run], None],
    ) -> None:
        check_inputs(graph, inputs)
        self.failures: list[Failure] = []
        self.spans: list[Span] = []
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.plan: Plan | None = None
        self._graph = graph
        self._program = flatten(graph)
        self._inputs = inputs
        self._client = client
        self._ordered = ordered
        self._listen = listen

    def __iter__(self) -> Generator[Result]:
        with ExitStack() as stack:
            client = self._client or stack.enter_context(local_client(detect()))
            machine, addresses = lanes(client)
            self.plan = place(self._program, machine)
            client.register_plugin(_StatesPlugin())
            yield from _Obey(self, self.plan, client, addresses).results()

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
) -> Run:
    """Run `graph` over `inputs` on Dask; nothing happens until the result is iterated or awaited.

    Results leave in the order of the inputs, each once; with `ordered=False` as they finish. `client`
    is a Dask client of the user's own; its workers are the lanes. `listen` is called with the run after
    each batch. Raises GraphError, PlanError, ModelError.
    """
    return Run(graph, inputs, client, ordered, listen)


class _Obey:
    """Carries out instructions; holds the futures of live values."""

    def __init__(self, run_: Run, plan: Plan, client: Client, addresses: Mapping[str, str]) -> None:
        self._run = run_
        self._plan = plan
        self._client = client
        self._addresses = addresses
        self._program: Program = run_._program
        self._stages = {s.name: s.stage for s in self._program.steps}
        self._scheduler = Scheduler(self._program, plan, run_._ordered)
        self._futures: dict[Key, Any] = {}
        self._values: dict[Key, Rows] = {}
        self._told: dict[Any, tuple[Submit, Any]] = {}
        self._completed = as_completed([], loop=client.loop, with_results=True, raise_errors=False)
        self._started = time.monotonic()
        self._name = next(_runs)

    def results(self) -> Iterator[Result]:
        try:
            sources = self._run._inputs
            for name, rows in sources.items():
                self._futures[name] = self._client.submit(_given, rows, pure=False)
            yield from self._tell(Start(tuple((name, describe(rows)) for name, rows in sources.items())))
            for future, result in self._completed:
                yield from self._tell(self._event(self._told.pop(future.key)[0], result))
                self._run._listen(self._run)
            assert self._scheduler.finished, "nothing runs and inputs are left"
        finally:
            for future in [*self._futures.values(), *(told for _, told in self._told.values())]:
                future.release()  # not cancel(): Dask's scheduler breaks over dependents that nobody wants

    def _event(self, task: Submit, result: Report | BaseException | tuple[Any, ...]) -> Event:
        """What became of a task."""
        if not isinstance(result, Report):
            error = result[1] if isinstance(result, tuple) else result
            category = "worker died" if isinstance(error, KilledWorker) else "bug"
            return Failed(task.task, Fault(category, f"{type(error).__name__}: {error}"))
        if result.fatal is not None:
            raise result.fatal
        span = (result.start - self._started, result.end - self._started)
        self._run.spans.append(Span(task.step, task.device, *span, len(task.owed)))
        if result.meta is not None:
            self._run.tallies[task.step].add(result.meta.ids)
            return Done(task.task, result.meta)
        assert result.fault is not None
        return Failed(task.task, result.fault)

    def _tell(self, event: Event) -> Iterator[Result]:
        for said in self._scheduler.handle(event):
            if isinstance(said, Submit):
                self._submit(said)
            elif isinstance(said, Free):
                self._futures.pop(said.key)
                self._values.pop(said.key, None)
            elif isinstance(said, Fail):
                self._run.failures.append(said.failure)
            else:
                yield self._emit(said)

    def _submit(self, task: Submit) -> None:
        keys = list(dict.fromkeys(p.key for _, parts in task.ports for p in parts))
        at = {key: i for i, key in enumerate(keys)}
        ports = tuple((port, tuple((at[p.key], p.rows) for p in parts)) for port, parts in task.ports)
        order = Order(self._stages[task.step], self._plan.machine.device(task.device), ports, task.owed)
        name = f"{task.step}-{self._name}-{task.task}"
        values = [self._futures[key] for key in keys]
        # in the order of the Scheduler; elsewhere only when the lane's worker is gone
        how = {"workers": [self._addresses[task.device]], "allow_other_workers": True, "pure": False}
        how["priority"] = -task.task
        made = self._client.submit(_work, order, *values, key=name, **how)
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
            self._values[key] = rows_of(self._client.gather(self._futures[key]))
        return self._values[key]
