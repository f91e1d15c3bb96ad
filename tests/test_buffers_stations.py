"""Stations in a row: three threads at work at once, nobody overtaken, and nobody kept by one who failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers.stations import Stations

WAIT = 10.0
"""Seconds after which a test fails that would wait for ever."""


def start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()


def test_all_stations_are_at_work_at_the_same_time() -> None:
    """The k-th item is at one station while its neighbours are at those beside it: all meet there."""
    line, meet, items = Stations(3), threading.Barrier(3, timeout=WAIT), 8
    begun = [threading.Event() for _ in range(items + 1)]
    begun[0].set()

    def work(item: int) -> None:
        assert begun[item].wait(WAIT)
        with line.through() as onward:
            begun[item + 1].set()
            for station in range(3):
                if 2 - station <= item < items - station:
                    meet.wait()
                if station < 2:
                    onward()

    end([start(lambda item=item: work(item)) for item in range(items)])  # type: ignore[misc]
    assert not meet.broken


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.lists(st.integers(0, 4), max_size=8))
def test_nobody_is_overtaken_and_no_station_has_two(count: int, fails: list[int]) -> None:
    """`fails`: the station at which each item fails, where there is one."""
    line = Stations(count)
    inside, passed = [0] * count, [list[int]() for _ in range(count)]
    begun = [threading.Event() for _ in range(len(fails) + 1)]
    begun[0].set()

    def go(item: int) -> None:
        assert begun[item].wait(WAIT)
        with suppress(OSError), line.through() as onward:
            begun[item + 1].set()
            for station in range(count):
                if station:
                    onward()
                inside[station] += 1
                assert inside[station] == 1
                passed[station].append(item)
                inside[station] -= 1
                if station == fails[item]:
                    raise OSError

    end([start(lambda item=item: go(item)) for item in range(len(fails))])  # type: ignore[misc]
    for station, found in enumerate(passed):
        assert found == [item for item, at in enumerate(fails) if at >= station]


def test_what_is_seen_is_each_entering_and_each_leaving() -> None:
    seen: list[int] = []
    with Stations(3).through(lambda: seen.append(len(seen))) as onward:
        assert len(seen) == 1
        onward()
        assert len(seen) == 3
        onward()
        assert len(seen) == 5
    assert len(seen) == 6


def test_a_slow_last_station_holds_back_those_before_it() -> None:
    """So no more than one value waits behind it."""
    line, may = Stations(2), threading.Event()
    at = [threading.Event() for _ in range(3)]
    ran = [threading.Event() for _ in range(3)]

    def work(item: int) -> None:
        with line.through() as onward:
            ran[item].set()
            onward()
            at[item].set()
            assert may.wait(WAIT)

    threads = []
    for item in range(2):
        threads.append(start(lambda item=item: work(item)))  # type: ignore[misc]
        assert ran[item].wait(WAIT)
    assert at[0].wait(WAIT)
    threads.append(start(lambda: work(2)))
    assert not ran[2].is_set()
    may.set()
    end(threads)
    assert ran[2].is_set()


def test_a_station_is_shared_by_those_with_the_same_key_and_by_no_others() -> None:
    line, inside = Stations(2), threading.Barrier(2, timeout=WAIT)
    order: list[str] = []

    def work(key: str) -> None:
        with line.through() as onward:
            onward(key, 2)
            if key == "alike":
                inside.wait()  # both are here at once, or this fails
            order.append(key)

    threads = [start(lambda: work("alike")) for _ in range(2)]
    end(threads)
    end([start(lambda: work("other"))])
    assert order == ["alike", "alike", "other"]


def test_who_has_another_key_waits_until_the_station_is_empty() -> None:
    line, here, go = Stations(2), threading.Event(), threading.Event()
    seen: list[str] = []

    def first() -> None:
        with line.through() as onward:
            onward("a", 2)
            here.set()
            assert go.wait(WAIT)
            seen.append("a")

    def second() -> None:
        with line.through() as onward:
            go.set()
            onward("b", 2)
            seen.append("b")

    one = start(first)
    assert here.wait(WAIT)
    end([start(second), one])
    assert seen == ["a", "b"]
