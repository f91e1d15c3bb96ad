"""Prefixes whose KV is there: a radix tree over token ids, whose edges say where the tokens lie. Pure.

The tree of SGLang (Zheng et al., 2024, arXiv 2312.07104, section 3), in whole pages: an edge is one page or
more, and the edges that leave a node differ in their first page. What is compared is bytes, so an edge of a
thousand tokens takes one `memcmp`. Eviction shortens leaves from their ends, which are of no use
without what comes before them; for the same reason leaves go first.

What is under way is locked, along its path. What may come back is pinned, and goes when nothing else is left.

When not: prompts that share less than a page; one tree for two models, or for prompts whose placeholders
stand for different images: the caller then puts ids there that tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stages.llm.extents import PAGE, Extent, cut, elsewhere, joined, pages_of

__all__ = ["Inserted", "Match", "Node", "Radix", "alike", "page_bytes"]

Tokens = Sequence[int] | NDArray[np.integer]
Order = Callable[["Node"], float]
"""What a leaf is worth: the least leaves first."""

_WIDE = 4 * PAGE
"""Bytes of a page of token ids, int32."""


class Node:
    """An edge and its end. It stands for all tokens from the root to here.

    `start`: tokens before the edge; `tokens`: on it; `extents`: where they lie; `locks`: sequences that read
    it or something below; `pins`: reasons to keep it for later. `heat`, `seen`: uses, as `Worth` counts them.
    """

    __slots__ = ("children", "extents", "heat", "locks", "parent", "pins", "raw", "seen", "start")

    def __init__(self, parent: Node | None, start: int, raw: bytes, extents: tuple[Extent, ...]) -> None:
        self.parent = parent
        self.start = start
        self.raw = raw
        self.extents = extents
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.pins = 0
        self.heat = 0.0
        self.seen = 0.0

    @property
    def tokens(self) -> int:
        """Tokens on the edge."""
        return len(self.raw) // 4

    def path(self) -> Iterator[Node]:
        """This node and those above it, the root left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def chain(self) -> tuple[Extent, ...]:
        """Where all tokens from the root to here lie."""
        return joined(extent for node in reversed(list(self.path())) for extent in node.extents)


class Match(NamedTuple):
    """The first `length` tokens are cached, in `extents`; lock `node` before anything is evicted."""

    length: int
    extents: tuple[Extent, ...]
    node: Node


class Inserted(NamedTuple):
    """`node`: the whole pages of what was inserted. `spare`: those that the tree had elsewhere already."""

    node: Node
    spare: tuple[Extent, ...]


class Radix:
    """The tree. `tokens`: all that it holds; `locked`: those that cannot be evicted now.

    The tree owns the extents it took until `evict` returns them. Not for several threads at once.
    """

    def __init__(self) -> None:
        self.root = Node(None, 0, b"", ())
        self.tokens = 0
        self.locked = 0

    def cached(self, tokens: Tokens) -> int:
        """Tokens that `match` would find; the tree stays as it is."""
        raw = page_bytes(tokens, len(tokens) - 1)
        return self._walk(raw)[1] // 4

    def match(self, tokens: Tokens) -> Match:
        """The longest cached prefix in whole pages, and never all: one token is left to compute.

        A match that ends on an edge cuts the edge there, so that `node` is the match and no more.
        O(tokens + nodes on the path).
        """
        raw = page_bytes(tokens, len(tokens) - 1)
        node = self._reach(raw)
        return Match(node.start + node.tokens, node.chain(), node)

    def insert(self, tokens: Tokens, extents: Sequence[Extent]) -> Inserted:
        """Cache the whole pages of `tokens`, which lie in `extents`, in order.

        Pages that the tree knows stay where the tree has them; where `extents` name another place for them,
        that place is `spare`. What lies beyond the last whole page stays the caller's. Raises ValueError for
        extents that hold fewer tokens.
        """
        raw = page_bytes(tokens, len(tokens))
        size = len(raw) // 4
        if sum(e.stop - e.start for e in extents) < size:
            raise ValueError(f"extents for {size} tokens or more, found {list(extents)}")
        node = self._reach(raw)
        known = node.start + node.tokens
        spare = joined(elsewhere(extents, node.chain()))
        if known < size:
            child = Node(node, known, raw[4 * known :], joined(cut(extents, known, size)))
            node.children[child.raw[:_WIDE]] = child
            node = child
            self.tokens += size - known
        return Inserted(node, spare)

    def lock(self, node: Node) -> None:
        """Keep the node and all above it until `unlock`. Raises ValueError for a node that was evicted."""
        if node.parent is None and node is not self.root:
            raise ValueError("the node was evicted: lock it as soon as it is matched or inserted")
        for one in node.path():
            self.locked += 0 if one.locks else one.tokens
            one.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one `lock`. Raises ValueError where there is none."""
        if node is not self.root and not node.locks:
            raise ValueError("the node is not locked: was it unlocked before?")
        for one in node.path():
            one.locks -= 1
            self.locked -= 0 if one.locks else one.tokens

    def pin(self, node: Node) -> None:
        """Evict the node only when all that is not pinned is gone; what is above it is no leaf and stays."""
        node.pins += 1

    def unpin(self, node: Node) -> None:
        """Undo one `pin`; the node may have been evicted. Raises ValueError where there is none."""
        if not node.pins:
            raise ValueError("the node is not pinned: was it unpinned before?")
        node.pins -= 1

    def evict(self, wanted: int, order: Order) -> tuple[Extent, ...]:
        """Take `wanted` tokens out, rounded up to pages, or all that is not locked; where they lay.

        The leaf that is worth least is shortened from its end; a node whose last child went is a leaf then.
        Pinned ones come last, by worth. `order` is asked once for each leaf. O(N) for N nodes, so ask for
        more than the next sequence needs.
        """
        freed: list[Extent] = []
        heap = [self._entry(i, leaf, order) for i, leaf in enumerate(self._leaves())]
        heapify(heap)
        count = len(heap)
        while wanted > 0 and heap:
            leaf = heappop(heap)[-1]
            less = min(leaf.tokens, pages_of(wanted) * PAGE)
            wanted -= less
            parent = leaf.parent or self.root
            freed += self._shorten(leaf, less)
            if parent is not self.root and not parent.children and not parent.locks:
                heappush(heap, self._entry(count, parent, order))
                count += 1
        return joined(sorted(freed))

    @staticmethod
    def _entry(number: int, leaf: Node, order: Order) -> tuple[bool, float, int, Node]:
        return leaf.pins > 0, order(leaf), number, leaf

    def _leaves(self) -> Iterator[Node]:
        """Leaves that are not locked."""
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            if node.children:
                todo += node.children.values()
            elif not node.locks:
                yield node

    def _shorten(self, leaf: Node, tokens: int) -> tuple[Extent, ...]:
        """Take tokens from the end of a leaf, which is no longer in the tree where none are left."""
        left = leaf.tokens - tokens
        freed = cut(leaf.extents, left, leaf.tokens)
        self.tokens -= tokens
        if not left and leaf.parent is not None:
            del leaf.parent.children[leaf.raw[:_WIDE]]
            leaf.parent = None
        leaf.raw, leaf.extents = leaf.raw[: 4 * left], cut(leaf.extents, 0, left)
        return freed

    def _walk(self, raw: bytes) -> tuple[Node, int]:
        """The deepest node whose edge begins like `raw` goes on, and bytes that are alike up to there."""
        node, at = self.root, 0
        while (child := node.children.get(raw[at : at + _WIDE])) is not None:
            node = child
            if not raw.startswith(child.raw, at):
                return node, at + alike(child.raw, raw[at : at + len(child.raw)])
            at += len(child.raw)
        return node, at

    def _reach(self, raw: bytes) -> Node:
        """The node for as much of `raw` as is there; an edge is cut where that ends on it."""
        node, at = self._walk(raw)
        inside = at // 4 - node.start
        return self._split(node, inside) if inside < node.tokens else node

    def _split(self, node: Node, tokens: int) -> Node:
        """A new node for the first tokens of an edge; `node` keeps the rest, so what is locked stays so."""
        parent = node.parent
        assert parent is not None, "the root has no edge"
        upper = Node(parent, node.start, node.raw[: 4 * tokens], cut(node.extents, 0, tokens))
        upper.locks, upper.heat, upper.seen = node.locks, node.heat, node.seen
        parent.children[upper.raw[:_WIDE]] = upper
        node.extents = cut(node.extents, tokens, node.tokens)
        node.parent, node.start, node.raw = upper, node.start + tokens, node.raw[4 * tokens :]
        upper.children[node.raw[:_WIDE]] = node
        return upper


def page_bytes(tokens: Tokens, most: int) -> bytes:
    """The whole pages of the first `most` tokens, as int32."""
    return np.asarray(tokens[: max(most, 0) // PAGE * PAGE], dtype=np.int32).tobytes()


def alike(one: bytes, other: bytes) -> int:
    """Bytes of the whole pages in which two pieces begin alike."""
    size = min(len(one), len(other)) // _WIDE
    a, b = (np.frombuffer(raw, np.int32, size * PAGE) for raw in (one, other))
    unequal = np.flatnonzero(a != b)
    return (int(unequal[0]) // PAGE if len(unequal) else size) * _WIDE
