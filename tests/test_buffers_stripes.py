"""Copies in lanes: every byte once, in threads that run together, and one lane where that is better."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.buffers import stripes as module
from pipeline.buffers.stripes import THRESHOLD, copy, stripes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold that tests can afford to pass."""
    monkeypatch.setattr(module, "THRESHOLD", 8192)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_stripes_hold_each_byte_once_and_begin_on_pages(nbytes: int, lanes: int) -> None:
    parts = stripes(nbytes, lanes)
    assert 1 <= len(parts) <= lanes
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == nbytes
    assert all(part.start % 4096 == 0 for part in parts)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("nbytes", [0, 1, 8191, 8192, 8193, 100_001])
@pytest.mark.parametrize("lanes", [1, 2, 3, 50])
def test_copies_are_exact(nbytes: int, lanes: int) -> None:
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    into = bytearray(nbytes + 2)
    copy(memoryview(into)[1:-1], source, lanes)
    assert into == b"\0" + source.tobytes() + b"\0"


def test_a_copy_above_the_real_threshold_is_exact() -> None:
    source = np.arange(THRESHOLD // 4 + 5, dtype=np.int32)
    into = np.empty_like(source)
    copy(into, source, 2)
    assert np.array_equal(into, source)


def copying(monkeypatch: pytest.MonkeyPatch, meet: threading.Barrier) -> set[str]:
    """The threads that copy, by name; each waits for the others first."""
    seen: set[str] = set()
    plain = np.copyto

    def copyto(into: Any, source: Any) -> None:
        seen.add(threading.current_thread().name)
        meet.wait()
        plain(into, source)

    monkeypatch.setattr(np, "copyto", copyto)
    return seen


@pytest.mark.usefixtures("small")
def test_the_lanes_copy_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = copying(monkeypatch, threading.Barrier(3, timeout=10))
    into = np.zeros(12_288, np.uint8)
    copy(into, np.ones_like(into), 3)
    assert len(seen) == 3
    assert into.all()


@pytest.mark.usefixtures("small")
def test_a_lane_that_fails_is_an_error_of_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def copyto(into: Any, source: Any) -> None:
        if threading.current_thread().name.startswith("stripe"):
            raise OSError("gone")

    monkeypatch.setattr(np, "copyto", copyto)
    with pytest.raises(OSError, match="gone"):
        copy(bytearray(9000), bytes(9000), 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("nbytes", "lanes"), [(8191, 2), (20_000, 1)])
def test_a_copy_that_is_small_or_has_one_thread_has_one_lane(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, lanes: int
) -> None:
    seen = copying(monkeypatch, threading.Barrier(1))
    copy(np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8), lanes)
    assert seen == {threading.current_thread().name}


@pytest.mark.usefixtures("small")
def test_buffers_that_overlap_are_copied_as_if_they_did_not() -> None:
    both = np.arange(40_000, dtype=np.uint16)
    plain = both[:-5].copy()
    copy(both[5:], both[:-5], 4)
    assert np.array_equal(both[5:], plain)


def test_what_cannot_be_copied_is_refused() -> None:
    with pytest.raises(ValueError, match="3 do not fit 4"):
        copy(bytearray(4), b"abc")
    with pytest.raises(ValueError, match="read-only"):
        copy(b"abcd", b"efgh")
    with pytest.raises(ValueError, match="contiguous"):
        copy(np.zeros((4, 4), np.uint8)[:, :2], bytes(8))
    with pytest.raises(ValueError, match="one lane or more, found 0"):
        stripes(10, 0)
