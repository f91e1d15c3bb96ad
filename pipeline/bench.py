"""The hardware as calibration sees it: what can be measured of it, and the real thing.

Tests measure hardware that is made up; `Here` is that of this process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pipeline.cuda_kernels import Cuda
from pipeline.fingerprint import facts
from pipeline.kernels import Effort, Host
from pipeline.machine import Link, Machine, cores

__all__ = ["Bench", "CpuBench", "CudaBench", "Here"]


class CpuBench(Protocol):
    """What is measured of the CPU: `pipeline.kernels.Host` says how."""

    dtypes: tuple[str, ...]
    memory: int
    note: str

    def product(self, dtype: str, threads: int) -> float:
        """FLOP/s of a matrix product."""
        ...

    def read(self, threads: int) -> float:
        """Bytes/s read in a stream."""
        ...

    def copy(self, threads: int) -> float:
        """Bytes/s copied."""
        ...

    def together(self, dtype: str, threads: int) -> float:
        """Share of the bound that a product and a stream reach side by side."""
        ...

    def turns(self) -> float:
        """Interpreted operations/s of one thread."""
        ...

    def handoff(self) -> float:
        """Seconds for an empty call to go and come back."""
        ...

    def load(self) -> float:
        """Bytes/s of a file that is read. Raises OSError."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class CudaBench(Protocol):
    """What is measured of a CUDA device; see `pipeline.cuda_kernels.Cuda`."""

    dtypes: tuple[str, ...]
    memory: int
    note: str

    def product(self, dtype: str) -> float:
        """FLOP/s of a matrix product."""
        ...

    def read(self) -> float:
        """Bytes/s read in a stream."""
        ...

    def copy(self) -> float:
        """Bytes/s copied."""
        ...

    def together(self, dtype: str) -> float:
        """Share of the bound that a product and a stream reach side by side."""
        ...

    def handoff(self) -> float:
        """Seconds for an empty call to go and come back."""
        ...

    def to_host(self) -> Link:
        """The way to the host's memory."""
        ...

    def to(self, other: Any) -> Link:
        """The way to another device's memory."""
        ...


class Bench(Protocol):
    """The hardware, as calibration sees it."""

    cores: int
    facts: Mapping[str, str]

    def host(self) -> CpuBench:
        """The CPU."""
        ...

    def cuda(self, index: int) -> CudaBench:
        """A CUDA device."""
        ...


class Here:
    """The hardware of this process. The time for all measurements begins now."""

    def __init__(self, machine: Machine, effort: Effort, folder: Path) -> None:
        self.cores, self.facts = cores(), facts(machine)
        self._effort, self._folder = effort, folder
        self._end = time.monotonic() + effort.seconds

    def host(self) -> CpuBench:
        """The CPU."""
        return Host(self._effort, self._folder, self._late)

    def cuda(self, index: int) -> CudaBench:
        """A CUDA device."""
        import torch

        return Cuda(torch, index, self._effort, self._late)

    def _late(self) -> bool:
        return time.monotonic() > self._end
