"""Identities of processes, and the table of who reads what."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers.identity import is_alive, own, same_host
from pipeline.buffers.leases import DATA, FREE, MEMORY, READERS, SLOTS, Header, Later, locked


@pytest.fixture
def header() -> Header:
    found = Header(bytearray(DATA))
    found.found("owner", 7)
    return found


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[list[int]]:
    """Two descriptions of one file, as two processes would have."""
    (tmp_path / "file").write_bytes(b"")
    opened = [os.open(tmp_path / "file", os.O_RDWR) for _ in range(2)]
    yield opened
    for fd in opened:
        os.close(fd)


def always(identity: str) -> bool:
    return True


# identities


def test_this_process_lives_here() -> None:
    assert is_alive(own())
    assert same_host(own())


def test_a_process_that_ended_is_dead_also_before_its_parent_looks() -> None:
    code = "import sys; from pipeline.buffers.identity import own; print(own(), flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    identity = child.stdout.readline().strip()
    assert is_alive(identity)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(identity)
    child.communicate()
    assert not is_alive(identity)


def test_a_process_id_that_came_round_again_is_another_process() -> None:
    boot, namespace, pid, ticks = own().split(":")
    assert not is_alive(f"{boot}:{namespace}:{pid}:{int(ticks) + 1}")


def test_a_process_of_another_boot_is_dead_and_elsewhere() -> None:
    other = "another:" + own().partition(":")[2]
    assert not is_alive(other)
    assert not same_host(other)


def test_a_process_that_we_cannot_see_counts_as_alive() -> None:
    boot, _, pid, ticks = own().split(":")
    other = f"{boot}:1:{pid}:{ticks}"
    assert is_alive(other)
    assert not same_host(other)


@pytest.mark.parametrize("damaged", ["", "x", ":::", "a:b:c:d"])
def test_what_is_no_identity_is_not_alive(damaged: str) -> None:
    assert not is_alive(damaged)


# the table


def test_a_table_says_whose_it_is(header: Header) -> None:
    assert header.is_of("owner", 7)
    assert not header.is_of("owner", 8)
    assert not header.is_of("other", 7)


def test_no_memory_of_another_kind_is_taken_for_a_table() -> None:
    assert not Header(bytearray(DATA)).is_of("", 0)


def test_generations_begin_with_the_number_of_the_arena(header: Header) -> None:
    assert {header.generation(slot) >> 32 for slot in (0, SLOTS - 1)} == {7}
    assert header.state(0) == FREE
    header.mark(3, 99, MEMORY)
    assert (header.generation(3), header.state(3)) == (99, MEMORY)


def test_leases_are_summed_over_readers(header: Header) -> None:
    a, b = header.claim("a", always), header.claim("b", always)
    assert a != b
    header.cells[a, 5] += 2
    header.cells[b, 5] += 1
    assert header.leases()[5] == 3
    assert header.leases().sum() == 3


def test_the_dead_hold_nothing_and_their_rows_go_to_others(header: Header) -> None:
    a, b = header.claim("a", always), header.claim("b", always)
    header.cells[a, 5] = header.cells[b, 6] = 1
    header.bury(lambda name: name == "b")
    assert (header.leases()[5], header.leases()[6]) == (0, 1)
    assert header.claim("c", always) == a


def test_a_claim_takes_the_row_of_a_dead_reader_without_its_leases(header: Header) -> None:
    a = header.claim("a", always)
    header.cells[a, 5] = 1
    assert header.claim("b", lambda name: name != "a") == a
    assert not header.leases().any()


def test_a_row_with_leases_is_not_given_back(header: Header) -> None:
    a = header.claim("a", always)
    header.cells[a, 5] = 1
    header.leave(a)
    assert header.claim("b", always) != a
    header.cells[a, 5] = 0
    header.leave(a)
    assert header.claim("c", always) == a


def test_one_reader_too_many_is_told_so(header: Header) -> None:
    for i in range(READERS):
        header.claim(f"r{i}", always)
    with pytest.raises(RuntimeError, match=f"{READERS} processes read this arena"):
        header.claim("more", always)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans())), st.sets(st.integers(0, 3)))
def test_the_sum_is_what_the_living_hold(changes: list[tuple[int, int, bool]], dead: set[int]) -> None:
    header = Header(bytearray(DATA))
    rows = [header.claim(f"r{i}", always) for i in range(4)]
    model = np.zeros((4, SLOTS), int)
    for reader, slot, more in changes:
        if more:
            model[reader, slot] += 1
            header.cells[rows[reader], slot] += 1
        elif model[reader, slot]:
            model[reader, slot] -= 1
            header.cells[rows[reader], slot] -= 1
    header.bury(lambda name: int(name[1:]) not in dead)
    living = [i for i in range(4) if i not in dead]
    assert (header.leases() == model[living].sum(axis=0)).all()


# locks


def test_a_lock_that_another_holds_is_refused_or_shared(fds: list[int]) -> None:
    with locked(fds[0]), locked(fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB) as mine:
        assert not mine
    with locked(fds[0], fcntl.LOCK_SH), locked(fds[1], fcntl.LOCK_SH | fcntl.LOCK_NB) as mine:
        assert mine
    with locked(fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB) as mine:
        assert mine


def test_work_handed_in_while_the_lock_is_held_is_done_when_it_is_given_back() -> None:
    done: list[int] = []
    later = Later(done.append)
    with later:
        later.add(1)
        later.add(2)
        assert done == []
    assert done == [1, 2]
    later.add(3)
    assert done == [1, 2, 3]


def test_work_handed_in_by_the_work_itself_is_done_too() -> None:
    done: list[int] = []

    def do(item: int) -> None:
        done.append(item)
        if item:
            later.add(item - 1)

    later = Later(do)
    later.add(3)
    assert done == [3, 2, 1, 0]
