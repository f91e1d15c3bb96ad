"""The arithmetic of measuring, with clocks and times that are made up; the kernels themselves, very small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.kernels import Effort, Host, beside, best, buffer_bytes, delivered, edge, turns

TINY = Effort(1.0, 32, 64, 0.1, 1 << 16, 0, 2, 1 << 16, 1000, 0.001)


def times(*seconds: float) -> tuple[Callable[[Callable[[], object]], float], list[float]]:
    """A stopwatch that shows these, and the list of what it still has to show."""
    left = list(seconds)
    return (lambda run: left.pop(0)), left


def test_the_best_run_counts_and_the_first_only_warms_up() -> None:
    timed, left = times(0.1, 5.0, 3.0, 4.0)
    assert best(lambda: None, timed, 3, lambda: False) == 3.0
    assert left == []


def test_when_it_is_late_one_run_counts() -> None:
    timed, left = times(9.0, 5.0, 3.0)
    assert best(lambda: None, timed, 3, lambda: True) == 5.0
    assert left == [3.0]


@pytest.mark.parametrize(
    ("quarter", "size"), [(0.001, 2048), (0.3 / 64, 2048), (0.008, 1024), (0.1, 512), (100.0, 256)]
)
def test_a_slow_product_is_taken_of_smaller_matrices(quarter: float, size: int) -> None:
    assert edge(quarter, 2048, 0.3) == size


def test_buffers_are_well_past_the_cache_within_a_quarter_of_free_memory() -> None:
    effort = Effort(least_bytes=100, caches=4)
    assert buffer_bytes(effort, 50, 10_000) == 200
    assert buffer_bytes(effort, 1, 10_000) == 100
    assert buffer_bytes(effort, 50, 400) == 100
    assert buffer_bytes(effort, 50, 0) == 200


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.01, 100))
def test_a_share_of_the_bound_is_above_0_and_at_most_1(first: float, second: float, wall: float) -> None:
    assert 0 < delivered([first, second], wall) <= 1


@pytest.mark.parametrize(("wall", "share"), [(2.0, 1.0), (4.0, 0.5), (1.0, 1.0)])
def test_the_share_of_the_bound_is_what_the_longer_takes_alone(wall: float, share: float) -> None:
    assert delivered([1.0, 2.0], wall) == share


def test_all_runs_are_begun_and_waited_for() -> None:
    clock: Iterator[float] = iter([10.0, 12.5])
    done: list[str] = []
    assert beside([lambda: done.append("a"), lambda: done.append("b")], lambda: next(clock)) == 2.5
    assert sorted(done) == ["a", "b"]


def test_an_error_in_a_run_is_told() -> None:
    def fail() -> None:
        raise ValueError("broken kernel")

    with pytest.raises(ValueError, match="broken kernel"):
        beside([fail, lambda: None])


def test_a_turn_of_the_loop_adds_three_bits_of_its_count() -> None:
    assert turns(9) == sum(range(8))


def test_every_kernel_of_the_host_gives_a_rate(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    host = Host(TINY, tmp_path / "new", lambda: True)
    try:
        assert [host.product(d, 1) > 0 for d in host.dtypes] == [True, True]
        assert host.read(1) > 0
        assert host.copy(1) > 0
        assert 0 < host.together("float32", 1) <= 1
        assert host.turns() > 0
        assert host.handoff() > 0
        assert host.load() > 0
        assert host.memory > host.nbytes == 1 << 16
    finally:
        host.close()
    assert torch.get_num_threads() == before
    assert list((tmp_path / "new").iterdir()) == []
