"""Stages of known cost, to be predicted: products, streams, waits, and the shapes of graphs around them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Rows

SIDE = 512
"""Rows and columns of the matrices of `Multiply`."""
BUFFER = 1 << 26
"""Numbers in the buffer of `Stream`: 256 MiB, well past the last-level cache."""


@dataclass(frozen=True, slots=True)
class Tasks(Rows):
    """`sizes`: units of work of each row."""

    sizes: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sizes."""
        return self.sizes


@dataclass(frozen=True, slots=True)
class Turns(Tasks):
    """Tasks in a loop. `left`: rounds that are left, this one among them."""

    left: tuple[int, ...]
    done: NDArray[np.bool_]


def _units(work: Work, times: float) -> float:
    tasks = work.port("tasks")
    return tasks.rows * max(tasks.length, 1.0) * times


def _same(work: Work) -> Flow:
    tasks = work.port("tasks")
    return Flow(work.rows, tasks.length, tasks.nbytes)


@dataclass(frozen=True, slots=True)
class Multiply:
    """`times` products of float32 [512, 512] matrices for each unit of a row: bound by arithmetic."""

    times: int

    def cost(self, work: Work) -> Cost:
        """2 FLOP for each multiply and add."""
        return Cost(_same(work), flops=_units(work, self.times) * 2 * SIDE**3)

    def open(self, device: Device) -> tuple[Any, int]:
        """A matrix, and the threads to use."""
        import torch

        return torch.ones(SIDE, SIDE), device.threads

    def run(self, state: tuple[Any, int], tasks: Tasks) -> Tasks:
        """The rows as they came."""
        import torch

        matrix, threads = state
        torch.set_num_threads(threads)
        for _ in range(sum(tasks.sizes) * self.times):
            torch.mm(matrix, matrix)
        return Tasks(tasks.ids, tasks.sizes)


@dataclass(frozen=True, slots=True)
class Stream:
    """Reads a buffer of 256 MiB `times` times for each unit of a row: bound by memory traffic."""

    times: int

    shares: ClassVar[tuple[str, ...]] = ()

    def cost(self, work: Work) -> Cost:
        """4 bytes a number."""
        return Cost(_same(work), traffic=_units(work, self.times) * 4 * BUFFER, resident=4.0 * BUFFER)

    def open(self, device: Device) -> tuple[Any, int]:
        """The buffer, and the threads to use."""
        import torch

        return torch.ones(BUFFER), device.threads

    def run(self, state: tuple[Any, int], tasks: Tasks) -> Tasks:
        """The rows as they came."""
        import torch

        buffer, threads = state
        torch.set_num_threads(threads)
        for _ in range(sum(tasks.sizes) * self.times):
            buffer.sum()
        return Tasks(tasks.ids, tasks.sizes)


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits on a disk: `fixed` seconds a batch and `each` a unit. Without `cost`: it is to be learned."""

    fixed: float
    each: float

    def run(self, state: None, tasks: Tasks) -> Tasks:
        """The rows as they came."""
        time.sleep(self.fixed + self.each * sum(tasks.sizes))
        return Tasks(tasks.ids, tasks.sizes)


@dataclass(frozen=True, slots=True)
class Sort:
    """Sorts 100,000 numbers for each unit of a row. Without `cost`: it is to be learned."""

    times: int

    def run(self, state: None, tasks: Tasks) -> Tasks:
        """The rows as they came."""
        numbers = np.random.default_rng(0).random(100_000)
        for _ in range(sum(tasks.sizes) * self.times):
            np.sort(numbers)
        return Tasks(tasks.ids, tasks.sizes)


@dataclass(frozen=True, slots=True)
class Divide:
    """A row for each unit of a row."""

    expands: ClassVar[bool] = True

    def run(self, state: None, tasks: Tasks) -> Tasks:
        """Rows of one unit."""
        pairs = zip(tasks.ids, tasks.sizes, strict=True)
        ids = tuple((*i, k) for i, size in pairs for k in range(size))
        return Tasks(ids, (1,) * len(ids))


@dataclass(frozen=True, slots=True)
class Gather:
    """All rows of an input, as one."""

    gathers: ClassVar[int] = 1

    def run(self, state: None, tasks: Tasks) -> Tasks:
        """A row with the units of all."""
        return Tasks(tasks.ids[:1], (sum(tasks.sizes),))


@dataclass(frozen=True, slots=True)
class Again:
    """Ends a round: one less is left."""

    def run(self, state: None, turns: Turns, tasks: Tasks) -> Turns:
        """The rows for the next round; those that have none left are done."""
        left = tuple(n - 1 for n in turns.left)
        return Turns(turns.ids, turns.sizes, left, np.array([n < 1 for n in left], bool))
