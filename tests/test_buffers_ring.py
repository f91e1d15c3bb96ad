"""Loading ahead in threads: it overlaps, keeps the order and the bound on what is alive, and it stops."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers.ring import Ring, overlapped, prefetched
from pipeline.errors import PlanError

WAIT = 10.0
"""Seconds after which a test fails that would wait for ever."""


class Alive:
    """Counts the values that are alive, as maker and reader see them."""

    def __init__(self) -> None:
        self.most = self.now = 0
        self._lock = threading.Lock()

    def made(self, item: int) -> int:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return item

    def done(self) -> None:
        with self._lock:
            self.now -= 1


@dataclass(eq=False)
class Box:
    """A value that may be watched."""

    item: int


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ring-")]


def fail_at(at: int) -> Callable[[int], int]:
    def step(item: int) -> int:
        if item == at:
            raise OSError(f"no item {at}")
        return item

    return step


def same(item: int) -> int:
    return item


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(), max_size=20), st.integers(1, 4))
def test_results_are_those_of_a_plain_loop(items: list[int], depth: int) -> None:
    assert list(prefetched(items, lambda i: 2 * i, depth)) == [2 * i for i in items]
    made = overlapped(items, lambda i: i + 1, lambda i: 3 * i, str, depth)
    assert list(made) == [str(3 * (i + 1)) for i in items]


def test_the_next_item_loads_while_the_reader_has_one() -> None:
    loading = [threading.Event() for _ in range(6)]

    def load(item: int) -> int:
        loading[item].set()
        return item

    for item in prefetched(range(6), load, depth=2):
        if item < 5:
            assert loading[item + 1].wait(WAIT)


def test_three_steps_run_at_the_same_time() -> None:
    meet = threading.Barrier(3, timeout=WAIT)
    items = 8

    def step(first: int) -> Callable[[int], int]:
        """Meets the two others, who are one and two items ahead or behind."""

        def run(item: int) -> int:
            if first <= item < items - 2 + first:
                meet.wait()
            return item

        return run

    assert list(overlapped(range(items), step(2), step(1), step(0), depth=2)) == list(range(items))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_are_alive_than_there_are_places_and_all_places_are_used(depth: int) -> None:
    alive = Alive()
    ahead = threading.Event()

    def load(item: int) -> int:
        alive.made(item)
        if item == depth - 1:
            ahead.set()
        return item

    for _ in prefetched(range(200), load, depth):
        assert ahead.wait(WAIT)
        alive.done()
    assert alive.most == depth


@pytest.mark.parametrize("depth", [1, 3])
def test_between_two_steps_no_more_are_alive_than_there_are_places(depth: int) -> None:
    uploaded, ran = Alive(), Alive()

    def run(item: int) -> int:
        ran.made(item)
        uploaded.done()
        return item

    def download(item: int) -> int:
        ran.done()
        return item

    assert list(overlapped(range(200), uploaded.made, run, download, depth)) == list(range(200))
    assert uploaded.most <= depth
    assert ran.most <= depth


def test_items_are_taken_only_when_there_is_a_place() -> None:
    taken = Alive()

    def items() -> Iterator[int]:
        for item in range(100):
            yield taken.made(item)

    for _ in prefetched(items(), same, depth=3):
        taken.done()
    assert taken.most <= 3


@pytest.mark.parametrize("failing", range(3))
def test_an_exception_arrives_at_its_item(failing: int) -> None:
    upload, run, download = (fail_at(3) if i == failing else same for i in range(3))
    results = overlapped(range(9), upload, run, download, depth=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no item 3"):
        next(results)
    assert list(results) == []
    assert threads() == []


def test_an_exception_of_the_items_arrives_after_the_last_good_one() -> None:
    results = prefetched(map(fail_at(2), count()), same, depth=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="no item 2"):
        next(results)


@pytest.mark.parametrize("read", [0, 1, 5])
def test_dropping_it_early_stops_the_threads(read: int) -> None:
    results = overlapped(count(), same, same, same, depth=2)
    assert [next(results) for _ in range(read)] == list(range(read))
    del results
    gc.collect()
    assert threads() == []


def test_nothing_starts_before_the_first_result_is_asked_for() -> None:
    results = prefetched(map(fail_at(0), count()), same, depth=2)
    assert threads() == []
    del results


@pytest.mark.parametrize("stages", [1, 3])
def test_values_that_were_read_are_gone_when_the_next_is_made(stages: int) -> None:
    made: list[weakref.ref[Box]] = []
    found = []

    def load(item: int) -> Box:
        found.append([ref() for ref in made])
        box = Box(item)
        made.append(weakref.ref(box))
        return box

    items = range(3)
    results = (
        map(attrgetter("item"), prefetched(items, load, depth=1))
        if stages == 1
        else overlapped(items, load, attrgetter("item"), same, depth=1)
    )
    assert list(results) == [0, 1, 2]
    assert found == [[], [None], [None, None]]


def test_a_closed_ring_lets_both_sides_go() -> None:
    ring = Ring[int](1)
    assert ring.reserve()
    waiting = threading.Thread(target=ring.reserve)
    reading = threading.Thread(target=list, args=(ring,))
    for thread in (waiting, reading):
        thread.start()
    ring.close()
    for thread in (waiting, reading):
        thread.join(WAIT)
        assert not thread.is_alive()
    ring.put(3)
    assert list(ring) == []
    assert not ring.reserve()


def test_places_are_counted_from_reserve_to_release() -> None:
    ring = Ring[int](2)
    seen = [ring.live]
    for act in (ring.reserve, lambda: ring.put(7), lambda: next(ring), ring.release):
        act()
        seen.append(ring.live)
    assert seen == [0, 1, 1, 1, 0]


def test_a_ring_without_places_is_refused() -> None:
    with pytest.raises(PlanError, match="found depth 0"):
        prefetched([1], same, depth=0)


def test_shards_read_ahead_give_the_scores_of_a_plain_loop(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    queries = draw.standard_normal((16, 64)).astype(np.float32)
    files = [tmp_path / f"{i}.npy" for i in range(6)]
    for file in files:
        np.save(file, draw.standard_normal((200, 64)).astype(np.float32))
    plain = [queries @ np.load(file).T for file in files]
    ahead = [queries @ shard.T for shard in prefetched(files, np.load, depth=2)]
    staged = list(overlapped(files, np.load, lambda shard: queries @ shard.T, np.copy, depth=2))
    assert np.array_equal(plain, ahead)
    assert np.array_equal(plain, staged)
