"""Where the tokens of a KV cache lie: chains of pieces of slots. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["PAGE", "Extent", "cut", "elsewhere", "joined", "pages_of"]

PAGE = 16
"""Tokens in a page: extents begin at its multiples, and only the last one of a chain ends elsewhere."""


class Extent(NamedTuple):
    """Tokens `start` to `stop` of a slot, counted from where the slot begins."""

    slot: int
    start: int
    stop: int


def pages_of(tokens: int) -> int:
    """Pages that so many tokens take."""
    return -(-tokens // PAGE)


def joined(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """The same tokens in as few extents as can be."""
    found: list[Extent] = []
    for extent in extents:
        if found and found[-1].slot == extent.slot and found[-1].stop == extent.start:
            found[-1] = Extent(extent.slot, found[-1].start, extent.stop)
        else:
            found.append(extent)
    return tuple(found)


def cut(extents: Iterable[Extent], start: int, stop: int) -> tuple[Extent, ...]:
    """Tokens `start` to `stop` of a chain, counted from where the chain begins."""
    found: list[Extent] = []
    at = 0
    for slot, first, end in extents:
        low, high = max(start - at, 0), min(stop - at, end - first)
        if low < high:
            found.append(Extent(slot, first + low, first + high))
        at += end - first
    return tuple(found)


def elsewhere(mine: Iterable[Extent], theirs: Iterable[Extent]) -> Iterator[Extent]:
    """What of `mine` lies in another place than the same tokens of `theirs`."""
    chain = tuple(mine)
    at = 0
    for slot, start, stop in theirs:
        here = start
        for piece in cut(chain, at, at + stop - start):
            if (piece.slot, piece.start) != (slot, here):
                yield piece
            here += piece.stop - piece.start
        at += stop - start
