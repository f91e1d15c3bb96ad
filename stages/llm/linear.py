"""Matrix products with fixed weights, in the form that this device multiplies fastest.

The kernels of a CPU bring weights into their own order at every call, which costs more than the product
where few rows share it. Here that is done once, when a model is opened. A form is used only where a small
product in it agrees with the plain one: the operators behind it are not part of torch's promised interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["INT8", "Linear", "Plain", "forms"]

INT8 = "int8"
_TRIAL = (48, 96)
"""Outputs and inputs of the trial product; its rows are those of `_ROWS`, as batches have any size."""
_ROWS = (1, 3, 17)
_ROWS_HINT = 512
"""Rows that weights are ordered for. MKL then is at its fastest with any number from 1 to 1,024; ordered
for 16 rows it takes a quarter longer with 512, and for 2,048 half longer with few (measured, SmolLM2's
shapes).
"""
_LARGEST = 127
_CLOSE = {"float32": 1e-4, "bfloat16": 3e-2}


class Linear(Protocol):
    """`x W^T + b`: [M, in] to [M, out] in the dtype of `x`."""

    nbytes: int

    def __call__(self, x: Any) -> Any:
        """The product."""


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """As torch has it: on accelerators, and wherever nothing else is known to be right."""

    weight: Any
    bias: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return int(self.weight.numel() * self.weight.element_size())

    def __call__(self, x: Any) -> Any:
        """The product."""
        from torch.nn.functional import linear

        return linear(x, self.weight, self.bias)


class Mkl:
    """float32 in the order of MKL. It must be told the rows of each product, but fits all of them."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        import torch

        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, _ROWS_HINT)
        self._shape = weight.new_empty(1).expand(weight.shape)  # only its shape is looked at
        self._bias = bias
        self._product: Callable[..., Any] = torch.ops.mkl._mkl_linear
        self.nbytes = int(weight.numel() * weight.element_size())

    def __call__(self, x: Any) -> Any:
        """The product."""
        return self._product(x, self._packed, self._shape, self._bias, x.shape[0])


class OneDnn:
    """bfloat16 in the order of oneDNN, for AMX and AVX-512 BF16."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        import torch

        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        self._bias = bias
        self._product: Callable[..., Any] = torch.ops.mkldnn._linear_pointwise
        self.nbytes = int(weight.numel() * weight.element_size())

    def __call__(self, x: Any) -> Any:
        """The product."""
        return self._product(x, self._packed, self._bias, "none", [], "")


class Int8:
    """8-bit weights with a scale for each output, and 8-bit rows with a scale each, whatever the others are.

    The kernel has one scale for all rows; rows that are first divided by their own largest element share it,
    so a row's result does not depend on its neighbours (ours). Rows are unsigned with 128 for 0, as AVX-512
    VNNI multiplies them.
    """

    def __init__(self, weight: Any, bias: Any = None) -> None:
        import torch

        w = weight.float()
        self._scales = (w.abs().amax(1) / _LARGEST).clamp_min(1e-12)
        whole = (w / self._scales[:, None]).round().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self._zeros = torch.zeros(len(w), dtype=torch.long)
        self._bias = bias
        self._product: Callable[..., Any] = torch.ops.onednn.qlinear_pointwise
        self.nbytes = int(weight.numel())

    def __call__(self, x: Any) -> Any:
        """The product."""
        import torch

        largest = x.abs().amax(-1, keepdim=True).float().clamp_min_(1e-12)
        rows = (x * (_LARGEST / largest)).round_().add_(128).to(torch.uint8)
        weight = (self._packed, self._scales, self._zeros)
        how: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
        made = self._product(rows, 1 / _LARGEST, 128, *weight, None, *how).mul_(largest).to(x.dtype)
        return made if self._bias is None else made.add_(self._bias)


_FORMS: dict[str, Callable[..., Linear]] = {"float32": Mkl, "bfloat16": OneDnn}


def forms(device: str, dtype: str, quantise: str = "") -> Callable[..., Linear]:
    """The class to make products of on a torch device ("cpu", "cuda:0") and in a dtype ("float32", ...)."""
    if quantise == INT8 and device == "cpu":
        return Int8
    form = _FORMS.get(dtype) if device == "cpu" else None
    if form is None or not _is_right(form, dtype):
        return Plain  # type: ignore[return-value]
    return form


def _is_right(form: Callable[..., Linear], dtype: str) -> bool:
    import torch

    made = torch.Generator().manual_seed(0)
    weight = torch.randn(_TRIAL, generator=made).to(getattr(torch, dtype))
    bias = torch.randn(_TRIAL[0], generator=made).to(weight.dtype)
    try:
        product = form(weight, bias)
        for rows in _ROWS:
            x = torch.randn(rows, _TRIAL[1], generator=made).to(weight.dtype)
            found, right = product(x).float(), Plain(weight, bias)(x).float()
            if not torch.allclose(found, right, rtol=_CLOSE[dtype], atol=_CLOSE[dtype] * 10):
                return False
    except (RuntimeError, AttributeError, NotImplementedError):  # no such operator, or none for these
        return False
    return True
