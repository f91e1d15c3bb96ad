"""int8 with a scale per row: the error bound, what is refused, and what it costs a search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pipeline.buffers.quantized import Quantized, report, shrink

Array = NDArray[np.floating]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9)


UNIT = {"float32": 2.0**-23, "float16": 2.0**-11 + 2.0**-23}
"""Relative rounding errors: of the quotient and the product, in float32, and of float16."""
LEAST = {"float32": 2.0**-150, "float16": 2.0**-25}
"""Half of the smallest number above 0: the rounding error of what is nearly 0."""


def bound(small: Quantized) -> NDArray[np.float64]:
    """float64 [B]: half a step, and the rounding of the largest element."""
    return small.scales.astype(np.float64) * (0.5 + 127 * UNIT[small.dtype]) + LEAST[small.dtype]


def finite(dtype: type[np.floating]) -> st.SearchStrategy[Array]:
    width = np.dtype(dtype).itemsize * 8
    elements = st.floats(allow_nan=False, allow_infinity=False, width=width)  # type: ignore[arg-type]
    return hnp.arrays(dtype, SHAPES, elements=elements)


@settings(deadline=None)
@given(st.one_of(finite(np.float32), finite(np.float16)))
def test_no_element_is_further_off_than_the_bound(array: Array) -> None:
    small = shrink(array)
    restored = small.restore()
    assert (restored.shape, restored.dtype) == (array.shape, array.dtype)
    error = np.abs(array.astype(np.float64) - restored).reshape(small.values.shape)
    assert (error <= bound(small)[:, None]).all()


@pytest.mark.parametrize("unit", [2.0**-24, 2.0**-10, 1.0])
def test_the_bound_counts_the_rounding_of_float16(unit: float) -> None:
    array = np.array([np.arange(top - 190, top + 1) * unit for top in range(190, 1900, 9)]).astype(np.float16)
    small = shrink(array)
    error = np.abs(array.astype(np.float64) - small.restore())
    assert (error <= bound(small)[:, None]).all()
    assert (error > 0.5001 * small.scales[:, None]).any()


@given(finite(np.float32))
def test_the_bound_is_half_a_step_and_a_step_a_127th_of_the_largest(array: Array) -> None:
    small = shrink(array)
    top = np.abs(array).max(axis=-1, initial=0).reshape(-1).astype(np.float64)
    assert small.values.min(initial=0) >= -127
    assert (bound(small) <= 0.501 * np.maximum(top / 127, 1.2e-38)).all()


def test_rows_have_their_own_scale() -> None:
    small = shrink(np.array([[1.0, -127.0], [0.001, 0.127]], np.float32))
    assert small.values.tolist() == [[1, -127], [1, 127]]
    assert small.scales == pytest.approx([1.0, 0.001])


def test_rows_of_zeros_and_the_largest_numbers_come_back() -> None:
    top = np.finfo(np.float32).max
    array = np.array([[0, 0, 0], [top, -top, 0], [1e-45, 0, 0]], np.float32)
    restored = shrink(array).restore()
    assert restored[0].tolist() == [0, 0, 0]
    assert restored[1] == pytest.approx(array[1], rel=1e-6)
    assert np.abs(restored[2]).max() <= 1e-38


def test_what_was_shrunk_once_is_not_changed_again() -> None:
    array = np.random.default_rng(0).standard_normal((20, 16)).astype(np.float32)
    once = shrink(array)
    assert np.array_equal(shrink(once.restore()).values, once.values)


def test_many_rows_are_as_one_by_one() -> None:
    array = np.random.default_rng(0).standard_normal((3, 50, 1000)).astype(np.float32)
    one_by_one = [shrink(row[None]).values[0] for row in array.reshape(-1, 1000)]
    assert np.array_equal(shrink(array).values, one_by_one)


def test_arrays_that_are_not_contiguous_are_taken_as_they_are() -> None:
    array = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    assert np.array_equal(shrink(array.T).values, shrink(array.T.copy()).values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_row_that_is_not_finite_is_named(bad: float) -> None:
    array = np.zeros((4, 3), np.float32)
    array[2, 1] = bad
    with pytest.raises(ValueError, match="row 2 holds NaN or infinity"):
        shrink(array)
    with pytest.raises(ValueError, match="row 1, 0 holds"):
        shrink(array.reshape(2, 2, 3))
    with pytest.raises(ValueError, match="row 0 holds"):
        shrink(array[2])


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros(3, np.int32), np.float32(1).reshape(())])
def test_other_arrays_are_refused(array: Array) -> None:
    with pytest.raises(ValueError, match="carry rows of float32 or float16"):
        shrink(array)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_row_takes_a_byte_an_element_and_four_for_its_scale(dtype: type[np.floating]) -> None:
    assert shrink(np.ones((10, 384), dtype)).nbytes == 10 * 388


def test_an_empty_array_has_no_error() -> None:
    for shape in ((0, 8), (8, 0)):
        array = np.zeros(shape, np.float32)
        assert shrink(array).restore().shape == shape
        assert report(array, shrink(array)) == 0


def test_the_largest_error_is_reported_as_a_part_of_its_row() -> None:
    array = np.array([[100.0, 0.0], [0.0, 0.0], [1.0, 0.5]], np.float32)
    off = Quantized(
        np.array([[100, 0], [0, 0], [9, 5]], np.int8), np.array([1, 1, 0.1], np.float32), (3, 2), "float32"
    )
    assert report(array, off) == pytest.approx(0.1)


@settings(deadline=None)
@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(-1000, 1000, width=32)))
def test_no_row_is_off_by_more_than_a_254th_of_its_largest(array: Array) -> None:
    small = shrink(np.where(np.abs(array) < 1e-30, 0, array).astype(np.float32))
    assert report(small.restore(), small) == 0
    assert report(np.where(np.abs(array) < 1e-30, 0, array).astype(np.float32), small) <= 1.001 / 254


@pytest.mark.parametrize("width", [64, 384])
def test_an_exact_search_loses_less_than_one_neighbour_in_a_hundred(width: int) -> None:
    draw = np.random.default_rng(7)
    vectors = draw.standard_normal((2200, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries, corpus = vectors[:200], vectors[200:]
    exact = nearest(queries @ corpus.T, 100)
    found = nearest(queries @ shrink(corpus).restore().T, 100)
    kept = np.mean([len(a & b) / 100 for a, b in zip(exact, found, strict=True)])
    assert 0.99 < kept < 1


def nearest(scores: Array, k: int) -> list[set[int]]:
    return [set(row) for row in np.argpartition(-scores, k, axis=1)[:, :k].tolist()]
