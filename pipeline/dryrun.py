"""When tensors begin and end, and so what a call takes at its peak: best on the meta device, without data.

The record, replayed through `pipeline.allocator`, gives peak memory before the run: xMem (Shi et al. 2025,
arXiv 2510.21048) without what belongs to training. On the meta device, where nothing is computed, attention
is taken to be fused, as the kernels for CPUs and CUDA are: its scores [S, S] are never there. A call on real
tensors is recorded as it is, on any device. Workspaces of kernels are not seen. Imports torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from pipeline.allocator import Event, Peak, peak

__all__ = ["peak_of", "trace"]


def peak_of(call: Callable[[], Any]) -> Peak:
    """The peak of what `call` makes, beside the tensors that it is given."""
    return peak(trace(call))


def trace(call: Callable[[], Any]) -> tuple[Event, ...]:
    """The tensors that `call` makes, in order; those that were there, and what it returns, do not end."""
    import torch

    record = _Record()
    with torch.no_grad(), _fused_attention(), _watched(record):
        result = call()
    events = tuple(record.events)  # before the result ends
    del result
    return events


class _Record:
    """Events so far, and the storages that are alive, by address; None for one that was there before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._known: dict[int, tuple[Any, int | None]] = {}
        self._next = 0

    def see(self, value: Any, new: bool) -> None:
        """Look at the tensors in `value`: results of an operation, or what it was given."""
        import torch
        from torch.utils._pytree import tree_leaves

        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage(), new)

    def _see(self, storage: Any, new: bool) -> None:
        address = storage._cdata
        if address in self._known or (new and not storage.nbytes()):
            return
        block = self._next if new else None
        if block is not None:
            self._next += 1
            self.events.append(Event(block, storage.nbytes()))
        self._known[address] = weakref.ref(storage, lambda _: self._end(address)), block

    def _end(self, address: int) -> None:
        _, block = self._known.pop(address)
        if block is not None:
            self.events.append(Event(block))


def _watched(record: _Record) -> Any:
    """A mode that shows `record` what each operation takes and gives.

    Without data a number that is asked for is 0: a mask, say, is never found to be all ones.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    number = torch.ops.aten._local_scalar_dense.default

    class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            record.see((args, kwargs), new=False)
            if func is number and args[0].is_meta:
                return 0
            made = func(*args, **(kwargs or {}))
            record.see(made, new=True)
            return made

    return Watched()  # type: ignore[no-untyped-call]


def _fused_attention() -> Any:
    """A mode in which attention on the meta device makes its result and nothing else."""
    import torch
    from torch.overrides import TorchFunctionMode

    attention = torch.nn.functional.scaled_dot_product_attention

    class Fused(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            query, _, value = (*args, *(kwargs or {}).values())[:3] if func is attention else (None,) * 3
            if query is None or not query.is_meta:
                return func(*args, **(kwargs or {}))
            return query.new_empty(*query.shape[:-1], value.shape[-1])

    return Fused()
