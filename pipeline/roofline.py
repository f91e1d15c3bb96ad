"""How long a batch takes on a device, what it is bound by, and what it costs in energy and money.

    seconds(cost, device)   = max(flops / peak, traffic / bandwidth) + scalar / scalar rate + overhead
    together(costs, device) = max(sum flops / peak, sum traffic / bandwidth) + ...     sharing a device

The roofline of Williams, Waterman, Patterson (2009), with a third term for code that is neither matrix
products nor streams (parsing, templates): interpreted operations, which run one after another. `together`
is never more than the sum of the parts, and equals it where all lean on the same resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.errors import PlanError
from pipeline.machine import Device


@dataclass(frozen=True, slots=True)
class Flow:
    """Rows of one kind: how many, their mean `length` (the cost hint: tokens, characters), `nbytes` a row.

    For an index or a corpus, one row, `length` is the number of its chunks.
    """

    rows: float
    length: float = 0.0
    nbytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """One batch of a stage: `rows` of them (groups, if it gathers), and what each port brings.

    `dtype`: what "auto" means on the device in question.
    """

    rows: float
    ports: Mapping[str, Flow]
    dtype: str = "float32"

    def port(self, name: str) -> Flow:
        """What comes in at a port."""
        return self.ports[name]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch asks of a device, and gives.

    `flops`: of matrix products in `dtype`; `traffic`: bytes read and written in the device's memory;
    `scalar`: interpreted operations, by one thread, or by all where `spread`; `resident`: bytes that stay
    while the stage is open; `scratch`: bytes at the peak of the batch, in and out left aside; `opening`:
    bytes read from storage to open it; `output`: all the rows it gives.
    """

    output: Flow
    flops: float = 0.0
    traffic: float = 0.0
    scalar: float = 0.0
    resident: float = 0.0
    scratch: float = 0.0
    opening: float = 0.0
    dtype: str = "float32"
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of a batch by what they are spent on. `compute` and `memory` overlap."""

    compute: float
    memory: float
    scalar: float
    overhead: float

    @property
    def seconds(self) -> float:
        """All in all."""
        return max(self.compute, self.memory) + self.scalar + self.overhead

    @property
    def bound(self) -> str:
        """The resource that decides: "compute", "memory", "scalar" or "overhead"."""
        kinds = {"compute": self.compute, "memory": self.memory, "scalar": self.scalar}
        return max({**kinds, "overhead": self.overhead}.items(), key=lambda kv: kv[1])[0]


def terms(cost: Cost, device: Device) -> Terms:
    """Where the time of a batch goes on `device`. Raises PlanError where it cannot run there."""
    p = device.profile
    if cost.scalar and not p.scalar:
        raise PlanError(f"{device.name} runs products only, and this stage is ordinary code")
    threads = device.threads if cost.spread else 1
    scalar = cost.scalar / (p.scalar * threads) if cost.scalar else 0.0
    compute = cost.flops / p.peak(cost.dtype) if cost.flops else 0.0
    return Terms(compute, cost.traffic / p.bandwidth, scalar, p.overhead)


def seconds(cost: Cost, device: Device) -> float:
    """How long a batch takes, alone on `device`."""
    return terms(cost, device).seconds


def together(costs: Iterable[Cost], device: Device) -> float:
    """How long batches take side by side on one device: no resource serves two at once.

    The bound divided by the share of it that the device was measured to deliver; for one batch, `seconds`.
    """
    found = [terms(cost, device) for cost in costs]
    if len(found) < 2:
        return found[0].seconds if found else 0.0
    bound = max(sum(t.compute for t in found), sum(t.memory for t in found))
    alone = max(t.seconds for t in found)
    most = sum(t.seconds for t in found)
    return min(most, max(alone, bound / device.profile.together + max(t.scalar + t.overhead for t in found)))


def intensity(cost: Cost) -> float:
    """FLOP per byte; infinite where nothing is moved, 0 where nothing is multiplied."""
    if not cost.flops:
        return 0.0
    return cost.flops / cost.traffic if cost.traffic else float("inf")


def joules(cost: Cost, device: Device) -> float:
    """Energy of a batch beyond what the device takes when idle (the schema of PIM-AI, arXiv 2411.17309)."""
    p = device.profile
    return cost.flops * p.joules_per_flop + cost.traffic * p.joules_per_byte


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run costs. `joules` of work and of idling; `dollars` by the hour of each device."""

    joules: float
    dollars: float


def bill(machine: Iterable[Device], seconds_: float, work: float) -> Bill:
    """Energy and money of a run of `seconds_` whose batches took `work` joules."""
    devices = list(machine)
    idle = sum(d.profile.idle_watts for d in devices) * seconds_
    return Bill(work + idle, sum(d.profile.price for d in devices) * seconds_ / 3600)
