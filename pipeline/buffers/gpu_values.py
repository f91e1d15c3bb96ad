"""Values that hold tensors of a GPU, as a shelf hands them on: by the way of the plan, or by the host.

Within a process the parts of a value travel, and its reader takes them to where it works: nothing is done on
the same GPU, "peer" copies from another one, "staged" brings them to the host. Between processes the memory
is mapped ("cuda-ipc"); where that is not possible, tensors go to the host before the value is handed on as
any other, and up again where the reader has a GPU. So what a reader finds does not depend on the way.

When not: for values of the host, which never come here. Torch is imported with the first value.

Never run on a GPU so far: tested with fakes. `benchmarks.cuda_paths` runs it all.
"""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

from pipeline.buffers.cuda import Here, PeerTransport, StagedTransport, here, join, on_device, size, split
from pipeline.buffers.cuda_ipc import CudaIpcTransport, Mapped
from pipeline.buffers.device import pending
from pipeline.buffers.lodging import Lodged, Lodgings, used
from pipeline.buffers.pinned import Pinned
from pipeline.buffers.refuges import DiskPlace, refuges
from pipeline.buffers.staging import Staging
from pipeline.timeline import Counts

__all__ = ["Fetched", "GpuValues", "called", "is_there"]

PINNED = 1 << 28
"""Bytes of pinned buffers in a process; what finds no room goes by pageable memory. Ours: not measured."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A value whose tensors were brought to the host; `join` makes it whole."""

    head: bytes
    tensors: tuple[Any, ...]
    buffers: tuple[Any, ...]


def is_there(given: Any) -> bool:
    """Whether what travels leaves its tensors on a GPU."""
    return isinstance(given, Lodged | Mapped)


def called(given: Any) -> tuple[int, int] | None:
    """What a value is called when it is freed, below 0 unlike a slot; None where its last reference does it.

    Its producer is part of the name, since each process counts its values from 0.
    """
    if isinstance(given, Mapped):
        return -1 - zlib.crc32(given.owner.encode()), given.number
    return None


class GpuValues:
    """Those of one lane. `lane`: its device by torch's name, "cpu" for the client too."""

    def __init__(self) -> None:
        self.lane = "cpu"
        self._kept: dict[tuple[int, int], tuple[str, Mapped]] = {}
        self._lock = Lock()

    def hand(self, value: Any, due: int = 0) -> Lodged:
        """What travels within the process. `due`: when it is needed; larger is later, and leaves first."""
        return _lodgings().put(here(value), due)

    def lend(self, value: Any, run: str) -> Mapped:
        """What travels to other processes; the value is kept until `free`, or the `close` of the run."""
        given = _ipc().put(value)
        name = called(given)
        assert name is not None
        with self._lock:
            self._kept[name] = (run, given)
        return given

    def take(self, found: Lodged | Mapped) -> tuple[Any, Counts]:
        """The value where this lane works, and what was moved. For one thread at a time."""
        given = found.here() if isinstance(found, Lodged) else found
        way = self._way(given)
        before = Counts(way.shared, way.copied)
        with _current(self.lane):
            value = way.get(given)
        return value, Counts(way.shared - before.shared, way.copied - before.copied)

    def down(self, value: Any) -> tuple[Fetched, Counts]:
        """The value with its tensors on the host, to be handed on as any other."""
        buffers: list[Any] = []
        head, tensors = split(value, on_device, buffers)
        fetched = tuple(_staging().fetch(pending(t)) for t in tensors)
        return Fetched(head, fetched, tuple(buffers)), Counts(copied=size(tensors))

    def up(self, given: Fetched) -> tuple[Any, Counts]:
        """The value where this lane works."""
        if self.lane == "cpu":
            return join(given.head, given.tensors, given.buffers), Counts()
        with _current(self.lane):
            tensors = [_staging().upload(t, self.lane).take() for t in given.tensors]
        return join(given.head, tensors, given.buffers), Counts(copied=size(tensors))

    def free(self, name: tuple[int, int]) -> None:
        """This value is needed no more; nothing where it is not ours, or not any more."""
        with self._lock:
            _, given = self._kept.pop(name, ("", None))
        if given is not None:
            _ipc().release(given)

    def bury(self) -> None:
        """Free what was waiting for readers that are done, or dead."""
        if _ipc.cache_info().currsize:
            _ipc().collect()

    def close(self, run: str | None = None) -> None:
        """Free all, or what a run had."""
        with self._lock:
            names = [name for name, (its, _) in self._kept.items() if run in (None, its)]
        for name in names:
            self.free(name)

    def _way(self, given: Here | Mapped) -> Any:
        if isinstance(given, Mapped):
            return _ipc()
        return StagedTransport(_staging()) if self.lane == "cpu" else PeerTransport(_staging())


def _current(lane: str) -> AbstractContextManager[Any]:
    """Streams are those of the current device, and threads do not share it."""
    if lane == "cpu":
        return nullcontext()
    import torch

    found: AbstractContextManager[Any] = torch.cuda.device(lane)
    return found


@cache
def _staging() -> Staging:
    """The pinned buffers of this process: all lanes share them."""
    return Staging(Pinned(PINNED))


@cache
def _lodgings() -> Lodgings:
    """What waits on the devices of this process, and where it goes when these run low."""
    files = DiskPlace(_staging())
    return Lodgings(lambda device: refuges(device, _staging(), files), used)


@cache
def _ipc() -> CudaIpcTransport:
    """The values of this process that others map: one transport, which knows what came from where."""
    return CudaIpcTransport()
