"""What there is: devices, one worker lane each.

A lane is one thread of control on one device. The CPU is a single lane that owns all cores: each stage
uses `threads` of them by itself (torch threads, parser processes), so lanes times threads never exceeds
the cores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pipeline.errors import PlanError
from pipeline.lookup import near_miss


@dataclass(frozen=True, slots=True)
class Device:
    """One lane. `name` is "cpu:0", "cuda:1"; `threads` is the number of cores its stages may use."""

    name: str
    threads: int = 1

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"; a lane of the user's own cluster is a CPU unless its name says "cuda:N"."""
        return "cuda" if self.name.startswith("cuda:") else "cpu"

    @property
    def torch(self) -> str:
        """The device's name for torch."""
        return "cpu" if self.kind == "cpu" else self.name


@dataclass(frozen=True, slots=True)
class Machine:
    """The lanes that a run may use; the first is the CPU's."""

    devices: tuple[Device, ...]

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names or len(set(names)) != len(names):
            raise PlanError(f"a machine needs devices with distinct names, got {names}")

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

    def accelerator(self) -> Device:
        """Where arithmetic is cheapest: the first CUDA device, else the CPU."""
        return next((d for d in self.devices if d.kind == "cuda"), self.devices[0])


def cores() -> int:
    """Cores that this process may use (affinity counts, hyper-threads are as the system shows them)."""
    return len(os.sched_getaffinity(0))


def detect() -> Machine:
    """This machine: the CPU, and every CUDA device that torch sees. Imports torch."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine((Device("cpu:0", cores()), *(Device(f"cuda:{i}") for i in range(count))))
