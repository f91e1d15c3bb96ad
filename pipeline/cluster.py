"""Where Dask meets the machine: workers that are lanes, and what each of them keeps.

Without a client of the user's own, the lanes are threads of this process, and values go by reference.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import dask
from distributed import Client, SpecCluster, Worker, WorkerPlugin, get_worker, secede
from distributed import Scheduler as DaskScheduler

from pipeline.errors import PlanError
from pipeline.machine import Device, Machine
from pipeline.plan import Plan
from pipeline.values import Rows
from pipeline.worker import Made, Order, States

STATES = "ridgeway-states"


class StatesPlugin(WorkerPlugin):  # type: ignore[misc]
    """Gives each worker its states; they live as long as it does."""

    name = STATES
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Called by Dask when the worker starts."""
        self.states = States()


def work(order: Order, *values: Made | Rows) -> Made:
    """A task: carry out an order with the states of the worker that it runs on."""
    states: States = get_worker().plugins[STATES].states
    return states.run(order, values, secede)  # what tells the client of a task must not wait for the next


def given(rows: Rows) -> Rows:
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


def check_lanes(plan: Plan, addresses: Mapping[str, str]) -> None:
    """Raise PlanError where a plan names a lane that no worker is."""
    missing = sorted({d for p in plan.placements.values() for d in p.devices} - set(addresses))
    if missing:
        raise PlanError(f"the plan uses {missing}, but the workers are {sorted(addresses)}: plan for those")
