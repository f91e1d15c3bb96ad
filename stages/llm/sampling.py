"""Which token comes next: the most probable one, or one drawn by chance, row by row.

The idea: a drawn token is a function of the row's logits and of one uniform number, and that number is a
function of seed, row and position alone. So a row says the same whoever shares its batch, whatever was
drawn before, and with drafts or without.

Deliberately not here: penalties, top-k, beams. Greedy decoding (temperature 0) needs no number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RidgewayError, RowId

__all__ = ["INVALID", "Sampling", "choose", "distribution", "entropies", "uniform"]

INVALID = -1
"""What `choose` says for a row whose logits are not finite."""

_BLOCK = 256
"""Tokens that are summed before double precision takes over: the sum of all would take ten times as long."""

_NUCLEUS = (128, 2048)
"""Tokens among which the nucleus is looked for before all are sorted, which takes ten times as long."""

_COLDEST = 1e-30
"""A temperature below which float32 has no inverse; nothing but ties is left to chance long before."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a row are chosen, and what ends it.

    `temperature` 0 takes the most probable token, and then `top_p` and `seed` mean nothing; 1 is the model's
    own distribution. `top_p` keeps the most probable tokens that together reach it. `stop`: texts that end
    the answer, themselves not part of it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise RidgewayError(
                f"temperature is {self.temperature!r}; give 0 (greedy) or more, up to about 2"
            )
        if not 0 < self.top_p <= 1:
            raise RidgewayError(f"top_p is {self.top_p!r}; give more than 0 and at most 1 (all tokens)")
        if type(self.seed) is not int:
            raise RidgewayError(f"seed is {self.seed!r}; give a whole number")
        if type(self.stop) is not tuple or not all(type(s) is str and s for s in self.stop):
            raise RidgewayError(f"stop is {self.stop!r}; give a list of texts, none of them empty")

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0


def uniform(seed: int, row: RowId, position: int, use: int = 0) -> float:
    """A number in [0, 1) with 53 random bits, for the new token at `position` (from 0) of `row`.

    `use` tells numbers of one position apart. A keyed hash of a counter is a random generator without
    state (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3).
    """
    text = repr((seed, row, position, use)).encode()
    bits = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def distribution(logits: NDArray[np.floating[Any]], sampling: Sampling) -> NDArray[np.float64]:
    """The probabilities, float64 [V], that a token is drawn with, for logits [V] whose maximum is finite.

    The plain reference of `choose`. Softmax of logits / temperature, then nucleus sampling (Holtzman et al.
    2020, arXiv 1904.09751, section 3.1): the smallest set of the most probable tokens that reaches `top_p`.
    Ours: tokens that are exactly as probable as the last of them are kept too, so that no token is
    preferred for its number. A logit of -inf is a token that is not allowed.
    """
    shifted: NDArray[np.float64] = np.asarray(logits, np.float64) - np.max(logits)
    if sampling.greedy:
        return np.eye(1, len(shifted), int(np.argmax(shifted))).ravel()
    found: NDArray[np.float64] = np.exp(shifted / sampling.temperature)
    found /= found.sum()
    if sampling.top_p < 1:
        ordered = np.sort(found)[::-1]
        last = min(int(np.searchsorted(np.cumsum(ordered), sampling.top_p)), len(ordered) - 1)
        found[found < ordered[last]] = 0.0
        found /= found.sum()
    return found


def choose(logits: Any, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> Any:
    """The next token of each row, int64 [B], where the logits are: a tensor [B, V].

    Greedy rows take the most probable token and do not read their number of `uniforms` [B]; the others
    take the token at which the sum of `distribution` passes it. `INVALID` for a row whose largest logit
    is not finite: the others are not touched by it.
    """
    import torch

    top, tokens = logits.max(dim=-1)
    drawn = [i for i, s in enumerate(samplings) if not s.greedy]
    if drawn:
        at = torch.tensor(drawn, device=logits.device)
        below = logits.index_select(0, at).float().sub_(top[at, None])
        tokens[at] = _drawn(below, [samplings[i] for i in drawn], [uniforms[i] for i in drawn])
    tokens[~top.isfinite()] = INVALID
    return tokens


def entropies(logits: Any) -> Any:
    """The entropy of each row's softmax in nats, float32 [B], for a tensor [B, V]; see `draft_length`."""
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1)
    return -(logs.exp() * logs.clamp(min=-1e30)).sum(dim=-1)


def _drawn(below: Any, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> Any:
    """Tokens [R] at which the sums of the kept probabilities pass the uniforms [R].

    `below`: logits less the largest of their row, float32 [R, V]; they are overwritten.
    """
    import torch

    inverse = torch.tensor([[1 / max(s.temperature, _COLDEST)] for s in samplings], device=below.device)
    weights = torch.softmax(below.mul_(inverse), dim=-1)
    cut = [i for i, s in enumerate(samplings) if s.top_p < 1]
    if cut:
        at = torch.tensor(cut, device=below.device)
        least = weights.new_zeros(len(samplings), 1)
        least[at] = _least_kept(weights.index_select(0, at), [samplings[i].top_p for i in cut])
        weights.masked_fill_(weights < least, 0.0)
    return _passed(weights, torch.tensor(uniforms, dtype=torch.float64, device=below.device))


def _least_kept(weights: Any, shares: Sequence[float]) -> Any:
    """The probability [R, 1] of the last token that the nucleus of each row [R, V] needs."""
    import torch

    share = torch.tensor(shares, dtype=torch.float64, device=weights.device)[:, None]
    size = weights.shape[-1]
    for count in (*(n for n in _NUCLEUS if n < size), size):
        ordered = weights.topk(count, dim=-1).values
        sums = ordered.double().cumsum(dim=-1)
        if bool((sums[:, -1:] >= share).all()):
            break
    last = torch.searchsorted(sums, share).clamp(max=count - 1)
    return ordered.gather(1, last)


def _passed(weights: Any, uniforms: Any) -> Any:
    """The first token of each row [R, V] at which the running sum exceeds the uniform share of the total.

    Sums of blocks first, then the one block in which it happens.
    """
    import torch

    rows, size = weights.shape
    blocks = torch.nn.functional.pad(weights, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    block, rest = _step(blocks.sum(dim=-1).double(), uniforms[:, None], shares=True)
    inside = blocks[torch.arange(rows, device=weights.device), block].double()
    place, _ = _step(inside, rest, shares=False)
    return block * _BLOCK + place


def _step(parts: Any, wanted: Any, shares: bool) -> tuple[Any, Any]:
    """Where the running sum of `parts` [R, N] exceeds `wanted` [R, 1], and how far into that part it is.

    `shares`: wanted is a share of the total. Rounding never leads behind the last part that is not 0.
    """
    import torch

    sums = parts.cumsum(dim=-1)
    total = sums[:, -1:]
    aim = torch.minimum(wanted * total if shares else wanted, torch.nextafter(total, torch.zeros_like(total)))
    found = (sums > aim).to(torch.int8).argmax(dim=-1)
    before = (sums - parts).gather(1, found[:, None])
    return found, (aim - before).clamp(min=0)
