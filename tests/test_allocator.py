"""The model of PyTorch's allocator, on traces whose values were worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.allocator import Allocator, Event, Peak, peak

MIB = 1 << 20


def after(*steps: tuple[str, int, int] | tuple[str, int]) -> Allocator:
    """An allocator after `("+", id, bytes)` and `("-", id)`."""
    allocator = Allocator()
    for sign, *numbers in steps:
        allocator.alloc(*numbers) if sign == "+" else allocator.free(*numbers)
    return allocator


@pytest.mark.parametrize(
    ("nbytes", "live", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # the rest is no more than 1 MiB: it is not cut off
        (30 * MIB, 30 * MIB, 30 * MIB),
    ],
)
def test_one_request(nbytes: int, live: int, reserved: int) -> None:
    allocator = after(("+", 0, nbytes))
    assert (allocator.live, allocator.reserved) == (live, reserved)


def test_small_requests_share_a_segment_until_it_is_full() -> None:
    assert after(("+", 0, MIB), ("+", 1, MIB)).reserved == 2 * MIB
    assert after(("+", 0, MIB), ("+", 1, MIB), ("+", 2, 1)).reserved == 4 * MIB


def test_small_and_large_requests_share_nothing() -> None:
    assert after(("+", 0, 4 * MIB), ("+", 1, 512)).reserved == 22 * MIB


def test_memory_is_not_given_back() -> None:
    allocator = after(("+", 0, 30 * MIB), ("-", 0))
    assert (allocator.live, allocator.reserved, allocator.peak) == (0, 30 * MIB, Peak(30 * MIB, 30 * MIB))


def test_freed_neighbours_become_one_block() -> None:
    allocator = after(("+", 0, 8 * MIB), ("+", 1, 8 * MIB), ("-", 0), ("-", 1), ("+", 2, 18 * MIB))
    assert allocator.reserved == 20 * MIB


def test_a_block_in_the_middle_joins_both_sides() -> None:
    size = 6 * MIB
    three = after(("+", 0, size), ("+", 1, size), ("+", 2, size), ("-", 0), ("-", 2), ("-", 1))
    three.alloc(3, 20 * MIB)
    assert three.reserved == 20 * MIB


def test_free_bytes_that_lie_apart_do_not_serve_a_larger_request() -> None:
    # 8 free, 8 held, 4 free: 12 MiB are free, but 9 need another segment of 20.
    allocator = after(("+", 0, 8 * MIB), ("+", 1, 8 * MIB), ("-", 0), ("+", 2, 9 * MIB))
    assert (allocator.live, allocator.reserved) == (17 * MIB, 40 * MIB)


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    # 8 free, 8 held, 4 free: 3 come from the 4, so 8 still fit.
    allocator = after(("+", 0, 8 * MIB), ("+", 1, 8 * MIB), ("-", 0))
    allocator.alloc(2, 3 * MIB)
    allocator.alloc(3, 8 * MIB)
    assert allocator.reserved == 20 * MIB


def test_an_id_is_held_once() -> None:
    with pytest.raises(ValueError, match="block 7 is allocated already"):
        after(("+", 7, 1), ("+", 7, 1))
    with pytest.raises(ValueError, match="block 7 is not allocated"):
        after(("-", 7))


def test_the_peak_is_that_of_the_whole_record() -> None:
    events = [Event(0, 6 * MIB), Event(1, 6 * MIB), Event(0), Event(2, 2 * MIB), Event(1), Event(2)]
    assert peak(events) == Peak(12 * MIB, 20 * MIB)
    assert peak([]) == Peak(0, 0)


class Reference:
    """The same rules, plainly: segments are lists of `[size, id]`, searched from end to end."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[list[int | None]]]] = []

    def alloc(self, id: int, nbytes: int) -> None:
        size = max((nbytes + 511) // 512 * 512, 512)
        small = size <= MIB
        best: tuple[int, list[list[int | None]], int] | None = None
        for kind, blocks in self.segments:
            for place, (free, owner) in enumerate(blocks):
                fits = kind == small and owner is None and (free or 0) >= size
                if fits and (best is None or (free or 0) < best[0]):
                    best = free or 0, blocks, place
        if best is None:
            total = (
                2 * MIB
                if small
                else 20 * MIB
                if size < 10 * MIB
                else (size + 2 * MIB - 1) // MIB // 2 * 2 * MIB
            )
            blocks = [[total, None]]
            self.segments.append((small, blocks))
            best = total, blocks, 0
        free, blocks, place = best
        rest = free - size
        split = rest >= 512 if small else rest > MIB
        blocks[place : place + 1] = [[size, id], [rest, None]] if split else [[free, id]]

    def free(self, id: int) -> None:
        for _, blocks in self.segments:
            for block in blocks:
                block[1] = None if block[1] == id else block[1]
            joined: list[list[int | None]] = []
            for size, owner in blocks:
                if joined and owner is None and joined[-1][1] is None:
                    joined[-1][0] = (joined[-1][0] or 0) + (size or 0)
                else:
                    joined.append([size, owner])
            blocks[:] = joined

    @property
    def counts(self) -> tuple[int, int]:
        blocks = [b for _, found in self.segments for b in found]
        return sum(b[0] or 0 for b in blocks if b[1] is not None), sum(b[0] or 0 for b in blocks)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 14 * MIB) | st.integers(0, 2 * MIB)), max_size=60)
)
def test_it_agrees_with_a_plain_search_through_all_segments(steps: list[tuple[int, int]]) -> None:
    allocator, reference, held = Allocator(), Reference(), dict[int, int]()
    for id, nbytes in steps:
        if id in held:
            allocator.free(id)
            reference.free(id)
            del held[id]
        else:
            allocator.alloc(id, nbytes)
            reference.alloc(id, nbytes)
            held[id] = nbytes
        assert (allocator.live, allocator.reserved) == reference.counts
        assert sum(held.values()) <= allocator.live <= allocator.reserved
