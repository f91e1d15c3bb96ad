"""Every form of a product gives what the plain one gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm import linear
from stages.llm.linear import INT8, Int8, Linear, Mkl, OneDnn, Plain, forms
from tests.llm_models import one_thread

EXACT = [("float32", 1e-5), ("bfloat16", 1e-2)]
ROWS = st.integers(1, 40)

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


def random(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def form(device: str, dtype: str, quantise: str = "") -> Any:
    return forms(device, dtype, quantise)


def fastest(weight: Any, bias: Any = None) -> Linear:
    """`weight` in the form of its device and dtype."""
    return forms(weight.device.type, str(weight.dtype).removeprefix("torch."))(weight, bias)


def eight_bits() -> None:
    import torch

    if "onednn" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no 8-bit products")


@settings(deadline=None)
@given(ROWS, st.integers(1, 70), st.integers(1, 70), st.booleans(), st.sampled_from(EXACT))
def test_the_form_of_a_cpu_equals_the_plain_product(
    rows: int, inputs: int, outputs: int, has_bias: bool, kind: tuple[str, float]
) -> None:
    import torch

    dtype = getattr(torch, kind[0])
    weight, x = random(outputs, inputs).to(dtype), random(rows, inputs, seed=1).to(dtype)
    bias = random(outputs, seed=2).to(dtype) if has_bias else None
    found, right = fastest(weight, bias)(x), Plain(weight, bias)(x)
    assert (found.dtype, found.shape) == (dtype, right.shape)
    assert float((found.float() - right.float()).abs().max()) <= kind[1] * float(right.abs().max() + 1)


@pytest.mark.parametrize(("made", "dtype"), [(Mkl, "float32"), (OneDnn, "bfloat16")])
def test_one_form_serves_any_number_of_rows(made: Callable[..., Linear], dtype: str) -> None:
    import torch

    if form("cpu", dtype) is Plain:
        pytest.skip("this CPU has no such form")
    weight, bias = random(24, 40).to(getattr(torch, dtype)), random(24, seed=1).to(getattr(torch, dtype))
    product = made(weight, bias)
    for rows in (*range(1, 41), 2, 300, 1):
        x = random(rows, 40, seed=rows).to(weight.dtype)
        assert torch.allclose(product(x).float(), Plain(weight, bias)(x).float(), rtol=1e-2, atol=5e-2)


def test_a_row_of_a_slice_is_read_where_it_lies() -> None:
    """Heads and gates are views into wider results."""
    import torch

    weight = random(24, 40)
    wide = random(6, 90)
    for x in (wide[:, 50:], wide[::2, :40], random(40, 6).T):
        assert torch.allclose(fastest(weight)(x), x @ weight.T, rtol=1e-4, atol=1e-4)


@settings(deadline=None)
@given(ROWS, st.integers(0, 1000), st.booleans())
def test_eight_bits_are_near(rows: int, seed: int, has_bias: bool) -> None:
    """Rounding a weight and an input is off by at most half a step of each: the bound of the sum (ours)."""
    eight_bits()
    weight, x = random(24, 64, seed=seed), random(rows, 64, seed=seed + 1) * 10.0 ** (seed % 5 - 2)
    bias = random(24, seed=seed + 2) if has_bias else None
    found, right = Int8(weight, bias)(x), Plain(weight, bias)(x)
    step_x = x.abs().amax(1, keepdim=True) / 127.5
    step_w = weight.abs().amax(1) / 127
    # sum |x| dw + |w| dx + dx dw, with dx and dw at most a step each (half, and the zero point's rounding)
    bound = x.abs().sum(1, keepdim=True) * step_w / 2 + weight.abs().sum(1) * step_x + 64 * step_x * step_w
    assert bool(((found - right).abs() <= bound + 1e-5).all())
    assert float((found - right).pow(2).mean().sqrt()) < 0.03 * float(right.pow(2).mean().sqrt())


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(0, 1000), st.booleans())
def test_a_row_of_eight_bits_does_not_depend_on_its_neighbours(rows: int, seed: int, lopsided: bool) -> None:
    import torch

    eight_bits()
    product, x = Int8(random(24, 64), random(24, seed=1)), random(rows, 64, seed=seed)
    if lopsided:
        x = x.abs()
        x[1:] *= -1000
    together = product(x)
    assert torch.equal(torch.cat([product(x[i : i + 1]) for i in range(rows)]), together)


def test_rows_and_weights_of_zeros_stay_zeros() -> None:
    eight_bits()
    weight = random(8, 16)
    weight[3] = 0
    x = random(3, 16)
    x[1] = 0
    found = Int8(weight)(x)
    assert not found[1].any()
    assert not found[:, 3].any()
    assert found.isfinite().all()


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    import torch

    eight_bits()
    x = random(4, 16)
    product = Int8(random(8, 16))
    right = product(x[[0, 1, 3]])
    x[2, 5] = float("nan")
    found = product(x)
    assert torch.equal(found[[0, 1, 3]], right)
    assert not found[2].isfinite().any()


def test_eight_bits_take_bfloat16_as_well() -> None:
    import torch

    eight_bits()
    x = random(5, 64).bfloat16()
    weight = random(24, 64).bfloat16()
    found = form("cpu", "bfloat16", INT8)(weight)(x)
    assert found.dtype == torch.bfloat16
    assert float((found - Plain(weight)(x)).abs().max()) < 0.05 * float(Plain(weight)(x).abs().max())


def test_bytes_are_those_of_the_weights() -> None:
    import torch

    assert fastest(random(10, 20)).nbytes == 800
    assert fastest(random(10, 20).to(torch.bfloat16)).nbytes == 400
    assert Plain(random(10, 20)).nbytes == 800


class Wrong(Plain):
    """A form that is right for one row only."""

    def __call__(self, x: Any) -> Any:
        found = super().__call__(x)
        return found if len(x) == 1 else found + 1


class Deaf(Plain):
    """A form that knows no bias."""

    def __call__(self, x: Any) -> Any:
        return Plain(self.weight)(x)


class Missing:
    """A form whose operator this torch does not have."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        import torch

        torch.ops.mkl._no_such_operator(weight)


class Unfit(Plain):
    """A form whose operator does not take these rows."""

    def __call__(self, x: Any) -> Any:
        raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize("made", [Wrong, Deaf, Missing, Unfit])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_form_that_is_wrong_is_not_used(
    made: Callable[..., Linear], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(linear._FORMS, dtype, made)
    assert form("cpu", dtype) is Plain


def test_accelerators_and_other_dtypes_have_the_plain_form() -> None:
    assert form("cuda:0", "bfloat16") is Plain
    assert form("cuda:0", "float32", INT8) is Plain
    assert form("cpu", "float16") is Plain
