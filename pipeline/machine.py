"""What there is: devices with what they deliver, and the links between their memories.

A device is a lane: one thread of control. Several lanes may divide the cores of one CPU, or share one
GPU; those whose `pool` is the same share its memory, and hand values over by reference. Each stage uses
`threads` of its lane by itself (torch threads, parser processes), so lanes never use more than the cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pipeline.errors import PlanError
from pipeline.lookup import near_miss
from pipeline.profiles import BYTES, NOMINAL, Profile, between, scaled

__all__ = [
    "ASSUMED", "BYTES", "HOST", "MAX_LAYOUTS", "NOMINAL", "Device", "Link", "Machine", "Profile", "cores",
    "detect", "layouts",
]  # fmt: skip

HOST = "host"
"""The pool of the CPU lanes: main memory. What has no link of its own goes through it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One lane. `name` is "cpu:0", "cuda:1", "pim:0"; `threads`: cores its stages may use.

    `cores`: which ones, where the lane is pinned; lanes that name the same core never run at once.
    `share`: the memory it works in, "" for that of its kind: the host's, or its own.
    """

    name: str
    threads: int = 1
    profile: Profile = field(default=NOMINAL, compare=False, repr=False)
    cores: tuple[int, ...] = ()
    share: str = ""

    @property
    def kind(self) -> str:
        """ "cpu", "cuda", "pim"...; a lane of the user's own cluster is a CPU unless its name says more."""
        kind, _, number = self.name.partition(":")
        return kind if number.isdigit() and kind.isalpha() else "cpu"

    @property
    def torch(self) -> str:
        """The device's name for torch; lanes that divide a GPU name it as what they share."""
        if self.kind != "cuda":
            return "cpu"
        return self.share if self.share.startswith("cuda:") else self.name

    @property
    def pool(self) -> str:
        """The memory it works in: lanes of one pool share values, weights and bandwidth."""
        return self.share or (HOST if self.kind == "cpu" else self.name)


@dataclass(frozen=True, slots=True)
class Link:
    """The way between two pools: `bandwidth` in bytes/s, `latency` in seconds, `source` of the numbers."""

    bandwidth: float
    latency: float
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.latency >= 0):
            raise PlanError(f"a link needs a bandwidth above 0 and a latency of 0 or more, found {self}")

    def seconds(self, nbytes: float) -> float:
        """How long `nbytes` take."""
        return self.latency + nbytes / self.bandwidth


ASSUMED = Link(10e9, 20e-6)
"""A link that nobody has declared or measured."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The lanes that a run may use. `links`: by pair of pools, either way round; `name` for reports.

    `by_threads`: what one lane of the CPU delivers, alone, by the number of its threads; `handoff`: seconds
    from the end of a batch until what follows from it begins, by way of the scheduler.
    """

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    name: str = "this machine"
    by_threads: Mapping[int, Profile] = field(default_factory=dict, compare=False, repr=False)
    handoff: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names or len(set(names)) != len(names):
            raise PlanError(f"a machine needs devices with distinct names, got {names}")
        pools = {HOST, *(d.pool for d in self.devices)}
        for pair in self.links:
            for pool in pair:
                if pool not in pools:
                    raise PlanError(f"a link goes to {pool!r}, which no device has{near_miss(pool, pools)}")

    def device(self, name: str) -> Device:
        """The device called `name`. Raises PlanError with the near miss."""
        for device in self.devices:
            if device.name == name:
                return device
        raise PlanError(f"no device {name!r} on this machine{near_miss(name, self.names)}")

    @property
    def lanes(self) -> tuple[Device, ...]:
        """The CPU lanes that work in the host's memory."""
        return tuple(d for d in self.devices if d.kind == "cpu" and d.pool == HOST)

    def lane_profile(self, threads: int) -> Profile:
        """What a CPU lane of `threads` delivers, alone.

        Between two counts of `by_threads` it lies on the line between them; beyond the least and the most,
        and where nobody has measured, it is in proportion. Raises PlanError where there is no CPU lane.
        """
        known = dict(self.by_threads) or {d.threads: d.profile for d in self.lanes[:1]}
        if not known:
            raise PlanError(f"{self.name} has no CPU lane, so none can be divided")
        if threads in known:
            return known[threads]
        low, high = max((n for n in known if n < threads), default=0), _next(known, threads)
        if low and high:
            why = f"{threads} threads, between {low} and {high} threads"
            return between(known[low], known[high], (threads - low) / (high - low), why)
        near = low or high
        return scaled(known[near], threads / near, f"{threads} of {near} threads", ("memory",))

    @property
    def crowds(self) -> tuple[tuple[str, ...], ...]:
        """The lanes at each core that several have: no two of them ever run at once."""
        at: dict[int, list[str]] = {}
        for d in self.devices:
            for core in d.cores:
                at.setdefault(core, []).append(d.name)
        return tuple(dict.fromkeys(tuple(names) for names in at.values() if len(names) > 1))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices, in order."""
        return tuple(d.name for d in self.devices)

    def seconds(self, a: Device, b: Device, nbytes: float) -> float:
        """How long a value of `nbytes` takes from `a` to `b`: nothing within a pool."""
        return 0.0 if a.pool == b.pool else sum(link.seconds(nbytes) for link in self.path(a.pool, b.pool))

    def path(self, a: str, b: str) -> tuple[Link, ...]:
        """The links between two pools: their own, else through the host."""
        direct = self.links.get((a, b)) or self.links.get((b, a))
        if direct is not None or HOST in (a, b):
            return (direct or ASSUMED,)
        return (*self.path(a, HOST), *self.path(HOST, b))


MAX_LAYOUTS = 6
"""Ways of dividing the CPU that are worth planning for."""


def cores() -> int:
    """Cores that this process may use (affinity counts, hyper-threads are as the system shows them)."""
    return len(os.sched_getaffinity(0))


def _next(counts: Iterable[int], count: int) -> int:
    return min((n for n in counts if n > count), default=0)


def layouts(machine: Machine, shared: bool = False) -> tuple[Machine, ...]:
    """The ways of dividing the CPU into equal lanes with disjoint cores: 1 x n, 2 x n/2, ... n x 1.

    At most `MAX_LAYOUTS`, spread over the divisors of n. `shared`: also each division beside one lane of all
    cores, for a policy that changes between the two. Other devices and the links stay as they are, and so do
    lanes that share cores already: who declares them wants them.
    """
    lanes = machine.lanes
    if machine.crowds:
        return (machine,)
    total = sum(d.threads for d in lanes)
    own = tuple(core for d in lanes for core in d.cores)
    ids = own if len(own) == total else tuple(range(total))
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    last, most = len(divisors) - 1, min(len(divisors), MAX_LAYOUTS) - 1
    chosen = [divisors[round(i * last / most)] for i in range(most + 1)] if most > 0 else divisors
    found = tuple(_divided(machine, ids, count) for count in chosen)
    both = tuple(_beside(found[0].lanes[0], parts) for parts in found[1:]) if shared else ()
    return (*found, *both) or (machine,)


def _beside(wide: Device, parts: Machine) -> Machine:
    """A lane of all cores beside those of some, with which power and price stand, else they count twice."""
    whole = replace(wide, profile=replace(wide.profile, idle_watts=0.0, price=0.0))
    narrow = tuple(replace(d, name=f"cpu:{i + 1}") for i, d in enumerate(parts.lanes))
    others = tuple(d for d in parts.devices if d not in parts.lanes)
    return replace(parts, devices=(whole, *narrow, *others))


def _divided(machine: Machine, ids: tuple[int, ...], count: int) -> Machine:
    width = len(ids) // count
    profile = _capped(machine.lane_profile(width), machine.lane_profile(len(ids)), count)
    parts = [ids[i * width : (i + 1) * width] for i in range(count)]
    lanes = tuple(Device(f"cpu:{i}", width, profile, part) for i, part in enumerate(parts))
    curve = machine.by_threads or {d.threads: d.profile for d in machine.lanes[:1]}
    others = tuple(d for d in machine.devices if d not in machine.lanes)
    return replace(machine, devices=lanes + others, by_threads=curve)


def _capped(lane: Profile, whole: Profile, count: int) -> Profile:
    """What each of `count` equal lanes delivers when all work: together no more than the whole."""
    peaks = {dtype: min(peak, whole.peaks[dtype] / count) for dtype, peak in lane.peaks.items()}
    bandwidth, copy = min(lane.bandwidth, whole.bandwidth / count), min(lane.copy, whole.copy / count)
    return replace(lane, peaks=peaks, bandwidth=bandwidth, copy=copy)


def detect() -> Machine:
    """This machine: the CPU, and every CUDA device or MIG slice that torch sees. Imports torch."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = tuple(sorted(os.sched_getaffinity(0)))
    return Machine((Device("cpu:0", len(own), cores=own), *(Device(f"cuda:{i}") for i in range(count))))
