"""Values whose tensors stay on CUDA devices, handed on within a process, on one device or to another one.

"cuda": the tensors themselves travel, each with an event; the reader's stream waits for it, nobody else does.
"peer": as that, and what is on another device than the reader's is copied there, on side streams.
"staged": as that, to a reader that works on the host.

When not: for values without tensors of a device, which travel by reference; and "peer" between devices that
do not reach each other costs two copies by way of the host, so the plan should keep such steps together.

Never run on a GPU so far: read in torch 2.13, and tested with fakes. `benchmarks.cuda_paths` runs it all.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.buffers.device import Pending, peers, record
from pipeline.buffers.staging import Staging
from pipeline.buffers.transports import Counting
from pipeline.errors import PlanError

__all__ = [
    "CudaTransport",
    "Here",
    "PeerTransport",
    "StagedTransport",
    "carry",
    "here",
    "join",
    "on_device",
    "size",
    "split",
    "stream_of",
]


def split(
    value: Any, far: Callable[[Any], bool], buffers: list[Any] | None = None
) -> tuple[bytes, tuple[Any, ...]]:
    """The pickle of a value without its tensors, and these, each once. `far`: which objects are tensors.

    `buffers`: takes those of arrays, which then stay out of the pickle.
    """
    out = io.BytesIO()
    pickler = _Splitter(out, 5, buffer_callback=None if buffers is None else buffers.append)
    pickler.far = far
    pickler.found = {}
    pickler.dump(value)
    return out.getvalue(), tuple(tensor for _, tensor in pickler.found.values())


def join(head: bytes, tensors: Sequence[Any], buffers: Sequence[Any] = ()) -> Any:
    """The value; the way back of `split`."""
    unpickler = _Joiner(io.BytesIO(head), buffers=buffers)
    unpickler.tensors = tensors
    return unpickler.load()


class _Splitter(pickle.Pickler):
    far: Callable[[Any], bool]
    found: dict[int, tuple[int, Any]]

    def persistent_id(self, obj: Any) -> int | None:
        return self.found.setdefault(id(obj), (len(self.found), obj))[0] if self.far(obj) else None


class _Joiner(pickle.Unpickler):
    tensors: Sequence[Any]

    def persistent_load(self, number: int) -> Any:
        return self.tensors[number]


@dataclass(frozen=True, slots=True)
class Here:
    """A value within its process. `tensors`: with the events after which they are there.

    `writers`: the stream of the producer on each device; `readers`: of those who read.
    """

    head: bytes
    buffers: list[Any]
    tensors: tuple[Pending, ...]
    writers: dict[Any, Any]
    readers: set[Any] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return size(p.tensor for p in self.tensors)

    def __reduce__(self) -> Any:
        raise PlanError(
            "a value that stays in its process was sent to another one: plan that edge by cuda-ipc"
        )

    def take(self) -> Any:
        """The value, for the current streams of the caller."""
        tensors = [pending.take() for pending in self.tensors]
        self.readers.update(stream_of(device) for device in self.writers)
        return join(self.head, tensors, self.buffers)

    def done(self) -> None:
        """The producer's streams wait for the readers' before they use the memory again.

        `record_stream` sees to it already, except for exported tensors, which the allocator does not know.
        """
        for reader in self.readers:
            self.writers[reader.device].wait_stream(reader)


def here(value: Any) -> Here:
    """A value as it is handed on: work so far on the caller's streams comes first."""
    buffers: list[Any] = []
    head, tensors = split(value, is_tensor, buffers)
    events = {device: record(device) for device in {t.device for t in tensors if t.is_cuda}}
    waiting = tuple(Pending(t, events.get(t.device)) for t in tensors)
    return Here(head, buffers, waiting, {device: stream_of(device) for device in events})


class CudaTransport(Counting):
    """The tensors themselves, with events, to threads of the same process."""

    name = "cuda"

    def put(self, value: Any, due: int = 0) -> Here:
        """The value in parts; arrays and tensors are not copied."""
        return here(value)

    def get(self, given: Here) -> Any:
        """The value; what the caller's current streams do with it comes after what the producer did."""
        self._count(shared=given.nbytes)
        return given.take()

    def release(self, given: Here) -> None:
        """The producer's streams wait for the readers', and the memory goes with the last reference."""
        given.done()


class PeerTransport(CudaTransport):
    """As "cuda", and tensors of other devices are copied to the reader's current one."""

    name = "peer"

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self._staging = staging

    def get(self, given: Here) -> Any:
        """The value, with its tensors on the current device; those of the host stay there."""
        import torch

        device = torch.device("cuda", torch.cuda.current_device())
        far = size(p.tensor for p in given.tensors if p.tensor.is_cuda and p.tensor.device != device)
        self._count(shared=given.nbytes - far, copied=far)
        moved = [carry(p, device, self._staging).take() for p in given.tensors]
        streams = (stream_of(d) if d == device else self._staging.stream(d) for d in given.writers)
        given.readers.update(streams)
        return join(given.head, moved, given.buffers)


class StagedTransport(CudaTransport):
    """As "cuda", and tensors come to the host: for readers that have no device."""

    name = "staged"

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self._staging = staging

    def get(self, given: Here) -> Any:
        """The value, with its tensors on the host once they are there."""
        self._count(copied=size(p.tensor for p in given.tensors if p.tensor.is_cuda))
        moved = [self._staging.fetch(p) if p.tensor.is_cuda else p.tensor for p in given.tensors]
        given.readers.update(self._staging.stream(device) for device in given.writers)
        return join(given.head, moved, given.buffers)


def carry(given: Pending, device: Any, staging: Staging) -> Pending:
    """A tensor on its way to another device: directly between peers, else by way of the host.

    Torch copies on the current stream of the source and lets that of the target wait: both are side streams.
    """
    import torch

    source = given.tensor.device
    if source == device or not given.tensor.is_cuda:
        return given
    if not peers(source.index, device.index):
        return staging.upload(staging.fetch(given), device)
    with torch.cuda.stream(staging.stream(source)):
        tensor = given.take()
        with torch.cuda.stream(staging.stream(device)):
            target = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=device)
            return Pending(target.copy_(tensor, non_blocking=True), record(device))


def is_tensor(obj: Any) -> bool:
    """Whether an object is a tensor, of whatever device."""
    import torch

    return isinstance(obj, torch.Tensor)


def on_device(obj: Any) -> bool:
    """Whether an object is a tensor of a CUDA device."""
    return is_tensor(obj) and obj.is_cuda


def stream_of(device: Any) -> Any:
    """The current stream of the calling thread on a device."""
    import torch

    return torch.cuda.current_stream(device)


def size(tensors: Iterable[Any]) -> int:
    """Bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
