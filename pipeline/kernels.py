"""The timed work of calibration on the host: products, streams, interpreted code, storage.

These are the kernels that stages spend their time in: `torch.nn.functional.linear` in their dtypes, reading
and copying buffers well past the last-level cache, a Python loop, a handoff between threads. Each gives a
rate, from the best of a few runs; `pipeline.calibrate` makes profiles of them. Nothing runs on import.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

from pipeline.fingerprint import cache_bytes, free_bytes, memory_bytes

__all__ = ["Clock", "Effort", "Host", "beside", "best", "buffer_bytes", "delivered", "edge", "turns"]

Clock = Callable[[], float]
Run = Callable[[], object]
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to measure. After `seconds` every measurement that is left runs once.

    `size`, `cuda_size`: edge of the square products; one that takes longer than `patience` seconds is taken
    of smaller matrices. `least_bytes` and `caches` times the last-level cache: the streamed buffers.
    `repeat`: runs of which the best counts. `file_bytes`: read from storage. `loops`: turns of the Python
    loop. `side`: seconds for which two kernels run side by side.
    """

    seconds: float = 12.0
    size: int = 2048
    cuda_size: int = 8192
    patience: float = 0.3
    least_bytes: int = 256 << 20
    caches: int = 4
    repeat: int = 5
    file_bytes: int = 64 << 20
    loops: int = 1_000_000
    side: float = 0.5


def best(run: Run, timed: Callable[[Run], float], repeat: int, late: Callable[[], bool]) -> float:
    """The least seconds of `repeat` runs after one that warms up; of one run where it is `late`."""
    timed(run)
    found = timed(run)
    for _ in range(repeat - 1):
        if late():
            break
        found = min(found, timed(run))
    return found


def edge(quarter: float, size: int, patience: float) -> int:
    """The edge of a product that takes at most `patience`, if one of `size` / 4 took `quarter` seconds."""
    expected = quarter * 64
    while expected > patience and size > 256:
        size, expected = size // 2, expected / 8
    return size


def buffer_bytes(effort: Effort, last_level: int, free: int) -> int:
    """Bytes of a streamed buffer: past the caches, but a quarter of the free memory at most."""
    wanted = max(effort.caches * last_level, effort.least_bytes)
    return min(wanted, free // 4) if free else wanted


def beside(runs: Sequence[Run], clock: Clock = time.perf_counter) -> float:
    """Seconds from the common start of all runs, each in a thread of its own, to the end of the last."""
    start = Barrier(len(runs) + 1)

    def begin(run: Run) -> None:
        start.wait()
        run()

    with ThreadPoolExecutor(len(runs)) as pool:
        futures = [pool.submit(begin, run) for run in runs]
        start.wait()
        began = clock()
        for future in futures:
            future.result()
        return clock() - began


def delivered(alone: Sequence[float], wall: float) -> float:
    """What share of the bound of `pipeline.roofline.together` two runs reach, one for each resource.

    Ours: side by side they should take as long as the longer of them `alone`; above 0, at most 1.
    """
    return max(0.01, min(1.0, max(alone) / wall))


def turns(count: int) -> int:
    """The loop that defines an interpreted operation: one turn is one, about four bytecodes.

    Costs of stages count their Python work in turns of this loop (`scalar`).
    """
    total = 0
    for i in range(count):
        total += i & 7
    return total


class Host:
    """The kernels of the CPU. `late` says whether the time is up; the buffers live as long as this does."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16")

    def __init__(self, effort: Effort, folder: Path, late: Callable[[], bool]) -> None:
        import torch

        self.effort, self.folder, self.late = effort, folder, late
        self.memory = memory_bytes()
        self._threads = torch.get_num_threads()
        wanted = buffer_bytes(effort, cache_bytes(), 0)
        self.nbytes = buffer_bytes(effort, cache_bytes(), free_bytes())
        self.note = f"{self.nbytes >> 20} MiB" + (
            " (a quarter of free memory)" if self.nbytes < wanted else ""
        )
        self._from = torch.ones(self.nbytes // 4)
        self._to = torch.ones_like(self._from)

    def close(self) -> None:
        """Give the buffers back, and torch the number of threads that it had."""
        self._from = self._to = self._from[:0]
        _use(self._threads)

    def product(self, dtype: str, threads: int) -> float:
        """FLOP/s of `torch.nn.functional.linear` of square matrices."""
        _use(threads)
        quarter = best(self._linear(dtype, self.effort.size // 4), _timed, 1, self.late)
        size = edge(quarter, self.effort.size, self.effort.patience)
        return 2.0 * size**3 / self._best(self._linear(dtype, size))

    def read(self, threads: int) -> float:
        """Bytes/s of a sum over a buffer."""
        _use(threads)
        return self.nbytes / self._best(self._from.sum)

    def copy(self, threads: int) -> float:
        """Bytes/s copied from one buffer to another; each byte counts once."""
        _use(threads)
        return self.nbytes / self._best(lambda: self._to.copy_(self._from))

    def together(self, dtype: str, threads: int) -> float:
        """What share of the bound a product and a sum reach side by side, each with all the threads."""
        _use(threads)
        runs: tuple[Run, Run] = (self._linear(dtype, self.effort.size // 2), self._from.sum)
        alone = [best(run, _timed, 1, self.late) for run in runs]
        times = [max(1, round(self.effort.side / s)) for s in alone]
        wall = beside([_often(run, n, threads) for run, n in zip(runs, times, strict=True)])
        return delivered([n * s for n, s in zip(times, alone, strict=True)], wall)

    def turns(self) -> float:
        """Interpreted operations/s of one thread."""
        return self.effort.loops / self._best(lambda: turns(self.effort.loops))

    def handoff(self) -> float:
        """Seconds for an empty call to go to another thread and come back."""
        with ThreadPoolExecutor(1) as pool:

            def hand_over() -> None:
                for _ in range(100):
                    pool.submit(int).result()

            return self._best(hand_over) / 100

    def load(self) -> float:
        """Bytes/s of a file read back from `folder`, out of the page cache as far as the system allows."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
            block = os.urandom(BLOCK)
            count = max(1, self.effort.file_bytes // BLOCK)
            for _ in range(count):
                file.write(block)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            return count * BLOCK / _timed(lambda: [file.read(BLOCK) for _ in range(count)])

    def _best(self, run: Run) -> float:
        return best(run, _timed, self.effort.repeat, self.late)

    def _linear(self, dtype: str, size: int) -> Run:
        import torch

        kind = getattr(torch, dtype)
        rows, weights = torch.ones(size, size, dtype=kind), torch.ones(size, size, dtype=kind)
        return lambda: torch.nn.functional.linear(rows, weights)


def _timed(run: Run) -> float:
    began = time.perf_counter()
    run()
    return max(time.perf_counter() - began, 1e-9)


def _use(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _often(run: Run, count: int, threads: int) -> Run:
    """`run`, `count` times, in a thread that has not been told yet how many it may use."""

    def often() -> None:
        _use(threads)
        for _ in range(count):
            run()

    return often
