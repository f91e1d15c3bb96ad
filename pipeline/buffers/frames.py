"""Values taken apart: a small head, and the buffers of arrays and tensors beside it, not copied.

Pickle protocol 5 with buffers out of band (PEP 574), so that a new type of value needs nothing here. Arrays
that come back are views of the buffers given and cannot be written. Torch knows no read-only tensors: they
are views by the same right, and writing one in place changes what everybody else reads. Do not.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGN = 64
"""Buffers begin at multiples of it: a cache line, and what vector instructions like."""
INLINE = 1024
"""Buffers up to these bytes stay in the head, copied, so that many small arrays are one buffer. A guess."""
HEAD = 1024
"""Heads, with the places of their buffers, travel in the handle up to these bytes."""

_PLAIN = frozenset("biufcmMSUV")
"""Kinds of dtype whose items are their bytes; the others hold pointers."""


def pack(value: Any) -> tuple[bytes, list[memoryview]]:
    """The pickle of a value without its buffers, and those, each contiguous, none copied that already was."""
    buffers: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes > INLINE:
            buffers.append(raw)
        return raw.nbytes <= INLINE

    try:
        return _dump(pickle.Pickler, value, stays), buffers
    except (pickle.PicklingError, AttributeError):
        buffers.clear()
        return _dump(_by_value(), value, stays), buffers


def unpack(head: bytes | memoryview, buffers: Iterable[Any]) -> Any:
    """The value, as views of `buffers`. Only a tensor over a buffer that cannot be written is copied."""
    return pickle.loads(head, buffers=buffers)


def pack_whole(value: Any) -> bytes:
    """The pickle of a value with everything in it, for `unpack` without buffers."""
    try:
        return _dump(pickle.Pickler, value)
    except (pickle.PicklingError, AttributeError):
        return _dump(_by_value(), value)


def _dump(kind: type[pickle.Pickler], value: Any, callback: Any = None) -> bytes:
    out = io.BytesIO()
    pickler = kind(out, protocol=5, buffer_callback=callback)
    own = {} if kind is pickle.Pickler else kind.dispatch_table
    pickler.dispatch_table = {**own, **_reducers()}
    pickler.dump(value)
    return out.getvalue()


def _by_value() -> type[pickle.Pickler]:
    """For types that other processes cannot import: those of a function or a script."""
    import cloudpickle

    kind: type[pickle.Pickler] = cloudpickle.CloudPickler
    return kind


def places(sizes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Offset and bytes of buffers that lie side by side in a block, each aligned."""
    given = list(sizes)
    ends = accumulate((-(-n // ALIGN) * ALIGN for n in given), initial=0)
    return tuple(zip(ends, given, strict=False))


def fold(
    head: bytes, buffers: list[memoryview]
) -> tuple[bytes, tuple[tuple[int, int], ...], list[memoryview]]:
    """Head and frames for a handle, and the buffers of the block.

    A long head, or one with many buffers, becomes the first buffer, so that the handle stays small.
    """
    sizes = tuple(b.nbytes for b in buffers)
    if len(head) + 8 * len(sizes) <= HEAD:
        return head, places(sizes), buffers
    first = memoryview(pickle.dumps((head, sizes), protocol=5))
    return b"", places((first.nbytes,)), [first, *buffers]


def unfold(head: bytes, frames: Sequence[tuple[int, int]], block: memoryview) -> Any:
    """The value whose buffers lie in `block`; the way back of `fold`."""
    if not head:
        ((start, size),) = frames
        head, sizes = pickle.loads(block[start : start + size])
        frames = places((size, *sizes))[1:]
    return unpack(head, [block[start : start + size] for start, size in frames])


def _reducers() -> dict[type, Callable[[Any], Any]]:
    """How types are taken apart. Where torch is not imported, no tensor can have come in."""
    found = {**copyreg.dispatch_table, np.ndarray: _reduce_array, np.memmap: _reduce_array}
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return found if tensor is None else {**found, tensor: _reduce_tensor}


def _reduce_array(array: NDArray[Any]) -> Any:
    kind = array.dtype
    if kind.kind not in _PLAIN or kind.hasobject or kind.itemsize == 0:
        return np.asarray(array).__reduce_ex__(5)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = np.ascontiguousarray(array.T if order == "F" else array).reshape(-1).view(np.uint8)
    return _array, (pickle.PickleBuffer(flat.data.toreadonly()), kind, array.shape, order)


def _array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    if not memoryview(buffer).nbytes:
        return np.ndarray(shape, dtype, buffer, order=order)
    # not np.ndarray(buffer=...), whose base is what lies below the view and may be set writeable again
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape, order=order)


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    learns = tensor.requires_grad and tensor.is_leaf
    return _tensor, (
        pickle.PickleBuffer(plain.view(torch.uint8).numpy()), tensor.dtype, tuple(tensor.shape), learns,
    )  # fmt: skip


def _tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], learns: bool) -> Any:
    import torch

    view = memoryview(buffer)
    if view.nbytes == 0:
        return torch.empty(shape, dtype=dtype, requires_grad=learns)
    # torch warns of memory that it cannot write, and would write it nevertheless
    raw = torch.frombuffer(bytearray(view) if view.readonly else buffer, dtype=torch.uint8)
    return raw.view(dtype).view(shape).requires_grad_(learns)
