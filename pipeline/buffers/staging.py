"""Between the host and CUDA devices: uploads and downloads by pinned buffers, on streams of their own.

Upload, run and download are separate steps (HPXCL, Diehl et al., arXiv 1810.11482), for
`pipeline.buffers.stations`; an upload returns when its copy is under way.

When not: what finds no room in the pool goes by pageable memory, as torch does by itself, and so does
everything with a pool of no bytes. One thread that waits for every copy gains nothing by this.

Never run on a GPU so far: read in torch 2.13, and tested with fakes. `benchmarks.cuda_paths` runs it all.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.buffers.device import Pending, record
from pipeline.buffers.pinned import Pinned, ended

__all__ = ["Staging"]


class Staging:
    """Uploads and downloads, each on a side stream of the calling thread and its device.

    `pool`: the buffers; one for all threads of a process. Streams belong to a thread, so any thread may call.
    """

    def __init__(self, pool: Pinned) -> None:
        self.pool = pool
        self._local = threading.local()
        self._registered: dict[int, int] = {}
        self._sources: list[tuple[Any, Any]] = []
        self._lock = threading.Lock()

    def stream(self, device: Any) -> Any:
        """The side stream of this thread on a device."""
        import torch

        streams: dict[str, Any] = self._local.__dict__.setdefault("streams", {})
        if str(device) not in streams:
            streams[str(device)] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return streams[str(device)]

    def upload(self, array: Any, device: Any) -> Pending:
        """An array, or a tensor of the host, on its way to a device ("cuda:0"); `take` it there.

        What lies in registered memory is copied from where it is, and kept until then; all else by way of a
        pinned buffer. The caller may change the array once this returns, unless it is registered.
        """
        import torch

        dtype, nbytes = _kind(array)
        side = self.stream(device)
        direct = nbytes > 0 and self._covers(array)
        memory = self.pool.take(nbytes) if nbytes and not direct else None
        with self.pool.used(memory), torch.cuda.stream(side):
            host = _alias(array, dtype) if memory is None else _fill(memory, array, dtype, nbytes)
            target = torch.empty(tuple(array.shape), dtype=dtype, device=device)
            target.copy_(host, non_blocking=direct or memory is not None)
            event = record(device)
        if memory is not None:
            self.pool.give(memory, event)
        elif direct:
            self._keep(array, event)
        return Pending(target, event)

    def fetch(self, given: Pending) -> Any:
        """A device's tensor on the host, contiguous, once it is there; its buffer is reused after its end."""
        import torch

        tensor, side = given.tensor, self.stream(given.tensor.device)
        nbytes = tensor.numel() * tensor.element_size()
        memory = self.pool.take(nbytes) if nbytes else None
        with self.pool.used(memory):
            with torch.cuda.stream(side):
                tensor = given.take()
                if memory is None:
                    return tensor.cpu().contiguous()
                host = memory[:nbytes].view(tensor.dtype).view(tensor.shape)
                host.copy_(tensor, non_blocking=True)
                event = record(tensor.device)
            event.synchronize()
        return self._lend(memory, nbytes).view(tensor.dtype).view(tensor.shape)

    def download(self, given: Pending) -> NDArray[Any]:
        """`fetch`, as an array. Raises TypeError for a dtype that numpy lacks, such as bfloat16."""
        return np.asarray(self.fetch(given).numpy())

    def register(self, memory: Any) -> bool:
        """Pin memory that exists, such as an arena's mapping; False where CUDA refuses, and copies go on.

        Call `unregister` before the memory is unmapped.
        """
        import torch

        address, nbytes = _range(memory)
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(address, nbytes, 0)):
            _forgive()
            return False
        with self._lock:
            self._registered[address] = nbytes
        return True

    def unregister(self, memory: Any) -> None:
        """Wait for the copies from it, and let it be as before. Nothing where it is not registered."""
        import torch

        address, _ = _range(memory)
        with self._lock:
            found = self._registered.pop(address, None)
            events = [event for event, _ in self._sources]
        if found is not None:
            for event in events:
                event.synchronize()
            self._keep(None, None)
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostUnregister(address)):
                _forgive()

    def _covers(self, array: Any) -> bool:
        """Whether an array is contiguous, and within registered memory."""
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            return False
        start, end = array.ctypes.data, array.ctypes.data + array.nbytes
        with self._lock:
            return any(a <= start and end <= a + n for a, n in self._registered.items())

    def _keep(self, array: Any, event: Any) -> None:
        """Hold an array until its copy has ended; let go of those whose copy has."""
        with self._lock:
            kept = [pair for pair in self._sources if not ended(pair[0])]
            self._sources = kept if event is None else [*kept, (event, array)]

    def _lend(self, memory: Any, nbytes: int) -> Any:
        """The first bytes of a buffer, as a storage of their own at whose end the buffer is idle again."""
        import torch

        lent = torch.frombuffer(memory.numpy(), dtype=torch.uint8, count=nbytes)
        weakref.finalize(lent.untyped_storage(), self.pool.give, memory).atexit = False
        return lent


def _kind(array: Any) -> tuple[Any, int]:
    """The torch dtype of an array or tensor, and its bytes."""
    import torch

    if isinstance(array, torch.Tensor):
        return array.dtype, array.numel() * array.element_size()
    return torch.from_numpy(np.empty(0, array.dtype)).dtype, array.nbytes


def _fill(memory: Any, array: Any, dtype: Any, nbytes: int) -> Any:
    """The values of an array, contiguous in a buffer."""
    if isinstance(array, np.ndarray):
        np.copyto(memory.numpy()[:nbytes].view(array.dtype).reshape(array.shape), array)
    else:
        memory[:nbytes].view(dtype).view(array.shape).copy_(array)
    return memory[:nbytes].view(dtype).view(tuple(array.shape))


def _alias(array: Any, dtype: Any) -> Any:
    """An array as a tensor over the same bytes where it is contiguous; only to be read.

    Not by `torch.from_numpy`, which warns of arrays that cannot be written.
    """
    import torch

    if isinstance(array, torch.Tensor):
        return array
    if not array.nbytes:
        return torch.empty(array.shape, dtype=dtype)
    whole = np.ascontiguousarray(array)
    raw = (ctypes.c_char * whole.nbytes).from_address(whole.ctypes.data)
    raw.owner = whole  # type: ignore[attr-defined]  # it lives as long as the tensor
    return torch.frombuffer(raw, dtype=dtype).view(array.shape)


def _range(memory: Any) -> tuple[int, int]:
    """Address and bytes of a buffer that can be written, such as an mmap."""
    view = np.frombuffer(memory, np.uint8)
    return view.ctypes.data, view.nbytes


def _forgive() -> None:
    """Take CUDA's last error away, which the next kernel would report as its own. Ours: not documented."""
    import torch

    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        return
