"""How values go through Dask where they travel as bytes: their buffers as they are, beside a small head.

Dask pickles what it does not know: a tensor in it is then copied once more, and a bfloat16 tensor by itself
is refused (`t.numpy()`). It takes a tensor for 80 bytes, and rows for 48. Here any tensor and any `Rows` is
taken apart as for shared memory (`pipeline.buffers.frames`), and says its real size. What comes with a
context, and what does not (a value that is spilled to disk), is treated alike: it always becomes bytes.
"""

from __future__ import annotations

import sys
from typing import Any

from pipeline.buffers.frames import pack, unpack
from pipeline.rows import Rows
from pipeline.worker import Made


def register() -> None:
    """Tell Dask, in this process: the client and every worker need it. To do it again changes nothing."""
    from dask.sizeof import sizeof
    from distributed.protocol.serialize import dask_deserialize, dask_serialize

    for kind in (Rows, Made):
        dask_serialize.register(kind, _apart)
        dask_deserialize.register(kind, _together)
        sizeof.register(kind, size)
    if "torch" in sys.modules:
        _register_torch()
        return
    # Dask's own registration comes with the first tensor, and would replace ours: ours comes then too
    for table in (dask_serialize, dask_deserialize, sizeof):
        table.register_lazy("torch", _register_torch)


def size(value: Any) -> int:
    """Bytes that a value takes in this process. What lies in shared memory is not its holder's."""
    if isinstance(value, Made):
        travels = len(value.given) if isinstance(value.given, bytes) else 0
        return sys.getsizeof(value) + travels + (0 if value.rows is None else size(value.rows))
    return sys.getsizeof(value) + int(value.nbytes)


def _apart(value: Any) -> tuple[dict[str, Any], list[Any]]:
    head, buffers = pack(value)
    return {}, [head, *buffers]


def _together(header: dict[str, Any], frames: list[Any]) -> Any:
    return unpack(frames[0], frames[1:])


def _register_torch() -> None:
    import distributed.protocol.torch  # noqa: F401 - first, since it would replace what follows
    import torch
    from dask.sizeof import sizeof
    from distributed.protocol.serialize import dask_deserialize, dask_serialize

    for kind in (torch.Tensor, torch.nn.Parameter):
        dask_serialize.register(kind, _apart)
        dask_deserialize.register(kind, _together)
        sizeof.register(kind, lambda tensor: sys.getsizeof(tensor) + tensor.untyped_storage().nbytes())
