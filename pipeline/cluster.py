"""Where Dask meets the machine: workers that are lanes, and what each of them keeps.

Without a client of the user's own, the lanes are threads of this process, and values go by reference.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, Nanny, SpecCluster, Worker, WorkerPlugin, get_worker, secede
from distributed import Scheduler as DaskScheduler

from pipeline.errors import PlanError
from pipeline.machine import Device, Machine
from pipeline.plan import Plan
from pipeline.serialisers import register
from pipeline.values import Rows
from pipeline.worker import Made, Order, States

STATES = "ridgeway-states"
LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What says how many threads native libraries take, when they are loaded."""
LOOK = 2.0
"""Seconds between two looks at the workers of a cluster that is not ours."""
GRACE = 20.0
"""Seconds for which a worker may be away: one that a supervisor starts anew comes back in less."""


class StatesPlugin(WorkerPlugin):  # type: ignore[misc]
    """Gives each worker its states; they live as long as it does."""

    name = STATES
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Called by Dask when the worker starts."""
        register()
        self.states = States()


def work(order: Order, *values: Made | Rows) -> Made:
    """A task: carry out an order with the states of the worker that it runs on."""
    states: States = get_worker().plugins[STATES].states
    return states.run(order, values, secede)  # what tells the client of a task must not wait for the next


def given(rows: Rows) -> Rows:
    """A source as a task, so that Dask can make it, and all that came of it, again when a worker dies."""
    return rows


@contextmanager
def local_client(machine: Machine, apart: bool = False) -> Iterator[Client]:
    """A client whose workers are one for each device of `machine`, named after it.

    They are threads of this process, or, `apart`, processes of their own, which a supervisor starts anew
    when they die.
    """
    with ExitStack() as stack:
        with dask.config.set(_settings(machine)), _environment_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster = stack.enter_context(_cluster(machine, apart))
            client = stack.enter_context(Client(cluster, set_as_default=False))
            client.wait_for_workers(len(machine.devices))
        yield client


def _cluster(machine: Machine, apart: bool) -> SpecCluster:
    http = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    kind = Nanny if apart else Worker
    options: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, **http}
    options |= {"host": "127.0.0.1", "silence_logs": logging.ERROR} if apart else {}
    workers = {d.name: {"cls": kind, "options": {**options, **_own(d, apart)}} for d in machine.devices}
    protocol = {"protocol": "tcp://", "host": "127.0.0.1", "port": 0} if apart else {"protocol": "inproc://"}
    scheduler = {"cls": DaskScheduler, "options": {**protocol, **http}}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.ERROR)


def _own(device: Device, apart: bool) -> dict[str, Any]:
    """The threads of a lane; those of its own process also for libraries that it loads later."""
    found = {"resources": {"threads": device.threads}}
    return {**found, "env": dict.fromkeys(LIBRARIES, device.threads)} if apart else found


def _settings(machine: Machine) -> dict[str, Any]:
    """For the cluster, not for this process: lanes keep their tasks and values, and have their threads.

    Dask would set one thread before a worker process starts, and watches memory that values share.
    """
    threads = max(d.threads for d in machine.devices)
    return {
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.worker.daemon": False,
        **{f"distributed.nanny.pre-spawn-environ.{name}": threads for name in LIBRARIES},
    }


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Dask leaves the threads of its workers in this process's environment, for the next cluster to find."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


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


class Pulse:
    """Sees lanes go: a worker that is not there for `GRACE` seconds, and none of its name in its place.

    `addresses`: of each lane, kept up to date where a worker was started anew.
    """

    def __init__(
        self, client: Client, addresses: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.addresses = dict(addresses)
        self._client = client
        self._clock = clock
        self._names = {lane: self._workers().get(address) for lane, address in addresses.items()}
        self._missing: dict[str, float] = {}
        self._next = clock() + LOOK

    def gone(self) -> list[str]:
        """Lanes that are gone since the last call; looked for every `LOOK` seconds."""
        if self._clock() < self._next:
            return []
        self._next = self._clock() + LOOK
        here = self._workers()
        for lane in [lane for lane, address in self.addresses.items() if address in here]:
            self._missing.pop(lane, None)
        lost = [lane for lane, address in self.addresses.items() if address not in here]
        return [lane for lane in lost if not self._is_back(lane, here) and self._is_over(lane)]

    def _is_back(self, lane: str, here: Mapping[str, object]) -> bool:
        """Whether another worker has the lane's name; it takes the lane's place."""
        again = [address for address, name in here.items() if name == self._names[lane]]
        if again:
            self.addresses[lane] = again[0]
            self._missing.pop(lane, None)
        return bool(again)

    def _is_over(self, lane: str) -> bool:
        if self._clock() - self._missing.setdefault(lane, self._clock()) < GRACE:
            return False
        del self.addresses[lane], self._missing[lane]
        return True

    def _workers(self) -> dict[str, object]:
        workers = self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"]
        return {address: w["name"] for address, w in workers.items()}


def check_lanes(plan: Plan, addresses: Mapping[str, str]) -> None:
    """Raise PlanError where a plan names a lane that no worker is."""
    missing = sorted({d for p in plan.placements.values() for d in p.devices} - set(addresses))
    if missing:
        raise PlanError(f"the plan uses {missing}, but the workers are {sorted(addresses)}: plan for those")
