"""Admission: what a batch takes, and the largest one that fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.memory import Footprint, footprint, largest_batch
from pipeline.roofline import Cost, Flow, Work

GIB = float(1 << 30)


def need(resident: float, row: float) -> Callable[[int], Footprint]:
    return lambda batch: Footprint(resident, row * batch, 0.0)


def test_a_batch_takes_what_stays_what_it_works_in_and_its_values() -> None:
    work = Work(4, {"a": Flow(4, nbytes=10), "index": Flow(1, nbytes=100)})
    found = footprint(Cost(Flow(8, nbytes=5), resident=1000, scratch=50), work)
    assert found == Footprint(1000, 50, 40 + 100 + 40)
    assert found.nbytes == 1230


@pytest.mark.parametrize(("room", "batch"), [(200.0, 64), (164.0, 64), (163.0, 32), (116.0, 16), (101.0, 1)])
def test_a_batch_is_halved_until_it_fits(room: float, batch: int) -> None:
    assert largest_batch("said", 64, need(100, 1), room) == batch


def test_where_weights_do_not_fit_the_error_says_by_how_much() -> None:
    with pytest.raises(PlanError) as caught:
        largest_batch("said", 16, need(10 * GIB, GIB), 8 * GIB)
    text = str(caught.value)
    assert "step 'said' needs 11.00 GiB for one row, but 8.00 GiB are free" in text
    assert "a device with 3.00 GiB more" in text
    assert "10.00 GiB" in text
    assert "dtype" in text


def test_where_one_row_is_too_large_the_error_says_shorter_rows() -> None:
    with pytest.raises(PlanError, match=r"shorter rows: 9\.00 GiB are for the row alone"):
        largest_batch("said", 16, need(GIB, 9 * GIB), 8 * GIB)


@given(st.integers(1, 4096), st.floats(0, 1e6), st.floats(1, 1e4), st.floats(0, 1e8))
def test_it_is_the_first_of_the_halves_that_fits(
    batch: int, resident: float, row: float, room: float
) -> None:
    halves = [batch]
    while halves[-1] > 1:
        halves.append(halves[-1] // 2)
    fitting = [b for b in halves if resident + row * b <= room]
    if fitting:
        assert largest_batch("s", batch, need(resident, row), room) == fitting[0]
    else:
        with pytest.raises(PlanError):
            largest_batch("s", batch, need(resident, row), room)
