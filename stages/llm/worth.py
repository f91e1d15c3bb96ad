"""What a cached prefix is worth: expected seconds of prefill that it saves, for each byte it takes. Pure.

    gain = P(reuse) * prefill seconds(tokens, context) / bytes

DuHL's rule (Dünner, Parnell and Jaggi 2017, arXiv 1708.05357): what stays in a small memory is what promises
the most progress, not what was used last. The estimate is ours: uses are counted with exponential decay, so a
count `heat` over a mean window of half life / ln 2 gives the rate of a Poisson process, and
P(reuse within one more window) = 1 - exp(-heat). A scan touches its nodes once and cannot push out what is
used again and again, which recency lets it do.

What `Radix.evict` keeps with this order: for leaves it is the greedy of the knapsack problem, and because the
last one is cut to pages, it equals the best fractional choice where the room is whole pages. The same holds
for trees whose gain does not rise along a path, which is so while prefill seconds are linear: uses never rise
along a path. With attention's square a deep node may gain more than its parent, which then stays for
its sake; no bound is claimed there.

When not: where all that comes fits, and where all prefixes have one length and one pattern of use: recency
(`recency`) then gives the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1

from pipeline.errors import PlanError
from stages.llm.preempt import Prefill
from stages.llm.radix import Node, Order

__all__ = ["Worth", "recency"]


@dataclass(frozen=True, slots=True)
class Worth:
    """`prefill`: seconds for tokens behind a context; `token_bytes`: of the KV of a token; `half_life`:
    seconds, or whatever unit the times have, in which a use counts half. Raises PlanError unless both are
    positive.
    """

    prefill: Prefill
    token_bytes: int
    half_life: float

    def __post_init__(self) -> None:
        if self.token_bytes < 1 or self.half_life <= 0:
            raise PlanError(
                f"a token takes bytes and a half life is positive, found {self.token_bytes} bytes and "
                f"half_life {self.half_life}"
            )

    def use(self, node: Node, now: float) -> None:
        """Count one use of all tokens up to `node`: after every match that is taken, and every insert."""
        for one in node.path():
            one.heat = self._heat(one, now) + 1.0
            one.seen = now

    def gain(self, node: Node, now: float) -> float:
        """Seconds for each byte that are expected to be saved while the node's edge stays."""
        seconds = self.prefill(node.tokens, node.start)
        return -expm1(-self._heat(node, now)) * seconds / (node.tokens * self.token_bytes)

    def order(self, now: float) -> Order:
        """Least gain leaves first."""
        return lambda node: self.gain(node, now)

    def _heat(self, node: Node, now: float) -> float:
        decayed: float = node.heat * 2.0 ** ((node.seen - now) / self.half_life)
        return decayed


def recency(node: Node) -> float:
    """The plain order: what was used longest ago leaves first."""
    return node.seen
