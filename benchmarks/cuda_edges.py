"""An edge of a real pipeline for each way that a value can take off a CUDA device: run, checked and timed.

One step makes tensors on `cuda:0` and leaves them there, another reads them: on that GPU, another one, the
host, in this process or its own. Seconds are those that handing on and taking took, as the run counts them:
with an event alone, work on the device may go on after it. Medians. Never run on a GPU so far.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from benchmarks.cuda_moves import VALUE, Absent, Measured
from pipeline.executor import run
from pipeline.graph import Graph, node
from pipeline.machine import Device, Link, Machine
from pipeline.plan import place
from pipeline.program import flatten
from pipeline.rows import Rows
from pipeline.values import Queries

ROWS = 8
"""Values that are handed over; the first of them, which opens stages and maps memory, is not timed."""


@dataclass(frozen=True, slots=True)
class Caches(Rows):
    """`cache` float32 [B, N], where it was made."""

    cache: Any


@dataclass(frozen=True, slots=True)
class Seen(Rows):
    """What a reader found: whether all numbers are right, and the device they are on."""

    right: tuple[bool, ...]
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Make:
    """A tensor of `size` numbers for each row, on its lane."""

    size: int
    batch: ClassVar[int] = 1
    leaves: ClassVar[str] = "device"

    def open(self, device: Device) -> str:
        """Its name for torch."""
        return device.torch

    def run(self, state: str, queries: Queries) -> Caches:
        """The tensors."""
        import torch

        return Caches(queries.ids, torch.full((len(queries), self.size), VALUE, device=state))


@dataclass(frozen=True, slots=True)
class Read:
    """Looks at each number."""

    batch: ClassVar[int] = 1

    def run(self, state: None, caches: Caches) -> Seen:
        """What it found."""
        right = bool((caches.cache == VALUE).all())
        return Seen(caches.ids, (right,) * len(caches), (str(caches.cache.device),) * len(caches))


CPU, FIRST, SECOND = Device("cpu:0"), Device("cuda:0"), Device("cuda:1")
BESIDE = Device("cuda:1", share="cuda:0")
"""Another lane of the first GPU."""


def edge(way: str, maker: Device, reader: Device, apart: bool = False) -> Callable[[int], Measured]:
    """A run whose edge goes by `way`. Raises ValueError where it went by another, or wrong."""

    def measure(nbytes: int) -> Measured:
        if reader is SECOND:
            _second_device()
        lanes = tuple(dict.fromkeys((CPU, maker, reader)))
        links = {("cuda:0", "cuda:1"): Link(1e11, 0.0)} if reader is SECOND else {}
        return nbytes, _run(way, Machine(lanes, links), maker, reader, apart, nbytes)

    return measure


def _run(way: str, machine: Machine, maker: Device, reader: Device, apart: bool, nbytes: int) -> float:
    nodes = (
        node("make", Make(nbytes // 4), queries="q", device=maker.name),
        node("read", Read(), caches="make", device=reader.name),
    )
    graph = Graph({"q": Queries}, nodes, {"out": "read"})
    asked = Queries(tuple((f"q{i}",) for i in range(ROWS)), ("?",) * ROWS, ("",) * ROWS)
    plan = place(flatten(graph), machine, window=4 * nbytes)
    under_way = run(graph, {"q": asked}, plan=replace(plan, apart=apart))
    results: list[Any] = list(under_way)
    assert under_way.plan is not None
    if (taken := under_way.plan.ways["make"]).name != way:
        raise ValueError(f"planned by {taken.name}: {taken.why}")
    if under_way.failures or not all(r.rows.right == (True,) for r in results):
        raise ValueError(f"other values came out: {under_way.failures[:1]}")
    if {r.rows.where for r in results} != {(reader.torch,)}:
        raise ValueError(f"values are on {results[0].rows.where}, not on {reader.torch}")
    given = [s.handing for s in under_way.spans if s.step == "make"][1:]
    got = [s.preparing for s in under_way.spans if s.step == "read"][1:]
    return statistics.median(given) + statistics.median(got)


def _second_device() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        raise Absent("one device")


EDGES: dict[str, Callable[[int], Measured]] = {
    "edge by cuda": edge("cuda", FIRST, FIRST),
    "edge by peer": edge("peer", FIRST, SECOND),
    "edge by staged": edge("staged", FIRST, CPU),
    "edge by cuda-ipc": edge("cuda-ipc", FIRST, BESIDE, apart=True),
    "edge by arena, off the device": edge("arena", FIRST, CPU, apart=True),
}
