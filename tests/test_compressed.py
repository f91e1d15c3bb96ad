"""int8 on an edge: off unless allowed, only where it pays, a quarter of the bytes, little lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.buffers.frames import pack_whole, unpack
from pipeline.compressed import DASK, LEAST, RESTORE, SHRINK, Shrunk, pays, shrunk
from pipeline.rows import Rows
from pipeline.timeline import Counts
from pipeline.values import Embeddings


def vectors(count: int, width: int = 384, seed: int = 0) -> Embeddings:
    found = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return Embeddings(tuple((f"d{i}",) for i in range(count)), found)


def back(rows: Rows, link: float = DASK) -> tuple[Any, Counts, int]:
    """The rows as their reader has them, what was counted, and the bytes of the message."""
    moved = Counts()
    message = pack_whole(shrunk(rows, link, moved))
    found = unpack(message, ())
    return found.restore() if isinstance(found, Shrunk) else found, moved, len(message)


@settings(deadline=None)
@given(st.floats(1e-30, 1e30), st.integers(0, 2**32 - 1))
def test_no_element_is_off_by_more_than_is_reported_and_that_is_bounded(unit: float, seed: int) -> None:
    rows = vectors(8, 512, seed)
    rows = Embeddings(rows.ids, (rows.vectors * np.float32(unit)).astype(np.float32))
    found, moved, _ = back(rows)
    top = np.abs(rows.vectors).max(axis=1, keepdims=True)
    off = float((np.abs(found.vectors - rows.vectors) / top).max())
    assert off == pytest.approx(moved.error, rel=1e-3)
    assert 0 < moved.error <= 1.001 / 254
    assert found.ids == rows.ids


def test_a_quarter_of_the_bytes_travels_and_what_is_saved_is_counted() -> None:
    rows = vectors(512)
    found, moved, small = back(rows)
    plain = len(pack_whole(rows))
    assert moved.saved == rows.vectors.nbytes - 512 * 388
    assert plain - small == pytest.approx(moved.saved, abs=500)
    assert rows.vectors.nbytes / (512 * 388) == pytest.approx(4, rel=0.02)
    assert (found.vectors.dtype, found.vectors.flags.writeable) == (np.float32, False)


def test_a_search_loses_less_than_one_neighbour_in_a_hundred() -> None:
    corpus, queries, k = vectors(3000), vectors(100, seed=1).vectors, 10
    found, _, _ = back(corpus)
    exact, lossy = (np.argsort(-(queries @ c.vectors.T), axis=1)[:, :k] for c in (corpus, found))
    kept = np.mean([len(set(a) & set(b)) / k for a, b in zip(exact.tolist(), lossy.tolist(), strict=True)])
    assert 0.99 < kept < 1


def test_without_leave_rows_are_the_very_rows() -> None:
    rows, moved = vectors(512), Counts()
    assert shrunk(rows, 0.0, moved) is rows
    assert moved == Counts()


def test_it_flips_at_the_bandwidth_at_which_both_take_as_long() -> None:
    even = 0.75 / (1 / SHRINK + 1 / RESTORE)
    assert pays(1 << 20, 1 << 18, 0.999 * even)
    assert not pays(1 << 20, 1 << 18, 1.001 * even)
    rows = vectors(512)
    assert isinstance(shrunk(rows, 0.9 * even, Counts()), Shrunk)
    assert shrunk(rows, 1.1 * even, Counts()) is rows


def test_narrow_rows_need_a_slower_link() -> None:
    """The scale of a row weighs more."""
    assert shrunk(vectors(4096, 2), DASK, Counts()) is not None
    assert not pays(8 * 4096, 6 * 4096, 0.4e9)
    assert pays(8 * 4096, 6 * 4096, 0.2e9)


@dataclass(frozen=True, slots=True)
class Both(Rows):
    """Scores that are compared, and vectors in two precisions."""

    scores: NDArray[np.float32]
    wide: NDArray[np.float32]
    half: NDArray[np.float16]
    exact: NDArray[np.float64]
    texts: tuple[str, ...]
    lossy: ClassVar[tuple[str, ...]] = ("wide", "half", "exact")


def test_only_columns_that_may_lose_do_and_only_those_of_floats() -> None:
    wide = vectors(100).vectors
    rows = Both(vectors(100).ids, wide, wide, wide.astype(np.float16), wide.astype(np.float64), ("x",) * 100)
    found, moved, _ = back(rows)
    for name in ("scores", "exact"):
        assert np.array_equal(getattr(found, name), getattr(rows, name))
    for name in ("wide", "half"):
        assert not np.array_equal(getattr(found, name), getattr(rows, name))
        assert getattr(found, name).dtype == getattr(rows, name).dtype
    assert found.texts == rows.texts
    assert moved.saved == 100 * (6 * 384 - 2 * 388)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_travels_as_it_is(bad: float) -> None:
    rows = vectors(100)
    array = rows.vectors.copy()
    array[3, 5] = bad
    given = Embeddings(rows.ids, array)
    assert shrunk(given, DASK, Counts()) is given


def test_what_is_small_or_empty_travels_as_it_is() -> None:
    for rows in (vectors(LEAST // (4 * 384)), vectors(0), Embeddings.concat([])):
        assert shrunk(rows, DASK, Counts()) is rows


def test_what_tells_more_keeps_the_largest_error() -> None:
    moved = Counts(1, 2, 3, 0.5)
    moved.add(Counts(10, 20, 30, 0.25))
    assert moved == Counts(11, 22, 33, 0.5)
