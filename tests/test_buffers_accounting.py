"""Memory as it is: pages that are shared count once, limits are found, and what was guessed is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.buffers.accounting import Usage, counters, family, groups, limit_in, parent_in, usage

ROLLUP = """\
55ca8ca31000-7ffec5eb6000 ---p 00000000 00:00 0                          [rollup]
Rss:                {rss} kB
Pss:                 {pss} kB
Pss_Dirty:           112 kB
Shared_Clean:       1548 kB
"""
STATUS = """\
Name:\tpython (a) kB
State:\tS (sleeping)
VmRSS:\t    {rss} kB
RssShmem:\t     {shared} kB
Threads:\t3
"""
MIB = 1 << 20


def test_counters_are_bytes_and_other_lines_are_left_out() -> None:
    found = counters(ROLLUP.format(rss=1708, pss=272))
    assert found == {
        "Rss": 1708 * 1024,
        "Pss": 272 * 1024,
        "Pss_Dirty": 112 * 1024,
        "Shared_Clean": 1548 * 1024,
    }
    assert counters(STATUS.format(rss=9, shared=4)) == {"VmRSS": 9 * 1024, "RssShmem": 4 * 1024}
    assert counters("") == {}


@pytest.mark.parametrize("name", ["python", "a b", "x) S 3 (", ")"])
def test_the_parent_stands_behind_any_name(name: str) -> None:
    assert parent_in(f"71 ({name}) S 42 71 71 0 -1 4194560 2031") == 42


def test_a_family_is_a_process_and_all_below_it() -> None:
    parents = {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 20: 1}
    assert sorted(family(10, parents)) == [10, 11, 12, 13]
    assert family(99, parents) == (99,)


@given(st.dictionaries(st.integers(2, 30), st.integers(0, 30), max_size=25))
def test_whoever_has_an_ancestor_in_the_family_belongs_to_it(found: dict[int, int]) -> None:
    parents = {child: min(parent, child - 1) for child, parent in found.items()}

    def below(pid: int) -> bool:
        return pid == 5 or (pid in parents and below(parents[pid]))

    assert sorted(family(5, parents)) == sorted({5, *(pid for pid in parents if below(pid))})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0::/user.slice/a:b\n", (True, "/user.slice/a:b")),
        ("9:name=systemd:/\n4:cpu,memory:/jobs/7\n0::/\n", (False, "/jobs/7")),
        ("4:cpuset:/x\n0::/y\n", (True, "/y")),
        ("", (True, "/")),
    ],
)
def test_the_group_that_counts_memory_is_found(text: str, found: tuple[bool, str]) -> None:
    assert groups(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("1048576\n", MIB), ("max\n", None), ("9223372036854771712\n", None), ("", None), ("0", 0)],
)
def test_a_limit_is_a_number_or_none(text: str, found: int | None) -> None:
    assert limit_in(text) == found


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, "utf-8")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 7 with child 8, and process 9 beside them; of 8 there is no PSS."""
    folder = tmp_path / "proc"
    write(
        folder / "7",
        stat="7 (a) S 1 7",
        smaps_rollup=ROLLUP.format(rss=900, pss=500),
        cgroup="0::/job/inner\n",
    )
    write(folder / "8", stat="8 (b) S 7 7", status=STATUS.format(rss=300, shared=200))
    write(folder / "9", stat="9 (c) S 1 7", smaps_rollup=ROLLUP.format(rss=70, pss=70))
    write(folder / "sys")
    return folder


def test_a_process_and_its_children_are_added_up_and_a_guess_is_said(proc: Path, tmp_path: Path) -> None:
    found = usage(7, proc, tmp_path / "none")
    assert (found.pss, found.rss) == (600 * 1024, 1200 * 1024)
    assert found.shared_bytes == 600 * 1024
    assert (found.cgroup, found.peak, found.limit) == (None, None, None)
    assert found.said == (
        "no PSS of process 8: RSS without shared memory",
        "no memory cgroup: only processes are counted",
    )


def test_the_tightest_limit_on_the_way_up_holds(proc: Path, tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    write(mount / "job" / "inner", memory__current="5000\n", memory__peak="9000\n", memory__max="max\n")
    write(mount / "job", memory__max="70000\n")
    write(mount, memory__max="90000\n")
    write(tmp_path, memory__max="1\n")
    found = usage(7, proc, mount)
    assert (found.cgroup, found.peak, found.limit) == (5000, 9000, 70000)


def test_version_1_has_other_names_and_a_container_may_see_only_its_own_group(
    proc: Path, tmp_path: Path
) -> None:
    mount = tmp_path / "cgroup"
    write(proc / "7", cgroup="4:memory:/docker/abc\n0::/\n")
    write(
        mount / "memory",
        memory__usage_in_bytes="5000\n",
        memory__max_usage_in_bytes="9000\n",
        memory__limit_in_bytes="70000\n",
    )
    found = usage(7, proc, mount)
    assert (found.cgroup, found.peak, found.limit) == (5000, 9000, 70000)


def test_a_process_that_is_gone_takes_nothing(proc: Path, tmp_path: Path) -> None:
    write(proc / "10", stat="10 (d) Z 9 9", smaps_rollup="", status="Name:\tgone\n")
    assert usage(9, proc, tmp_path) == Usage(
        70 * 1024, 70 * 1024, said=("no memory cgroup: only processes are counted",)
    )


HOLDER = """
import mmap, os, sys
pages = mmap.mmap(int(sys.argv[1]), 0)
sum(pages[::4096])
print("ready", flush=True)
sys.stdin.read()
"""


def test_pages_that_two_processes_hold_count_once() -> None:
    size = 64 * MIB
    before = usage()
    fd = os.memfd_create("shared")
    try:
        os.ftruncate(fd, size)
        for _ in range(64):
            os.write(fd, bytes(MIB))
        command = [sys.executable, "-S", "-c", HOLDER, str(fd)]
        children = [
            subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        assert all(child.stdout and child.stdout.readline() == b"ready\n" for child in children)
        during = usage()
        for child in children:
            child.communicate()
    finally:
        os.close(fd)
    others = 30 * MIB  # two interpreters, and what the test itself took
    assert size - MIB < during.pss - before.pss < size + others
    assert during.rss - before.rss > 2 * size
    assert during.shared_bytes >= before.shared_bytes + size - MIB
