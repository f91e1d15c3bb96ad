"""How many tokens each row drafts in the next step.

The idea: drafts are read by the model beside the tokens that are due, and what that takes is measured. One
more drafted token is worth the probability that it stands, with all before it; rows differ, so the tokens
that are read go to the rows where they are likeliest to stand. As many as give the most tokens a second.

When not: a batch that is bound by arithmetic pays for each token that it reads, so it drafts nothing; neither
does a row where the model is uncertain, nor a draft that does not fit into memory. The curve must have
been measured with drafts in the step: a step without any does not tell what they take.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pipeline.errors import PlanError
from pipeline.gates import Curve

__all__ = [
    "UNBOUND", "Acceptance", "Drafting", "Row", "View", "affordable", "expected", "fitted", "lengths",
]  # fmt: skip

UNBOUND = 1 << 20
"""More tokens than any step drafts."""

_NEWEST = 0.15
"""Weight of the newest token in the running acceptance: it forgets half in four tokens."""

_NEWEST_STEPS = 9
"""Steps of one size that are remembered: a slow one is outvoted, and as caches grow the old ones go."""

_FREE = Curve("this device", ((0, 1.0), (1, 1.0)))
"""Nothing is known yet."""

_NO_LESS = 1 + 1e-12
"""What is better by less is as good."""

_LOGITS = 8
"""Bytes per token of the vocabulary that choosing takes: the logits in float32, and their softmax."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The probability that a drafted token stands if those before it do, from what has happened.

    An exponential average over drafted tokens. It begins at a half: ours, neither hope nor fear.
    """

    rate: float = 0.5

    def after(self, drafted: int, accepted: int) -> Acceptance:
        """With one more draft of which `accepted` tokens stood; what follows the first refusal says nothing.

        A row that is not to draft may still look what it would have drafted: its first token can be
        compared with the one that came, for nothing (`after(1, 1)` or `after(1, 0)`).
        """
        keep = 1 - _NEWEST
        rate = 1 - (1 - self.rate) * keep**accepted
        return replace(self, rate=rate if accepted == drafted else rate * keep)


@dataclass(frozen=True, slots=True)
class Row:
    """A row that decodes. `proposed`: tokens there are to draft, within the answer's and the slot's room.

    `entropy`: of the distribution that its last token was chosen from, in nats (`sampling.entropies`).
    `by_model`: the tokens are still to be drafted, by a draft model; else they are there.
    """

    acceptance: float
    proposed: int
    entropy: float = 0.0
    by_model: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A step to come. `curve`: seconds by tokens that are read in a step, one a row and those drafted.

    `most`: tokens drafted by a row; `budget`: by all rows, see `affordable`. Rows whose entropy is above
    `certain` draft nothing: Cerberus (Liu et al. 2024, arXiv 2410.13344) gates on the entropy of hidden
    states; ours gates on that of the next token, which any model has without training. `beside`: tokens of
    prompts that are read in the same step. `drafting`: seconds of a pass of the draft model, which drafts one
    token for each of its rows.
    """

    rows: tuple[Row, ...]
    curve: Curve
    most: int = 8
    budget: int = UNBOUND
    certain: float = math.inf
    beside: int = 0
    drafting: float = 0.0


def expected(rate: float, drafted: int) -> float:
    """Tokens that a step emits for a row: (1 - a^(k+1)) / (1 - a).

    Leviathan et al. 2023 (arXiv 2211.17192), equation 1: refusals are taken as independent.
    """
    if rate >= 1:
        return drafted + 1.0
    return (1 - rate ** (drafted + 1)) / (1 - rate)


def lengths(view: View) -> tuple[int, ...]:
    """Tokens to draft for each row, such that the step emits the most tokens a second.

    PPD (Chen et al. 2024, arXiv 2405.18628): argmax of accepted(n) / latency(n), measured on the device.
    Ours, for a batch: of all ways to read M drafted tokens the best takes the M largest a^j, j-th token of
    its row (they fall along a row, so none is left out before one that is taken); then the best M. Tokens of
    prompts count as emitted: reading them is what drafts keep the device from. Of equals the shortest.

    A draft model's j-th pass drafts the j-th token of all its rows, and takes as long for one row as for all:
    it is bound by its weights. So for each number of passes the same choice, among rows that are no longer;
    then the best number.
    """
    if not view.rows:
        return ()
    caps = [_cap(view, row) for row in view.rows]
    read = len(view.rows) + view.beside
    seconds = [view.curve.seconds(read + drafted) for drafted in range(sum(caps) + 1)]
    deepest = max((cap for row, cap in zip(view.rows, caps, strict=True) if row.by_model), default=0)
    best = _within(view, caps, seconds, 0)
    for passes in range(1, deepest + 1):
        found = _within(view, caps, seconds, passes)
        if found[0] > best[0] * _NO_LESS:
            best = found
    return best[1]


def affordable(free: int, cache: int, vocabulary: int, activations: int) -> int:
    """Tokens that all rows together may draft with `free` bytes of memory: none where none fits.

    What a candidate takes as SpecMemo counts it (Yildirim and Chen 2025, arXiv 2506.01986): keys and values,
    `cache` bytes a token until they are refused, its logits, and the buffers of a pass, `activations`
    bytes a token. The paper's own formula was not readable: ours.
    """
    return max(0, free // (cache + _LOGITS * vocabulary + activations))


def fitted(device: str, points: Iterable[tuple[int, float]]) -> Curve:
    """The curve that is nearest to measured (tokens, seconds) and never falls: by least squares.

    Pool adjacent violators (Ayer et al. 1955) over the means of each number of tokens. Raises PlanError
    for points at fewer than two numbers of tokens.
    """
    seconds: dict[int, list[float]] = defaultdict(list)
    for tokens, taken in points:
        seconds[tokens].append(taken)
    if len(seconds) < 2:
        raise PlanError(
            f"drafts on {device}: steps of {sorted(seconds)} tokens were measured; measure two sizes or more"
        )
    pools: list[tuple[list[int], float, int]] = []  # numbers of tokens, their mean, how many points
    for tokens in sorted(seconds):
        pool = ([tokens], sum(seconds[tokens]) / len(seconds[tokens]), len(seconds[tokens]))
        while pools and pools[-1][1] > pool[1]:
            pool = _together(pools.pop(), pool)
        pools.append(pool)
    return Curve(device, tuple((tokens, mean) for all_, mean, _ in pools for tokens in all_))


class Drafting:
    """What steps have taken, and from it how much the next one drafts. See `View` for `most` and `certain`.

    While all steps were of one size each row drafts one token: what drafts take is then known.
    """

    def __init__(self, most: int, certain: float = math.inf) -> None:
        self._most = most
        self._certain = certain
        self._taken: dict[int, deque[float]] = {}
        self._curve: Curve | None = None

    def learn(self, tokens: int, seconds: float) -> None:
        """A step that read `tokens`, those of prompts among them, took `seconds`."""
        self._taken.setdefault(_rounded(tokens), deque(maxlen=_NEWEST_STEPS)).append(seconds)
        self._curve = None

    def lengths(
        self, rows: Sequence[Row], beside: int = 0, budget: int = UNBOUND, drafting: float = 0.0
    ) -> tuple[int, ...]:
        """Tokens to draft for each row; `beside`, `budget` and `drafting` as in `View`."""
        curve = self.curve
        most = self._most if curve is not None else min(1, self._most)
        return lengths(
            View(tuple(rows), curve or _FREE, most, budget, self._certain, beside, drafting * bool(curve))
        )

    @property
    def curve(self) -> Curve | None:
        """Seconds by tokens in a step; None while that is not known."""
        if self._curve is None and len(self._taken) > 1:
            self._curve = fitted("this device", ((n, median(t)) for n, t in self._taken.items()))
        return self._curve


def _rounded(tokens: int) -> int:
    """Sizes that differ by less than a sixteenth are one: their points make the curve, not each its own."""
    spare = max(0, tokens.bit_length() - 5)
    return tokens >> spare << spare


def _cap(view: View, row: Row) -> int:
    return 0 if row.entropy > view.certain else min(row.proposed, view.most)


def _within(view: View, caps: list[int], seconds: list[float], passes: int) -> tuple[float, tuple[int, ...]]:
    """The most tokens a second with so many passes of the draft model, and the lengths that give them."""
    ordered = sorted(
        (-(row.acceptance**j), j, i)
        for i, (row, cap) in enumerate(zip(view.rows, caps, strict=True))
        for j in range(1, (min(cap, passes) if row.by_model else cap) + 1)
    )[: max(view.budget, 0)]
    emitted, spent = float(len(view.rows) + view.beside), passes * view.drafting
    best, most = 0, emitted / (seconds[0] + spent)
    for drafted, (gain, _, _) in enumerate(ordered, 1):
        emitted -= gain
        rate = emitted / (seconds[drafted] + spent)
        if rate > most * _NO_LESS:
            best, most = drafted, rate
    found = [0] * len(caps)
    for _, _, i in ordered[:best]:
        found[i] += 1
    return most, tuple(found)


def _together(
    a: tuple[list[int], float, int], b: tuple[list[int], float, int]
) -> tuple[list[int], float, int]:
    count = a[2] + b[2]
    return a[0] + b[0], (a[1] * a[2] + b[1] * b[2]) / count, count
