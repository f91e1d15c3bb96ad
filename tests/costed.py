"""Stages of known cost and the machines for them: a row of `work` 1 takes a second on a device of speed 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from pipeline.estimate import Estimates
from pipeline.graph import Graph, Node, node
from pipeline.invent import given
from pipeline.learned import Learned
from pipeline.machine import Device, Link, Machine, Profile
from pipeline.plan import Placement, Plan
from pipeline.program import Program, flatten
from pipeline.roofline import Cost, Flow, Work
from pipeline.simulate import Simulated, simulate
from pipeline.values import Rows
from tests.toys import Flags, Numbers


@dataclass(frozen=True, slots=True)
class Busy:
    """`work` FLOP a row and `by_length` a unit of its length; gives rows of `nbytes` bytes."""

    work: float = 1.0
    nbytes: float = 0.0
    opening: float = 0.0
    by_length: float = 0.0
    name: str = ""

    accelerated: ClassVar[bool] = True

    def cost(self, work: Work) -> Cost:
        a = work.port("a")
        flops = work.rows * self.work + a.rows * a.length * self.by_length
        return Cost(Flow(work.rows, a.length, self.nbytes), flops, opening=self.opening)

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


@dataclass(frozen=True, slots=True)
class Plain(Busy):
    """The same, but for CPUs only."""

    accelerated: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Many(Busy):
    """`fan` rows of each, in the mean, as a longer row has more."""

    fan: float = 2.0

    expands: ClassVar[bool] = True

    def cost(self, work: Work) -> Cost:
        a = work.port("a")
        flops = work.rows * self.work + a.rows * a.length * self.by_length
        return Cost(Flow(work.rows * self.fan, 1.0, self.nbytes), flops, opening=self.opening)


@dataclass(frozen=True, slots=True)
class One(Busy):
    """One row of all, or of all that share `gathers` id elements; each of these costs `work`."""

    gathers: int = 0

    def cost(self, work: Work) -> Cost:
        a = work.port("a")
        flops = a.rows * (self.work + a.length * self.by_length)
        return Cost(Flow(work.rows, 0.0, self.nbytes), flops, opening=self.opening)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a loop: `work` FLOP a row."""

    work: float = 1.0

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(work.rows), work.rows * self.work)

    def run(self, state: Any, a: Numbers) -> Flags:
        raise NotImplementedError


def profile(speed: float = 1.0, overhead: float = 0.0) -> Profile:
    return Profile({"float32": speed}, 1.0, 1.0, 1e15, overhead=overhead, load=1.0)


def lanes(count: int, speed: float = 1.0, overhead: float = 0.0, kind: str = "cpu") -> tuple[Device, ...]:
    return tuple(Device(f"{kind}:{i}", 1, profile(speed, overhead)) for i in range(count))


def chain(*stages: Any, batch: int | tuple[int, ...] = 1) -> Graph:
    """s0, s1, ... one after another, over the input `rows`; those that gather have no batch."""
    sizes = batch if isinstance(batch, tuple) else (batch,) * len(stages)
    made: list[Node] = []
    for i, (stage, size) in enumerate(zip(stages, sizes, strict=True)):
        before = f"s{i - 1}" if i else "rows"
        made.append(node(f"s{i}", stage, a=before, batch=None if hasattr(stage, "gathers") else size))
    return Graph({"rows": Numbers}, tuple(made), {"out": f"s{len(stages) - 1}"})


@dataclass(frozen=True, slots=True)
class Case:
    """A graph on a machine, `rows` of `length` and `nbytes` coming in; `at`: lanes by step, else all."""

    graph: Graph
    machine: Machine
    rows: float
    length: float = 0.0
    nbytes: float = 0.0
    at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    learned: Learned = field(default_factory=Learned)

    @property
    def program(self) -> Program:
        return flatten(self.graph)

    @property
    def sources(self) -> dict[str, Flow]:
        return {n: Flow(1 if k.whole else self.rows, self.length, self.nbytes) for n, k in self.kinds.items()}

    @property
    def kinds(self) -> Mapping[str, type[Rows]]:
        return self.graph.inputs

    def estimates(self) -> Estimates:
        return Estimates(self.program, self.machine, self.sources, self.learned)

    def plan(self, window: int = 1 << 60) -> Plan:
        steps = self.program.steps
        placed = {s.name: Placement(self.at.get(s.name, self.machine.names), s.batch or 1) for s in steps}
        return Plan(self.machine, placed, window)

    def simulate(self, **options: Any) -> Simulated:
        rows = given(self.sources, {n: k.whole for n, k in self.kinds.items()})
        return simulate(self.plan(), self.estimates(), rows, **options)


def linked(*devices: Device, bandwidth: float = 1.0, latency: float = 0.0, handoff: float = 0.0) -> Machine:
    """A machine whose accelerators are each linked to the host alike."""
    links = {("host", d.pool): Link(bandwidth, latency) for d in devices if d.pool != "host"}
    return Machine(devices, links, handoff=handoff)


def random_case(seed: int, handoff: float = 0.0) -> Case:
    """Two to four steps on one to five lanes of up to three kinds, some of them behind a link."""
    draw = Random(seed)
    graph = chain(*_stages(draw), batch=draw.choice((1, 2, 5, 8)))
    machine = linked(*_lanes(draw), bandwidth=draw.choice((2.0, 20.0, 1e9)), latency=draw.choice((0.0, 0.2)),
                     handoff=handoff)  # fmt: skip
    return Case(graph, machine, draw.randint(1, 60), draw.choice((0.0, 8.0)), draw.choice((0.0, 1.0)))


def _stages(draw: Random) -> list[Any]:
    kinds: list[type[Busy]] = [Busy, Plain, Many, One]
    made: list[Any] = []
    for i in range(draw.randint(2, 4)):
        kind = draw.choice([k for k in kinds if k is not One or not any(isinstance(m, One) for m in made)])
        parts = (draw.choice((0.2, 1.0, 3.0)), draw.choice((0.0, 2.0)), draw.choice((0.0, 0.0, 4.0)))
        made.append(kind(*parts, draw.choice((0.0, 0.1)), f"{i}"))
    return made


def _lanes(draw: Random) -> list[Device]:
    found = list(lanes(draw.randint(1, 3), 1.0, draw.choice((0.0, 0.5))))
    if draw.random() < 0.7:
        found += lanes(draw.randint(1, 2), draw.choice((0.5, 2.0, 8.0)), draw.choice((0.0, 0.5)), "cuda")
    if draw.random() < 0.3:
        found += lanes(1, draw.choice((0.5, 4.0)), 0.0, "pim")
    return found
