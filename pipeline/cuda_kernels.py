"""The timed work of calibration on a CUDA device, and on the ways to it: see `pipeline.kernels`.

Times are those of CUDA events, so that launches do not count; what a launch takes is part of `handoff`.
Nothing here is reached on a machine without CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.kernels import Effort, Run, beside, best, buffer_bytes, delivered, edge
from pipeline.machine import Link

__all__ = ["Cuda"]

SMALL = 4096
"""Bytes of a transfer whose time is all latency."""


class Cuda:
    """The kernels of the device that torch calls `cuda:index`: a GPU, or a MIG slice."""

    def __init__(self, torch: Any, index: int, effort: Effort, late: Callable[[], bool]) -> None:
        self.torch, self.effort, self.late = torch, effort, late
        self.device = torch.device("cuda", index)
        facts = torch.cuda.get_device_properties(index)
        free, self.memory = torch.cuda.mem_get_info(index)
        self.nbytes = buffer_bytes(effort, getattr(facts, "L2_cache_size", 0), free)
        self.note = f"{facts.name} {getattr(facts, 'uuid', '')}, {self.nbytes >> 20} MiB"
        half = (facts.major, facts.minor) >= (8, 0)
        self.dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16") if half else ("float32", "float16")
        self._from = torch.ones(self.nbytes // 4, device=self.device)
        self._to = torch.ones_like(self._from)

    def product(self, dtype: str) -> float:
        """FLOP/s of `torch.nn.functional.linear` of square matrices."""
        size = self.effort.cuda_size
        quarter = best(self._linear(dtype, size // 4), self._timed, 1, self.late)
        size = edge(quarter, size, self.effort.patience)
        return 2.0 * size**3 / self._best(self._linear(dtype, size))

    def read(self) -> float:
        """Bytes/s of a sum over a buffer."""
        return self.nbytes / self._best(self._from.sum)

    def copy(self) -> float:
        """Bytes/s copied within the device's memory; each byte counts once."""
        return self.nbytes / self._best(lambda: self._to.copy_(self._from))

    def together(self, dtype: str) -> float:
        """What share of the bound a product and a sum reach side by side, each on a stream of its own."""
        runs = (self._linear(dtype, self.effort.cuda_size // 2), self._from.sum)
        alone = [best(run, self._timed, 1, self.late) for run in runs]
        times = [max(1, round(self.effort.side / 2 / s)) for s in alone]
        wall = beside([self._stream(run, n) for run, n in zip(runs, times, strict=True)])
        return delivered([n * s for n, s in zip(times, alone, strict=True)], wall)

    def handoff(self) -> float:
        """Seconds from the launch of a kernel that does nothing to speak of until the host knows its end."""
        one = self.torch.ones(1, device=self.device)

        def launch() -> float:
            return float(one.add_(1))

        return self._best(launch)

    def to_host(self) -> Link:
        """The way to the host's memory, with pinned buffers: the slower of both directions."""
        here, there = self._from[: self._part()], self._pinned(self._part())
        small, away = self._from[: SMALL // 4], self._pinned(SMALL // 4)
        ways = [lambda: there.copy_(here, non_blocking=True), lambda: here.copy_(there, non_blocking=True)]
        shorts = [lambda: away.copy_(small, non_blocking=True), lambda: small.copy_(away, non_blocking=True)]
        return self._link(max(map(self._best, ways)), max(map(self._best, shorts)))

    def to(self, other: Cuda) -> Link:
        """The way to another device's memory: directly where the driver allows it."""
        count = min(self._part(), other._part())
        return self._link(
            self._best(lambda: other._to[:count].copy_(self._from[:count])),
            self._best(lambda: other._to[: SMALL // 4].copy_(self._from[: SMALL // 4])),
            count,
        )

    def _link(self, seconds: float, latency: float, count: int | None = None) -> Link:
        moved = 4 * (count or self._part())
        return Link(moved / max(seconds - latency, seconds / 2), latency)

    def _part(self) -> int:
        """Elements of a transfer: enough to hide the latency."""
        return min(self.nbytes // 4, self.effort.file_bytes // 4)

    def _pinned(self, count: int) -> Any:
        return self.torch.empty(count, pin_memory=True)

    def _linear(self, dtype: str, size: int) -> Run:
        kind = getattr(self.torch, dtype)
        rows = self.torch.ones(size, size, dtype=kind, device=self.device)
        weights = self.torch.ones_like(rows)
        return lambda: self.torch.nn.functional.linear(rows, weights)

    def _best(self, run: Run) -> float:
        return best(run, self._timed, self.effort.repeat, self.late)

    def _timed(self, run: Run) -> float:
        with self.torch.cuda.device(self.device):
            began, ended = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            run()
            ended.record()
            self.torch.cuda.synchronize(self.device)
            return max(float(began.elapsed_time(ended)) / 1e3, 1e-9)

    def _stream(self, run: Run, count: int) -> Run:
        def often() -> None:
            stream = self.torch.cuda.Stream(self.device)
            with self.torch.cuda.stream(stream):
                for _ in range(count):
                    run()
            stream.synchronize()

        return often
