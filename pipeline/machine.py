"""What there is: devices with what they deliver, and the links between their memories.

A device is a lane: one thread of control. Several lanes may divide the cores of one CPU, or share one
GPU; those whose `pool` is the same share its memory, and hand values over by reference. Each stage uses
`threads` of its lane by itself (torch threads, parser processes), so lanes never use more than the cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pipeline.errors import PlanError
from pipeline.lookup import near_miss

HOST = "host"
"""The pool of the CPU lanes: main memory. What has no link of its own goes through it."""

BYTES = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1})
"""Bytes of an element of each dtype that has a peak."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one lane delivers with the kernels that stages use.

    `peaks`: dtype to FLOP/s of its matrix product; `bandwidth`: bytes/s read in a stream from its memory;
    `copy`: bytes/s copied; `memory`: bytes; `scalar`: interpreted operations/s of one thread (0: it cannot
    run such code); `overhead`: seconds per batch, whatever is in it; `load`: bytes/s of weights from
    storage; `together`: share of the shared-device bound (see `pipeline.roofline`) that two lanes reach;
    `joules_per_flop`, `joules_per_byte`, `idle_watts`; `price` in US dollars per hour; 0 where unknown.
    `sources`: number to where it comes from: "measured ...", "data sheet ...", "scaled ...", "assumed".
    """

    peaks: Mapping[str, float]
    bandwidth: float
    copy: float
    memory: float
    scalar: float = 2e7
    overhead: float = 1e-3
    load: float = 1e9
    together: float = 1.0
    joules_per_flop: float = 0.0
    joules_per_byte: float = 0.0
    idle_watts: float = 0.0
    price: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.peaks or unknown_dtypes(self.peaks):
            raise PlanError(f"peaks must name dtypes among {', '.join(BYTES)}; found {dict(self.peaks)}")
        positive = {"bandwidth": self.bandwidth, "copy": self.copy, "memory": self.memory, **self.peaks}
        for name, value in positive.items():
            if not value > 0:
                raise PlanError(f"{name} of a device must be above 0, found {value!r}")
        if not 0 < self.together <= 1:
            raise PlanError(f"together is a share above 0 and at most 1, found {self.together!r}")

    def peak(self, dtype: str) -> float:
        """FLOP/s in `dtype`. Raises PlanError where the device does not compute in it."""
        if dtype not in self.peaks:
            raise PlanError(f"the device does not compute in {dtype!r}{near_miss(dtype, self.peaks)}")
        return self.peaks[dtype]

    def auto(self) -> str:
        """The dtype that "auto" means: bfloat16 where it is clearly faster than float32, else float32.

        A device that has only others computes in its fastest.
        """
        half, full = self.peaks.get("bfloat16", 0.0), self.peaks.get("float32", 0.0)
        if half or full:
            return "bfloat16" if half > 1.2 * full else "float32"
        return max(self.peaks, key=lambda d: self.peaks[d])

    def ridge(self, dtype: str) -> float:
        """FLOP per byte above which a product is bound by arithmetic (Williams et al., 2009)."""
        return self.peak(dtype) / self.bandwidth


NOMINAL = Profile(
    peaks={"float32": 5e10, "bfloat16": 5e10},
    bandwidth=1e10,
    copy=5e9,
    memory=8 * 2**30,
    sources={"*": "assumed: nobody has measured this lane; run `ridgeway calibrate`"},
)
"""What a lane is taken for before it is measured."""


def unknown_dtypes(names: Mapping[str, float]) -> list[str]:
    """Those that are no dtype we know."""
    return [name for name in names if name not in BYTES]


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
        """The device's name for torch."""
        return self.name if self.kind == "cuda" else "cpu"

    @property
    def pool(self) -> str:
        """The memory it works in: lanes of one pool share values, weights and bandwidth."""
        return self.share or (HOST if self.kind == "cpu" else self.name)


@dataclass(frozen=True, slots=True)
class Link:
    """The way between two pools: `bandwidth` in bytes/s, `latency` in seconds."""

    bandwidth: float
    latency: float

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
    """The lanes that a run may use. `links`: by pair of pools, either way round; `name` for reports."""

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    name: str = "this machine"

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


def cores() -> int:
    """Cores that this process may use (affinity counts, hyper-threads are as the system shows them)."""
    return len(os.sched_getaffinity(0))


def detect() -> Machine:
    """This machine: the CPU, and every CUDA device that torch sees. Imports torch."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine((Device("cpu:0", cores()), *(Device(f"cuda:{i}") for i in range(count))))
