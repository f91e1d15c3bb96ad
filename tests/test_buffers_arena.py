"""An arena: blocks under leases, a budget, demotion, and random traces of all of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.buffers import segment
from pipeline.buffers.arena import Arena, Block
from pipeline.buffers.handles import Handle, OwnerGoneError, Place, StaleHandleError
from pipeline.buffers.leases import DATA, READERS, SLOTS, locked
from pipeline.buffers.reader import Reader

SIZES = (256, 1024)
BUDGET = 16 * 1024

Bytes = NDArray[np.uint8]


def filled(number: int, nbytes: int) -> Bytes:
    """Bytes that tell which block they are of, and where in it."""
    return ((np.arange(nbytes) * 7 + number * 31) % 256).astype(np.uint8)


def put(arena: Arena, number: int, nbytes: int, due: int = 0) -> Handle:
    slot, generation, offset = arena.put([filled(number, nbytes).data], due, f"kind {number % 3}")
    return Handle(arena.place, slot, generation, offset, nbytes, b"", ((0, nbytes),))


def seen(reader: Reader, handle: Handle) -> Bytes:
    return np.frombuffer(reader.view(handle), np.uint8)


def release(arena: Arena, handle: Handle) -> None:
    arena.release(handle.slot, handle.generation)


def demote(arena: Arena, handle: Handle) -> None:
    arena.demote(handle.slot, handle.generation)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    found = Arena(BUDGET, tmp_path, SIZES)
    yield found
    found.close()


@pytest.fixture
def reader() -> Iterator[Reader]:
    found = Reader()
    yield found
    found.close()


def test_a_reader_sees_what_was_put(arena: Arena, reader: Reader) -> None:
    handles = [put(arena, n, 100 * n + 1) for n in range(5)]
    assert arena.used == sum(h.nbytes for h in handles)
    assert all((seen(reader, h) == filled(n, h.nbytes)).all() for n, h in enumerate(handles))


def test_buffers_lie_side_by_side_each_aligned(arena: Arena, reader: Reader) -> None:
    slot, generation, offset = arena.put([b.data for b in (filled(1, 65), filled(2, 0), filled(3, 10))])
    handle = Handle(arena.place, slot, generation, offset, 138, b"", ())
    block = seen(reader, handle)
    assert (block[:65] == filled(1, 65)).all()
    assert (block[128:] == filled(3, 10)).all()
    assert offset % 64 == 0


def test_a_released_block_is_reused_at_once_and_its_handle_is_stale(arena: Arena, reader: Reader) -> None:
    old = put(arena, 1, 500)
    release(arena, old)
    assert arena.used == 0
    new = put(arena, 2, 500)
    assert (new.slot, new.offset) == (old.slot, old.offset)
    with pytest.raises(
        StaleHandleError, match=f"slot {old.slot} no longer holds generation {old.generation}"
    ):
        reader.view(old)
    assert (seen(reader, new) == filled(2, 500)).all()


def test_a_refused_handle_leaves_no_lease(arena: Arena, reader: Reader) -> None:
    old = put(arena, 1, 500)
    release(arena, old)
    new = put(arena, 2, 500)
    with pytest.raises(StaleHandleError):
        reader.view(old)
    assert arena.leased == 0
    release(arena, new)
    assert arena.used == 0


def test_a_block_is_released_once(arena: Arena) -> None:
    handle = put(arena, 1, 500)
    release(arena, handle)
    with pytest.raises(StaleHandleError, match="it was released"):
        release(arena, handle)
    with pytest.raises(StaleHandleError, match="it was released"):
        demote(arena, handle)


def test_a_lease_keeps_a_released_block_until_its_last_view_is_gone(arena: Arena, reader: Reader) -> None:
    handle = put(arena, 1, 500)
    view = seen(reader, handle)
    release(arena, handle)
    part = view[3:7].reshape(2, 2)
    del view
    put(arena, 2, 500)
    assert arena.leased == 500
    assert part.tolist() == filled(1, 500)[3:7].reshape(2, 2).tolist()
    del part
    arena.collect()
    assert (arena.used, arena.leased) == (500, 0)


def test_no_new_reader_comes_to_a_released_block_that_another_still_reads(
    arena: Arena, reader: Reader
) -> None:
    handle = put(arena, 1, 500)
    view = seen(reader, handle)
    release(arena, handle)
    with pytest.raises(StaleHandleError):
        Reader("another", lambda _: True).view(handle)
    assert (view == filled(1, 500)).all()


def test_a_dead_reader_holds_nothing(tmp_path: Path) -> None:
    living = {"a", "b"}
    arena = Arena(BUDGET, tmp_path, SIZES, alive=living.__contains__)
    a, b = (Reader(name, living.__contains__) for name in sorted(living))
    first, second = put(arena, 1, 500), put(arena, 2, 500)
    views = [seen(a, first), seen(b, second)]
    release(arena, first)
    release(arena, second)
    living.remove("a")
    arena.collect()
    assert arena.used == 500
    assert (views[1] == filled(2, 500)).all()
    _die(a)
    arena.close()


def test_many_readers_come_and_go(arena: Arena) -> None:
    handle = put(arena, 1, 500)
    for _ in range(2 * READERS):
        reader = Reader()
        assert seen(reader, handle)[0] == filled(1, 1)[0]
        reader.close()
    assert arena.leased == 0


# the budget


def test_a_full_arena_says_what_is_in_it(arena: Arena, reader: Reader) -> None:
    handles = [put(arena, n, 1024) for n in range(BUDGET // 1024)]
    view = seen(reader, handles[0])
    assert not arena.room(1)
    with pytest.raises(
        MemoryError, match=f"no room for 1 bytes in an arena of {BUDGET}: {BUDGET} in use, 1024 "
    ):
        put(arena, 99, 1)
    release(arena, handles[0])
    with pytest.raises(MemoryError, match="in use"):
        put(arena, 99, 1)
    del view
    assert arena.room(1)
    assert put(arena, 99, 1).nbytes == 1


def test_a_full_arena_asks_before_it_gives_up(tmp_path: Path) -> None:
    asked: list[int] = []

    def make_room(nbytes: int) -> None:
        asked.append(nbytes)
        last = max(full.blocks(), key=lambda b: b.due)
        full.demote(last.slot, last.generation)

    full = Arena(BUDGET, tmp_path, SIZES, on_full=make_room)
    handles = [put(full, n, 1024, due=n % 7) for n in range(BUDGET // 1024 + 1)]
    reader = Reader()
    assert asked == [1024]
    assert full.used == BUDGET
    assert [b.file is not None for b in full.blocks()].index(True) == 6
    assert all((seen(reader, h) == filled(n, 1024)).all() for n, h in enumerate(handles))
    reader.close()
    full.close()


def test_more_blocks_than_slots_are_refused(tmp_path: Path) -> None:
    arena = Arena(SLOTS * 128, tmp_path, (64,))
    handles = [put(arena, n, 1) for n in range(SLOTS)]
    with pytest.raises(MemoryError, match=f"{SLOTS} of {SLOTS} slots"):
        put(arena, 0, 1)
    release(arena, handles[0])
    put(arena, 0, 1)
    arena.close()


# to disk


def test_a_demoted_block_is_read_from_its_file_which_goes_with_it(
    arena: Arena, reader: Reader, tmp_path: Path
) -> None:
    handle = put(arena, 1, 500)
    demote(arena, handle)
    assert arena.used == 0
    assert len(list(tmp_path.glob("*/*.block"))) == 1
    view = seen(reader, handle)
    release(arena, handle)
    assert not list(tmp_path.glob("*/*.block"))
    assert (view == filled(1, 500)).all()
    assert arena.leased == 0
    with pytest.raises(StaleHandleError):
        reader.view(handle)


def test_memory_of_a_demoted_block_waits_for_those_who_read_it(arena: Arena, reader: Reader) -> None:
    handle = put(arena, 1, 500)
    early = seen(reader, handle)
    demote(arena, handle)
    late = seen(reader, handle)
    assert arena.used == 500
    assert (early == filled(1, 500)).all()
    del early
    arena.collect()
    assert arena.used == 0
    assert (late == filled(1, 500)).all()
    release(arena, handle)


def test_a_block_that_the_disk_has_no_room_for_stays_where_it_is(
    arena: Arena, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    handle = put(arena, 1, 500)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            demote(arena, handle)
    assert not list(tmp_path.glob("*/*.block"))
    assert (seen(reader, handle) == filled(1, 500)).all()
    demote(arena, handle)
    assert arena.used == 0


# segments


def test_a_memfd_of_ours_can_be_opened_by_others_or_a_file_takes_its_place(
    arena: Arena, tmp_path: Path
) -> None:
    if segment.attachable():
        assert arena.place.kind == "memory"
        assert not list(tmp_path.iterdir())
    else:
        assert arena.place.kind == "file"


def test_an_arena_in_a_file_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    monkeypatch.setattr(segment, "attachable", lambda: False)
    arena = Arena(BUDGET, tmp_path, SIZES)
    assert arena.place.kind == "file"
    handle = put(arena, 1, 500)
    view = seen(reader, handle)
    arena.close()
    assert not list(tmp_path.iterdir())
    assert (view == filled(1, 500)).all()


def test_a_file_that_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segment, "attachable", lambda: False)
    monkeypatch.setattr(os, "posix_fallocate", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space"):
        Arena(BUDGET, tmp_path, SIZES)
    assert os.listdir("/proc/self/fd") == before
    assert not list(tmp_path.glob("*/arena"))


def test_a_closed_arena_leaves_no_descriptor_and_its_readers_keep_what_they_read(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    arena, reader = Arena(BUDGET, tmp_path, SIZES), Reader()
    handle = put(arena, 1, 500)
    view = seen(reader, handle)
    demote(arena, put(arena, 2, 10))
    arena.close()
    arena.close()
    reader.forget()
    with pytest.raises(OwnerGoneError, match="compute it again"):
        reader.view(handle)
    assert (view == filled(1, 500)).all()
    del arena, view
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list(tmp_path.iterdir())


def test_an_arena_that_is_forgotten_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    arena = Arena(BUDGET, tmp_path, SIZES)
    demote(arena, put(arena, 2, 10))
    del arena
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list(tmp_path.iterdir())


def test_a_later_arena_under_the_same_descriptor_is_not_taken_for_the_earlier(tmp_path: Path) -> None:
    reader = Reader()
    first = Arena(BUDGET, tmp_path, SIZES)
    old = put(first, 1, 500)
    kept = seen(reader, old)
    first.close()
    second = Arena(BUDGET, tmp_path, SIZES)
    new = put(second, 2, 500)
    assert second.place == first.place
    assert (seen(reader, new) == filled(2, 500)).all()
    assert (kept == filled(1, 500)).all()
    reader.close()
    with pytest.raises(OwnerGoneError, match="another arena"):
        Reader().view(old)
    second.close()


def test_a_handle_from_another_host_is_refused(arena: Arena, reader: Reader) -> None:
    handle = put(arena, 1, 500)
    elsewhere = Place("memory", handle.place.path, "boot:1:2:3")
    with pytest.raises(ValueError, match="send bytes instead"):
        reader.view(Handle(elsewhere, handle.slot, handle.generation, handle.offset, 500, b"", ()))


def test_warming_changes_nothing(arena: Arena, reader: Reader) -> None:
    handle = put(arena, 1, 500)
    arena.warm(10 * BUDGET)
    assert (seen(reader, handle) == filled(1, 500)).all()


# threads, finalizers and traces


def test_a_release_within_a_finalizer_amid_everything_else_waits_for_nothing(arena: Arena) -> None:
    handles = [put(arena, n, 100) for n in range(3)]
    with arena._later:
        release(arena, handles[0])
        assert arena.used == 300
    assert arena.used == 200


def test_a_release_while_a_reader_takes_a_lease_is_done_by_the_next(arena: Arena, reader: Reader) -> None:
    handle, other = put(arena, 1, 100), put(arena, 2, 100)
    view = seen(reader, other)
    attached = next(iter(reader._open.values()))
    with locked(attached._fd):
        release(arena, handle)
        assert arena.used == 200
    arena.collect()
    assert arena.used == 100
    assert len(view) == 100


def test_threads_put_read_and_release_at_once(tmp_path: Path) -> None:
    arena, wrong = Arena(256 * 1024, tmp_path, SIZES), []
    reader = Reader()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for n in range(150):
            handle = put(arena, seed * 1000 + n, int(rng.integers(1, 3000)))
            view = seen(reader, handle)
            release(arena, handle)
            if not (view == filled(seed * 1000 + n, handle.nbytes)).all():
                wrong.append(handle)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arena.collect()
    assert not wrong
    assert (arena.used, arena.leased) == (0, 0)
    arena.close()


class Trace:
    """An arena, three readers that may die and come back, and what each ought to see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.living = {"r0", "r1", "r2"}
        self.names = iter(range(3, 10**6))
        self.arena = Arena(BUDGET, folder, SIZES, alive=self.living.__contains__)
        self.readers = [Reader(name, self.living.__contains__) for name in sorted(self.living)]
        self.live: list[tuple[Handle, int]] = []
        self.stale: list[Handle] = []
        self.views: list[tuple[Reader, Bytes, Bytes]] = []
        self.graves: list[object] = []
        self.count = 0

    def put(self, at: int) -> None:
        """A block; some are larger than a page, and some do not fit."""
        self.count += 1
        try:
            self.live.append((put(self.arena, self.count, at * 3 + 1), self.count))
        except MemoryError:
            assert self.arena.used > 0 or at * 3 + 1 > BUDGET

    def get(self, at: int) -> None:
        if self.live:
            handle, number = self.live[at % len(self.live)]
            reader = self.readers[at % 3]
            view = seen(reader, handle)
            self.views.append((reader, view, filled(number, handle.nbytes)))

    def get_stale(self, at: int) -> None:
        if self.stale:
            with pytest.raises(StaleHandleError):
                self.readers[at % 3].view(self.stale[at % len(self.stale)])

    def alias(self, at: int) -> None:
        """Keep only a part of a value."""
        if self.views:
            reader, view, expected = self.views.pop(at % len(self.views))
            self.views.append((reader, view[::-2], expected[::-2]))

    def drop(self, at: int) -> None:
        if self.views:
            self.views.pop(at % len(self.views))

    def release(self, at: int) -> None:
        if self.live:
            handle, _ = self.live.pop(at % len(self.live))
            release(self.arena, handle)
            self.stale.append(handle)

    def demote(self, at: int) -> None:
        if self.live:
            demote(self.arena, self.live[at % len(self.live)][0])

    def crash(self, at: int) -> None:
        """A reader dies with all it holds; nothing that it would still do is done."""
        dead = self.readers[at % 3]
        _die(dead)
        self.living.remove(dead.identity)
        self.graves += [dead, [v for v in self.views if v[0] is dead]]
        self.views = [v for v in self.views if v[0] is not dead]
        name = f"r{next(self.names)}"
        self.living.add(name)
        self.readers[at % 3] = Reader(name, self.living.__contains__)

    def collect(self, at: int) -> None:
        self.arena.collect()

    def check(self) -> None:
        """No stale read, no overlap, and no more than the budget."""
        assert all((view == expected).all() for _, view, expected in self.views)
        memory = sorted(
            (m.offset, m.offset + m.nbytes) for m in map(_memory, self.arena._blocks.values()) if m
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(memory))
        assert self.arena.used == sum(end - start for start, end in memory) <= BUDGET

    def end(self) -> None:
        """All is let go: nothing is left."""
        self.views.clear()
        for handle, _ in self.live:
            release(self.arena, handle)
        self.arena.collect()
        assert (self.arena.used, self.arena.leased, self.arena._layout.wasted) == (0, 0, 0)
        assert (len(self.arena._slots), self.arena._blocks, self.arena._lingering) == (SLOTS, {}, set())
        assert not list(self.folder.glob("*/*.block"))
        self.arena.close()
        assert not list(self.folder.iterdir())


def _memory(block: Block) -> Any:
    return block.memory


def _die(reader: Reader) -> None:
    """Its finalizers are not run, as those of a killed process are not."""
    nothing: Callable[[Any], None] = lambda slot: None  # noqa: E731
    for attached in reader._open.values():
        attached.later._do = nothing


STEPS = (
    "put",
    "put",
    "get",
    "get",
    "get_stale",
    "alias",
    "drop",
    "release",
    "release",
    "demote",
    "crash",
    "collect",
)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1500)), max_size=80))
def test_random_traces_never_overlap_leak_or_read_stale(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    trace = Trace(tmp_path_factory.mktemp("trace"))
    for step, at in steps:
        getattr(trace, step)(at)
        trace.check()
    trace.end()


def test_blocks_in_the_segment_of_another_process_are_read_by_its_name_and_only_one_may_use_it() -> None:
    budget = 1 << 20
    fd, place = segment.create(DATA + budget, Path)
    arena = Arena(budget, backing=place)
    assert arena.place == place
    with pytest.raises(ValueError, match="in use"):
        Arena(budget, backing=place)
    arena.close()
    os.close(fd)


def test_a_segment_of_another_size_is_refused() -> None:
    fd, place = segment.create(DATA + (1 << 20), Path)
    with pytest.raises(ValueError, match="not of"):
        Arena(2 << 20, backing=place)
    os.close(fd)
