"""The client's side of handing over: which way each value takes, whose memory it lies in, when it goes.

The shared memory of all lanes of this host is made here, a segment for each lane, so that a value outlives
the worker that made it, and all of it goes with this process, however that ends.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.buffers import segment
from pipeline.buffers.handles import Place
from pipeline.buffers.identity import own
from pipeline.buffers.leases import DATA
from pipeline.buffers.sweep import claim, remove
from pipeline.cluster import STATES
from pipeline.events import Key, Submit
from pipeline.handover import ARENA, CLIENT, Home, carriers
from pipeline.plan import Plan
from pipeline.program import Program
from pipeline.shelf import Carry, Shelf
from pipeline.values import Rows
from pipeline.worker import Made, rows_of

if TYPE_CHECKING:
    from distributed import Client

SPARE = 2
"""Segments are so many times the window: batches under way come on top of what waits."""


class Hands:
    """Handing over in one run. Segments cost address space; memory only where values lie."""

    def __init__(self, program: Program, plan: Plan, client: Client, addresses: Mapping[str, str]) -> None:
        self._shelf = Shelf()
        self._client = client
        self._ways = carriers(program, plan, homes(client, addresses))
        self._depth = {s.name: i for i, s in enumerate(program.steps)}
        self._budget = SPARE * plan.window
        self._segments: dict[str, Place] = {}
        self._folders: list[Path] = []
        self._made: dict[Key, tuple[str, str]] = {}
        self._freed: dict[str, list[str]] = defaultdict(list)

    def order(self, task: Submit, name: str) -> tuple[Carry, tuple[str, ...]]:
        """How the value of a task is handed over, and which values of its lane may go."""
        way = self._ways[task.step]
        freed = tuple(self._freed.pop(task.device, ()))
        if way != ARENA:
            return Carry(way), freed
        self._made[task.task] = (task.device, name)
        due = len(self._depth) - self._depth[task.step]
        return Carry(way, name, self._segment(task.device), self._budget, due), freed

    def free(self, key: Key) -> None:
        """A value is needed no more; its lane is told with its next order."""
        if key in self._made:
            lane, name = self._made.pop(key)
            self._freed[lane].append(name)

    def take(self, value: Made | Rows) -> Rows:
        """The rows of a value that has come to the client."""
        return rows_of(value, self._shelf)

    def close(self) -> None:
        """Give all memory back, here and in the workers."""
        self._shelf.close()
        if self._segments:
            self._client.run(give_back)
        for place in self._segments.values():
            if place.kind == "memory":
                os.close(int(place.path.rpartition("/")[2]))
        self._segments.clear()
        for folder in self._folders:
            remove(folder)

    def _segment(self, lane: str) -> Place:
        if lane not in self._segments:
            _, self._segments[lane] = segment.create(DATA + self._budget, self._folder)
        return self._segments[lane]

    def _folder(self) -> Path:
        if not self._folders:
            self._folders.append(claim(None))
        return self._folders[-1]


def give_back(dask_worker: Any) -> None:
    """On a worker: forget the values of the run that ends."""
    dask_worker.plugins[STATES].states.shelf.close()


def homes(client: Client, addresses: Mapping[str, str]) -> dict[str, Home]:
    """Where each lane lives, and the client."""
    told: dict[str, str] = client.run(own, workers=list(addresses.values()))
    found = {lane: _home(told[address]) for lane, address in addresses.items()}
    return {**found, CLIENT: _home(own())}


def _home(identity: str) -> Home:
    """Host and process of an identity: who shares boot and process namespace may share memory."""
    boot, namespace, process = identity.split(":", 2)
    return Home(f"{boot}:{namespace}", process)
