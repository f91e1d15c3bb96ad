"""Values whose tensors stay on a CUDA device, handed on between processes that share it: CUDA IPC.

What travels says where the memory is, and the reader maps it. All else in a value goes along as its pickle;
large arrays of the host beside tensors of a device belong on an edge of their own.

Torch counts the readers of exported memory, but only one per export, and a second would end it early. So
`claims` decide: the producer keeps its tensors until nobody has a lease, and then settles torch's count. An
export has an event of torch's own, for which torch waits only when it maps; ours is waited for each time.

When not: where `device.refusal` says why not. A GPU's whole allocation is mapped (pytorch, note on CUDA IPC),
so a reader can reach what lies beside; and what came by CUDA IPC cannot be exported again: it is copied.

Never run on a GPU so far: read in torch 2.13, and tested with fakes. `benchmarks.cuda_paths` runs it all.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any

from pipeline.buffers.claims import Claims, Lease
from pipeline.buffers.cuda import Here, join, on_device, size, split, stream_of
from pipeline.buffers.device import Pending, expandable, index_of, no_segments, record, uuid
from pipeline.buffers.handles import StaleHandleError
from pipeline.buffers.leases import Later
from pipeline.buffers.transports import Counting
from pipeline.errors import PlanError

__all__ = ["CudaIpcTransport", "Ipc", "Mapped"]

DEVICE = 6
"""Where the index of the device is among the arguments of torch's `rebuild_cuda_tensor`."""
COUNT = slice(11, 13)
"""Where torch's count of readers is among them: the name of its file, and the place in it."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A value whose tensors stay on the GPU; some hundred bytes, and about as many for each tensor.

    `owner`, `claims`, `number`: see `Claims`; `tensors`: arguments of `rebuild_cuda_tensor`, with the GPU's
    UUID for its index; `events`: UUID and handle.
    """

    owner: str
    claims: str
    number: int
    head: bytes
    tensors: tuple[tuple[Any, ...], ...]
    events: tuple[tuple[str, bytes], ...]


class Ipc:
    """What torch does for memory that processes share. Raises PlanError where expandable segments are on."""

    def __init__(self) -> None:
        if found := no_segments(expandable(os.environ)):
            raise PlanError(found)

    def export(self, tensor: Any) -> tuple[Any, ...]:
        """The arguments by which another process maps it. Raises TypeError for sparse and nested tensors."""
        reductions = _reductions()
        rebuild, args = reductions.reduce_tensor(tensor)
        if rebuild is not reductions.rebuild_cuda_tensor:
            raise TypeError(f"a tensor of layout {tensor.layout} cannot be exported: hand on its parts")
        return (*args[:DEVICE], uuid(args[DEVICE]), *args[DEVICE + 1 :])

    def restore(self, args: tuple[Any, ...]) -> Any:
        """The tensor, mapped from its process. Raises PlanError where its GPU is not visible."""
        return _reductions().rebuild_cuda_tensor(*args[:DEVICE], index_of(args[DEVICE]), *args[DEVICE + 1 :])

    def settle(self, args: tuple[Any, ...]) -> None:
        """Have torch's count say that nobody reads: it is one until a reader has come and gone."""
        import torch

        storage: Any = torch.UntypedStorage
        if args[COUNT.start] is not None:
            storage._release_ipc_counter(*args[COUNT], device=index_of(args[DEVICE]))

    def signal(self, device: Any) -> tuple[Any, str, bytes]:
        """An event after the work so far of the current stream, the GPU, and the event's handle."""
        event = record(device, interprocess=True)
        return event, uuid(device.index), event.ipc_handle()

    def wait(self, gpu: str, handle: bytes) -> None:
        """The current stream on that GPU waits for another process's event."""
        import torch

        device = torch.device("cuda", index_of(gpu))
        event: Any = torch.cuda.Event
        stream_of(device).wait_event(event.from_ipc_handle(device, handle))


def _reductions() -> Any:
    from torch.multiprocessing import reductions

    return reductions


@dataclass(slots=True)
class _Kept:
    """An exported value at its producer, with the events, which others may open as long as it is kept."""

    value: Here
    tensors: tuple[tuple[Any, ...], ...]
    released: bool = False


class CudaIpcTransport(Counting):
    """The memory itself, to other processes on the same GPU. Check `device.refusal` first. One per process.

    A reader's lease ends with the last view of a tensor's storage, once the stream that was current in `get`
    has done what it had to do; a reader with more streams has that one wait for them. Readers in the
    producer's own process get the tensors themselves, and are done with them before the release.
    """

    name = "cuda-ipc"

    def __init__(self, ipc: Any = None) -> None:
        super().__init__()
        self._ipc = ipc or Ipc()
        self._claims = Claims()
        self._kept: dict[int, _Kept] = {}
        self._later = Later(self._let_go)
        self._borrowed: set[int] = set()

    def put(self, value: Any, due: int = 0) -> Mapped:
        """Where the value is. What came from another process is copied first, on its device."""
        self.collect()
        head, found = split(value, on_device)
        tensors = [self._own(t) for t in found]
        devices = sorted({t.device for t in tensors}, key=str)
        signals = {device: self._ipc.signal(device) for device in devices}
        waiting = tuple(Pending(t, signals[t.device][0]) for t in tensors)
        local = Here(head, [], waiting, {device: stream_of(device) for device in devices})
        exported = self._export(tensors)
        with self._later:
            number = self._claims.begin()
            self._kept[number] = _Kept(local, exported)
        events = tuple(signal[1:] for signal in signals.values())
        return Mapped(self._claims.owner, self._claims.path, number, head, exported, events)

    def get(self, given: Mapped) -> Any:
        """The value. Raises StaleHandleError after its release, OwnerGoneError where its process died."""
        if given.owner == self._claims.owner:
            value = self._find(given).value
            self._count(shared=value.nbytes)
            return value.take()
        lease = Lease(given.claims, given.owner, given.number)
        tensors = [self._ipc.restore(args) for args in given.tensors]
        for gpu, handle in given.events:
            self._ipc.wait(gpu, handle)
        for tensor in tensors:
            self._hold(tensor, lease)
        self._count(shared=size(tensors))
        return join(given.head, tensors)

    def release(self, given: Mapped) -> None:
        """The memory goes when nobody has a lease. May be called from a finalizer. Once only."""
        self._find(given)
        self._later.add(given.number)

    def collect(self) -> None:
        """Let go of what was waiting for readers that are done, or dead."""
        with self._later:
            for number in [n for n, kept in self._kept.items() if kept.released]:
                self._let_go(number)

    def _find(self, given: Mapped) -> _Kept:
        kept = self._kept.get(given.number) if given.claims == self._claims.path else None
        if kept is None or kept.released:
            raise StaleHandleError(f"value {given.number} was released, or put by another transport")
        return kept

    def _let_go(self, number: int) -> None:
        """Under the lock."""
        kept = self._kept.get(number)
        if kept is None:
            return
        kept.released = True
        if self._claims.end(number):
            del self._kept[number]
            kept.value.done()
            for args in kept.tensors:
                self._ipc.settle(args)

    def _export(self, tensors: list[Any]) -> tuple[tuple[Any, ...], ...]:
        exported: list[tuple[Any, ...]] = []
        try:
            for tensor in tensors:
                exported.append(self._ipc.export(tensor))  # noqa: PERF401 - those so far are settled below
        except BaseException:
            for args in exported:
                self._ipc.settle(args)
            raise
        return tuple(exported)

    def _own(self, tensor: Any) -> Any:
        """The tensor in memory of this process, as plain as torch exports it."""
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.untyped_storage()._cdata not in self._borrowed:
            return plain
        self._count(copied=size([plain]))
        return plain.clone()

    def _hold(self, tensor: Any, lease: Lease) -> None:
        """The lease lasts as long as the tensor's storage, whoever has views of it."""
        storage = tensor.untyped_storage()
        self._borrowed.add(storage._cdata)
        end = weakref.finalize(
            storage, _end, lease, stream_of(tensor.device), self._borrowed.discard, storage._cdata
        )
        end.atexit = False


def _end(lease: Lease, stream: Any, discard: Any, key: int) -> None:
    """What reads the memory ends first. The lease is dropped with the last finalizer that has it."""
    discard(key)
    stream.synchronize()
