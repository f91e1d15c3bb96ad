"""A shelf: what is kept of a value, what travels, what others see of it, and when its memory comes back."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.buffers import segment
from pipeline.buffers.handles import Handle, Place, StaleHandleError
from pipeline.buffers.leases import DATA
from pipeline.buffers.tiers import Tier
from pipeline.handover import ARENA, BYTES
from pipeline.shelf import HIGH, LOW, WARMING, Carry, Shelf, token
from pipeline.timeline import Counts
from pipeline.values import Embeddings

BUDGET = 1 << 20
SIZE = 64 << 10


class Segments:
    """Those of a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptors: list[int] = []

    def carry(self, run: str = "run", due: int = 0, count: int = 1) -> Carry:
        return Carry(ARENA, run, tuple(self.segment() for _ in range(count)), BUDGET, self.folder, due)

    def segment(self) -> Place:
        descriptor, place = segment.create(DATA + BUDGET, Path)
        self.descriptors.append(descriptor)
        return place

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Segments]:
    made = Segments(tmp_path / "spill")
    yield made
    made.close()


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    yield made
    made.close()


@pytest.fixture(scope="module")
def other() -> Iterator[ProcessPoolExecutor]:
    """Another process, spawned."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def vectors(number: int, nbytes: int = SIZE) -> Embeddings:
    return Embeddings(((number,),), (np.arange(nbytes // 4) + number).astype(np.float32).reshape(1, -1))


def same(one: Any, two: Any) -> bool:
    return bool(one.ids == two.ids and np.array_equal(one.vectors, two.vectors))


def seen(given: Any) -> tuple[Any, float, bool]:
    """What a reader of its own sees: ids, a sum, and whether it may be written."""
    shelf = Shelf()
    rows: Any = shelf.take(given)
    found = rows.ids, float(rows.vectors.sum()), bool(rows.vectors.flags.writeable)
    del rows
    shelf.close()
    return found


def name(given: Any) -> tuple[int, int]:
    found = token(given)
    assert found is not None
    return found


def test_by_reference_nothing_changes(shelf: Shelf) -> None:
    rows = vectors(1)
    assert shelf.hand(rows, Carry()) == (rows, None)
    assert (shelf.counts.shared, shelf.counts.copied) == (0, 0)


def test_by_bytes_the_rows_stay_and_a_message_travels(shelf: Shelf, other: ProcessPoolExecutor) -> None:
    rows = vectors(1)
    here, given = shelf.hand(rows, Carry(BYTES))
    assert here is rows
    assert isinstance(given, bytes)
    assert other.submit(seen, given).result() == (rows.ids, float(rows.vectors.sum()), False)


def test_by_arena_the_maker_and_readers_elsewhere_see_the_same_and_cannot_write_it(
    shelf: Shelf, segments: Segments, other: ProcessPoolExecutor
) -> None:
    rows = vectors(3)
    here, given = shelf.hand(rows, segments.carry())
    assert here is None, "a view of it here would keep it from moving to disk"
    found: Any = shelf.take(given)
    assert same(found, rows)
    with pytest.raises(ValueError, match="read-only"):
        found.vectors[0, 0] = 1
    assert other.submit(seen, given).result() == (rows.ids, float(rows.vectors.sum()), False)
    assert shelf.counts.copied < rows.nbytes + 100, "written once"


def test_a_small_value_stays_and_travels_as_it_is(shelf: Shelf, segments: Segments) -> None:
    rows = vectors(1, 400)
    here, given = shelf.hand(rows, segments.carry())
    assert here is rows
    assert isinstance(given, bytes)
    assert shelf.used == 0


def test_values_that_are_freed_give_their_memory_back_when_the_last_view_is_gone(
    shelf: Shelf, segments: Segments
) -> None:
    carry = segments.carry()
    given = [shelf.hand(vectors(i), carry)[1] for i in range(3)]
    view = shelf.take(given[0])
    shelf.free([name(g) for g in given])
    assert shelf.used > 0, "one is still read"
    del view
    gc.collect()
    shelf.free([])
    shelf.hand(vectors(4), carry)
    assert SIZE <= shelf.used < 2 * SIZE


def test_all_memory_comes_back(shelf: Shelf, segments: Segments) -> None:
    carry = segments.carry()
    given = [shelf.hand(vectors(i), carry)[1] for i in range(10)]
    for g in given:
        assert shelf.take(g).ids
    gc.collect()
    shelf.free([name(g) for g in given])
    assert shelf.used == 0
    with pytest.raises(StaleHandleError):
        shelf.take(given[0])


def test_what_an_earlier_worker_made_and_what_is_freed_twice_is_left_alone(
    shelf: Shelf, segments: Segments
) -> None:
    """A task that is run again says once more what may go."""
    carry = segments.carry()
    given = shelf.hand(vectors(1), carry)[1]
    shelf.free([name(given), name(given), (17, 4)])
    again = shelf.hand(vectors(1), carry)[1]
    shelf.free([name(given)])
    assert same(shelf.take(again), vectors(1))


def test_a_value_larger_than_its_arena_travels_as_bytes_with_a_warning(
    shelf: Shelf, segments: Segments, caplog: pytest.LogCaptureFixture, other: ProcessPoolExecutor
) -> None:
    rows = vectors(1, 2 * BUDGET)
    with caplog.at_level(logging.WARNING, "ridgeway"):
        here, given = shelf.hand(rows, segments.carry())
    assert "a value travels as bytes: no room for" in caplog.text
    assert here is rows
    assert other.submit(seen, given).result()[1] == float(rows.vectors.sum())


def test_memory_that_runs_low_moves_what_is_needed_latest_to_disk(
    shelf: Shelf, segments: Segments, other: ProcessPoolExecutor
) -> None:
    carry, count = segments.carry(), BUDGET // SIZE
    handed = []
    for i in range(count + 1):
        due = 100 if i % 3 == 0 else 1
        handed.append((i, due, shelf.hand(vectors(i), replace(carry, due=due))[1]))
    assert all(isinstance(given, Handle) for _, _, given in handed)
    on_disk = {f.stem for f in segments.folder.iterdir()}
    moved = {i: due for i, due, g in handed if f"{g.slot}-{g.generation}" in on_disk}
    assert set(moved.values()) == {100}
    assert LOW * BUDGET - SIZE <= shelf.used <= HIGH * BUDGET + SIZE
    for i, _, given in handed:
        assert same(shelf.take(given), vectors(i))
        assert other.submit(seen, given).result()[1] == float(vectors(i).vectors.sum())
    shelf.free([name(given) for _, _, given in handed])
    assert shelf.used == 0
    assert list(segments.folder.iterdir()) == []


def test_what_moved_to_disk_outlives_the_worker_that_made_it(
    segments: Segments, other: ProcessPoolExecutor
) -> None:
    """As what lies in the client's segments does."""
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:
        given = maker.submit(overfill, segments.carry()).result()
    assert list(segments.folder.iterdir())
    for i, g in enumerate(given):
        assert other.submit(seen, g).result()[1] == float(vectors(i).vectors.sum())


KEPT: list[Shelf] = []


def overfill(carry: Carry) -> list[Any]:
    """Hands more values than fit; the shelf stays until the process ends."""
    KEPT.append(Shelf())
    return [KEPT[0].hand(vectors(i), carry)[1] for i in range(BUDGET // SIZE + 2)]


def test_each_run_has_its_own_segment_and_ends_without_the_other(shelf: Shelf, segments: Segments) -> None:
    first, second = segments.carry("first"), segments.carry("second")
    one, two = shelf.hand(vectors(1), first)[1], shelf.hand(vectors(2), second)[1]
    assert (one.place, two.place) == (first.segments[0], second.segments[0])
    copied = shelf.counts.copied
    shelf.close("first", set(first.segments))
    assert SIZE <= shelf.used < 2 * SIZE
    assert shelf.counts.copied == copied
    assert same(shelf.take(two), vectors(2))
    assert same(shelf.take(shelf.hand(vectors(3), second)[1]), vectors(3))


def test_what_a_run_makes_after_its_end_takes_no_memory(shelf: Shelf, segments: Segments) -> None:
    """A batch may be under way when the run is abandoned."""
    carry = segments.carry("over", count=2)
    shelf.hand(vectors(1), carry)
    shelf.close("over", set(carry.segments))
    assert isinstance(shelf.hand(vectors(1), carry)[1], bytes)
    assert shelf.used == 0


def test_a_segment_of_a_worker_that_died_is_not_used_again(
    shelf: Shelf, segments: Segments, caplog: pytest.LogCaptureFixture
) -> None:
    carry = segments.carry(count=2)
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:
        before = maker.submit(overfill, carry).result()
    given = shelf.hand(vectors(5), carry)[1]
    assert (before[0].place, given.place) == carry.segments
    assert same(shelf.take(before[-1]), vectors(len(before) - 1))
    with caplog.at_level(logging.WARNING, "ridgeway"):
        third = Shelf().hand(vectors(6), carry)[1]
    assert isinstance(third, bytes)
    assert "values travel as bytes" in caplog.text


def test_a_large_value_is_copied_by_all_threads_of_the_lane(
    shelf: Shelf, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.buffers.stripes.THRESHOLD", SIZE)
    seen: set[str] = set()
    plain = np.copyto

    def copyto(into: Any, source: Any) -> None:
        seen.add(threading.current_thread().name)
        plain(into, source)

    monkeypatch.setattr(np, "copyto", copyto)
    given = shelf.hand(vectors(1), replace(segments.carry("two"), threads=2))[1]
    assert len(seen) == 2
    assert same(shelf.take(given), vectors(1))


def test_counts_only_grow(shelf: Shelf, segments: Segments) -> None:
    """Also where a worker reads before it makes the first value of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:
        given = maker.submit(overfill, segments.carry("other")).result()[0]
        shelf.take(given)
        before = shelf.counts.shared
        assert before >= SIZE
        shelf.hand(vectors(1), segments.carry())
    assert shelf.counts.shared == before


def test_of_two_workers_that_come_at_once_only_one_has_the_segment(segments: Segments) -> None:
    for i in range(20):
        carry = segments.carry(f"run {i}")
        shelves = [Shelf(), Shelf()]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda s, c=carry: s.hand(vectors(1), c)[1], shelves))
        assert sorted(isinstance(given, Handle) for given in found) == [False, True]
        for shelf in shelves:
            shelf.close()


def test_vectors_go_as_int8_where_the_order_says_so_and_it_is_counted(shelf: Shelf) -> None:
    rows, plain, lossy = vectors(1), Counts(), Counts()
    exact: Any = shelf.take(shelf.hand(rows, Carry(BYTES), plain)[1])
    here, given = shelf.hand(rows, Carry(BYTES, link=0.3e9), lossy)
    found: Any = shelf.take(given, lossy)
    assert same(exact, rows)
    assert here is rows
    assert plain.saved == 0 < lossy.saved
    assert lossy.copied == 2 * len(given) < rows.nbytes
    assert np.abs(found.vectors - rows.vectors).max() <= lossy.error * np.abs(rows.vectors).max() * 1.001
    assert lossy.error <= 1.001 / 254


def test_shared_memory_is_exact_whatever_the_order_allows(shelf: Shelf, segments: Segments) -> None:
    rows = vectors(1)
    assert same(shelf.take(shelf.hand(rows, replace(segments.carry(), link=0.3e9))[1]), rows)


def test_a_disk_without_room_is_told_and_nothing_is_lost(
    shelf: Shelf, segments: Segments, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.shelf.disk", lambda folder: Tier("the disk", SIZE // 2, 1e9))
    carry, count = segments.carry(), BUDGET // SIZE
    handed = [shelf.hand(vectors(i), carry)[1] for i in range(count + 1)]
    assert "travels as bytes: a value of" in caplog.text
    assert f"there is no room for it: {SIZE // 2} bytes on the disk; free some" in caplog.text
    assert not segments.folder.exists()
    assert [type(given) for given in handed].count(bytes) >= 1
    for i, given in enumerate(handed):
        assert same(shelf.take(given), vectors(i))


def test_two_threads_count_what_each_moves(shelf: Shelf, segments: Segments) -> None:
    """One takes what the other hands, as the next batch and the one before do."""
    carry, moved = segments.carry(), [Counts(), Counts()]
    given = shelf.hand(vectors(0), carry)[1]
    before = shelf.counts.copied

    def read() -> None:
        for _ in range(50):
            shelf.take(given, moved[0])

    def write() -> None:
        for i in range(50):
            shelf.free([name(shelf.hand(vectors(i), carry, moved[1])[1])])

    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(read), pool.submit(write)]:
            job.result()
    assert (moved[0].shared, moved[0].copied) == (50 * given.nbytes, 0)
    assert (moved[1].shared, moved[1].copied) == (0, 50 * given.nbytes)
    assert shelf.counts.copied == before + 50 * given.nbytes


def test_an_arena_that_is_expected_is_opened_and_touched_before_its_first_value(
    shelf: Shelf, segments: Segments
) -> None:
    carry = replace(segments.carry(), warm=BUDGET)
    shelf.begin("cpu", carry, ())
    for thread in threading.enumerate():
        if thread.name == WARMING:
            thread.join()
    assert os.stat(carry.segments[0].path).st_blocks * 512 >= BUDGET
    other = segments.carry("other")
    shelf.begin("cpu", other, ())
    assert os.stat(other.segments[0].path).st_blocks == 0
