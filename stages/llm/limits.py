"""What an engine may take."""

from __future__ import annotations

from dataclasses import dataclass

from stages.llm.preempt import Swap

__all__ = ["NOWHERE", "Limits"]

NOWHERE = Swap(0, 1.0)
"""Caches of those that must make room are not copied out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`tokens`: of all caches; `rows`: sequences at once; `chunk`: prompt tokens in a step; `drafts`:
    tokens guessed at most; `expected`: new tokens that a slot is taken for; `swap`: where caches of those
    that must wait may go.
    """

    tokens: int
    rows: int = 32
    chunk: int = 512
    drafts: int = 0
    expected: int = 256
    swap: Swap = NOWHERE
