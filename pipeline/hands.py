"""The client's side of handing over: which way each value takes, whose memory it lies in, when it goes.

The shared memory of all lanes of this host is made here, a segment for each lane, so that a value outlives
the worker that made it, and all of it goes with this process, however that ends.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.buffers import segment
from pipeline.buffers.device import View, seen, view
from pipeline.buffers.handles import Place
from pipeline.buffers.identity import own
from pipeline.buffers.leases import DATA
from pipeline.buffers.sweep import claim, named, remove
from pipeline.cluster import STATES
from pipeline.compressed import DASK
from pipeline.events import Key, Submit
from pipeline.handover import ARENA, CLIENT, CUDA_IPC, Home, carriers, differences, gpu_of, lossy, settled
from pipeline.machine import Device
from pipeline.plan import Plan
from pipeline.program import Program
from pipeline.serialisers import register
from pipeline.shelf import Carry, Shelf, Token
from pipeline.values import Rows
from pipeline.worker import Made, rows_of

if TYPE_CHECKING:
    from distributed import Client

SPARE = 2
"""Segments are so many times the window: batches under way come on top of what waits."""
FOLLOWERS = 4
"""Segments of a lane: one for its worker and one for each that follows it where it dies, as often as Dask
tries a task. After that its values travel as bytes."""


class Hands:
    """Handing over in one run. Segments cost address space; memory only where values lie.

    `ours`: the lanes are made by this run, as the plan says; those of a user's cluster are asked where they
    live. `plan`: with the ways that are really taken; one that differs from what was planned is logged.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        client: Client,
        addresses: Mapping[str, str],
        ours: bool = False,
    ) -> None:
        register()
        self._shelf = Shelf()
        self._client = client
        self.plan = _settled(program, plan, None if ours else homes(client, addresses))
        self._seen = dict(addresses)
        self._mourners: set[str] = set()
        self._lossy = lossy(program, self.plan.ways) if plan.lossy else set()
        self._depth = {s.name: i for i, s in enumerate(program.steps)}
        self._threads = {d.name: d.threads for d in plan.machine.devices}
        self._budget = SPARE * plan.window
        makers = {d for s, p in plan.placements.items() if self.plan.ways[s].name == ARENA for d in p.devices}
        self._warm = -(-plan.live // max(len(makers), 1))
        self._run = secrets.token_hex(8)
        self._segments: dict[str, tuple[Place, ...]] = {}
        self._descriptors: list[int] = []
        self._spill = named()
        self._folders: list[Path] = []
        self._made: dict[Key, tuple[str, Token]] = {}
        self._freed: dict[str, list[Token]] = defaultdict(list)

    def order(self, task: Submit) -> tuple[Carry, tuple[Token, ...]]:
        """How the value of a task is handed over, and which values of its lane may go."""
        way = self.plan.ways[task.step]
        bury = task.device in self._mourners
        self._mourners.discard(task.device)
        freed = tuple(self._freed.pop(task.device, ()))
        due = len(self._depth) - self._depth[task.step]
        if way.name != ARENA:
            link = DASK if task.step in self._lossy and not way.device else 0.0
            return Carry(way.name, self._run, due=due, link=link, device=way.device, bury=bury), freed
        segments, threads = self._segments_of(task.device), self._threads[task.device]
        kept = (self._run, segments, self._budget, self._spill, due, threads)
        return Carry(way.name, *kept, device=way.device, warm=self._warm, bury=bury), freed

    def made(self, task: Submit, token: Token | None) -> None:
        """A value has been made, and is called so where it lies."""
        if token is not None:
            self._made[task.task] = (task.device, token)

    def free(self, key: Key) -> None:
        """A value is needed no more; its lane is told with its next order."""
        if key in self._made:
            lane, token = self._made.pop(key)
            self._freed[lane].append(token)

    def take(self, value: Made | Rows) -> Rows:
        """The rows of a value that has come to the client."""
        return rows_of(value, self._shelf)

    def bury(self, addresses: Mapping[str, str]) -> None:
        """Where a worker is gone, or another is in its place, nothing is kept for what the dead one read.

        `addresses`: of the lanes that there are. Each is told with its next order: to ask workers now would
        wait for those that are dying.
        """
        if self._seen != addresses:
            self._seen = dict(addresses)
            self._shelf.bury()
            self._mourners = set(self._threads)

    def close(self) -> None:
        """Give all memory back, here and in the workers."""
        self._shelf.close()
        places = {place for segments in self._segments.values() for place in segments}
        if places or any(way.name == CUDA_IPC for way in self.plan.ways.values()):
            self._client.run(give_back, self._run, places, on_error="ignore")  # who just died has nothing
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self._segments.clear()
        for folder in (*self._folders, self._spill):
            remove(folder)

    def _segments_of(self, lane: str) -> tuple[Place, ...]:
        if lane not in self._segments:
            self._segments[lane] = tuple(self._made_anew())
        return self._segments[lane]

    def _made_anew(self) -> Iterator[Place]:
        """Segments of a lane; where they are files, which take their room at once, a single one, or none."""
        for _ in range(FOLLOWERS):
            try:
                descriptor, place = segment.create(DATA + self._budget, self._folder)
            except OSError as error:
                logging.getLogger("ridgeway").warning("no room for shared memory: %s", error)
                return
            self._descriptors.append(descriptor)
            yield place
            if place.kind != "memory":
                return

    def _folder(self) -> Path:
        self._folders.append(claim(None))
        return self._folders[-1]


def give_back(run: str, places: set[Place], dask_worker: Any) -> None:
    """On a worker: forget the values of the run that ends."""
    dask_worker.plugins[STATES].states.shelf.close(run, places)


def _settled(program: Program, plan: Plan, found: Mapping[str, Home] | None) -> Plan:
    """The plan with the ways that are taken. `found`: where lanes live that are not ours."""
    if found is None:
        real = settled(program, plan, plan.apart, seen(plan.machine.names))
    else:
        real = replace(plan, ways=carriers(program, plan, found))
    for told in differences(plan.ways, real.ways):
        logging.getLogger("ridgeway").warning("%s", told)
    return real


def homes(client: Client, addresses: Mapping[str, str]) -> dict[str, Home]:
    """Where each lane lives, and the client."""
    told: dict[str, str] = client.run(own, workers=list(addresses.values()))
    found = {lane: _home(told[address]) for lane, address in addresses.items()}
    cuda = {lane: address for lane, address in addresses.items() if Device(lane).kind == "cuda"}
    views: dict[str, View] = client.run(view, workers=list(cuda.values())) if cuda else {}
    for lane, address in cuda.items():
        gpu = gpu_of(Device(lane), views[address])
        found[lane] = replace(found[lane], gpu=gpu, view=views[address])
    return {**found, CLIENT: _home(own())}


def _home(identity: str) -> Home:
    """Host and process of an identity: who shares boot and process namespace may share memory."""
    boot, namespace, process = identity.split(":", 2)
    return Home(f"{boot}:{namespace}", process)
