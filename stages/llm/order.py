"""The order in which prompts are admitted, so that shared prefixes meet while they are cached. Pure.

SGLang (Zheng et al., 2024, arXiv 2312.07104, section 3, theorem 3.1): visiting the radix tree of the waiting
prompts depth first computes every edge once, the optimum, if the cache holds the longest prompt; longest
shared prefix first is such an order. Here the tree is that of the prompts sorted by their pages; of subtrees
the one with the longest cached prefix comes first, then the one with the earliest prompt.

Depth first starves prompts that share nothing while others keep coming, so a cap bounds how often a prompt
is passed over by later ones (the cap is ours). Each time it is reached, one more branch of the tree may have
to be computed again.

When not: prompts that share less than a page, or a cache that holds all of them: any order does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Generic, NamedTuple, TypeVar

from pipeline.errors import PlanError
from stages.llm.radix import Tokens, alike, page_bytes

__all__ = ["Meeting", "depth_first"]

What = TypeVar("What", bound=Hashable)

_LOOKED_AT = 256
"""Prompts that `company` looks at: microseconds."""


class _Waiting(NamedTuple, Generic[What]):
    what: What
    number: int
    tokens: Tokens
    raw: bytes


class Meeting(Generic[What]):
    """Prompts that wait. None is passed over by more than `most` later ones, whatever comes.

    `cached`: tokens of a prompt that are cached now (`Radix.cached`). Raises PlanError for a negative `most`.
    """

    def __init__(self, cached: Callable[[Tokens], int], most: int) -> None:
        if most < 0:
            raise PlanError(f"a prompt is passed over 0 times or more, found {most}")
        self._cached = cached
        self._most = most
        self._waiting: dict[What, _Waiting[What]] = {}
        self._added = self._taken = 0
        self._order: dict[What, None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, what: What, tokens: Tokens) -> None:
        """One more, the latest. Raises ValueError for one that waits already."""
        if what in self._waiting:
            raise ValueError(f"{what!r} waits already")
        self._waiting[what] = _Waiting(what, self._added, tokens, page_bytes(tokens, len(tokens)))
        self._added += 1
        self._order = None

    def first(self) -> What | None:
        """Who is next; None where nobody waits. The order is computed anew only when somebody has come."""
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        # Who passes a prompt passes all before it too, so the oldest has been passed most often: by all that
        # were taken but those before it, and of those there are as many as its number says.
        if self._taken - oldest.number >= self._most:
            return oldest.what
        if self._order is None:
            ones = list(self._waiting.values())
            places = depth_first([one.raw for one in ones], [self._cached(one.tokens) for one in ones])
            self._order = dict.fromkeys(ones[i].what for i in places)
        return next(iter(self._order))

    def company(self, what: What, shared: int) -> int:
        """How many others that wait begin with the first `shared` tokens, whole pages, of one that waits.

        Looked for among those that have waited longest, of which there may be many.
        """
        beginning = self._waiting[what].raw[: 4 * shared]
        others = islice(self._waiting.values(), _LOOKED_AT)
        return sum(one.what != what and one.raw.startswith(beginning) for one in others)

    def take(self, what: What) -> None:
        """It is admitted, or given up, and waits no longer. O(1)."""
        del self._waiting[what]
        self._taken += 1
        if self._order is not None:
            del self._order[what]


def depth_first(prompts: Sequence[bytes], cached: Sequence[int]) -> list[int]:
    """Places of `prompts`, as whole pages (`page_bytes`), depth first over their radix tree.

    Of the subtrees of a node the one with the most `cached` tokens comes first, then the one whose first
    prompt stands first. O(N log N + N depth) for N prompts, and a comparison of each with its neighbour.
    """
    places = sorted(range(len(prompts)), key=prompts.__getitem__)
    shared = [0, *(alike(prompts[a], prompts[b]) for a, b in pairwise(places))]
    found: list[int] = []
    todo = [(0, len(places))] if places else []
    while todo:
        low, high = todo.pop()
        if high - low == 1:
            found.append(places[low])
            continue
        branches = list(_branches(shared, low, high))
        branches.sort(key=lambda span: _rank(places[slice(*span)], cached), reverse=True)
        todo += branches
    return found


def _branches(shared: Sequence[int], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Where neighbours share least, the branches of a node part."""
    least = min(shared[low + 1 : high])
    edges = [low, *(i for i in range(low + 1, high) if shared[i] == least), high]
    return pairwise(edges)


def _rank(places: Sequence[int], cached: Sequence[int]) -> tuple[int, int]:
    return -max(cached[i] for i in places), min(places)
