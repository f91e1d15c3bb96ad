"""Attention of many sequences whose keys and values lie in different places.

A sequence's past is a chain of parts: prefixes that it shares with others, then its own. Keys are kept
transposed, [K, d, T], which is how a product with a few queries reads them in order. Scores of all parts
stand side by side and share one softmax, so a part is read once for all who share it, and the result is
what attention over one long row of keys gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.llm.network import Network

__all__ = ["Mask", "Past", "Slab", "allowed", "causal", "over_parts", "whole", "zeros"]


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Keys and values of T tokens that nobody writes any more: [L, K, d, T] and [L, K, T, d]."""

    keys: Any
    values: Any

    def __len__(self) -> int:
        return int(self.keys.shape[-1])

    def cut(self, start: int, stop: int) -> Past:
        """Tokens from `start` to `stop`; nothing is copied."""
        return Past(self.keys[..., start:stop], self.values[:, :, start:stop])

    def to(self, device: str) -> Past:
        """The same on another torch device."""
        return Past(self.keys.to(device), self.values.to(device))

    def write(self, slab: Slab, slot: int, start: int) -> None:
        """Fill it with what lies in a slot from token `start` on, while nobody reads it yet."""
        stop = start + len(self)
        for at, (keys, values) in enumerate(zip(slab.keys, slab.values, strict=True)):
            self.keys[at] = keys[slot, :, :, start:stop]
            self.values[at] = values[slot, :, start:stop]


def joined(pasts: Sequence[Past]) -> Past:
    """One past of several that follow each other."""
    import torch

    if len(pasts) == 1:
        return pasts[0]
    return Past(torch.cat([p.keys for p in pasts], -1), torch.cat([p.values for p in pasts], 2))


class Slab:
    """Keys and values of sequences under way, a slot each of `capacity` tokens.

    A layer has keys [slots, K, d, capacity] and values [slots, K, capacity, d]. What nobody wrote is 0, and
    what somebody left is finite: it is multiplied by weights of 0.
    """

    def __init__(self, network: Network, slots: int, capacity: int) -> None:
        s = network.sizes
        self.slots, self.capacity = slots, capacity
        like = (network.embedding.dtype, network.device)
        self.keys = [zeros((slots, s.kv_heads, s.head, capacity), *like) for _ in range(s.layers)]
        self.values = [zeros((slots, s.kv_heads, capacity, s.head), *like) for _ in range(s.layers)]

    def extent(self, slot: int, start: int, stop: int) -> Past:
        """A copy of what lies in a slot."""
        import torch

        keys = torch.stack([k[slot, :, :, start:stop] for k in self.keys])
        return Past(keys, torch.stack([v[slot, :, start:stop] for v in self.values]))

    def put(self, slot: int, start: int, past: Past) -> None:
        """Write a past into a slot, from token `start` on."""
        stop = start + len(past)
        for at, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            keys[slot, :, :, start:stop] = past.keys[at]
            values[slot, :, start:stop] = past.values[at]

    def wipe(self, slot: int) -> None:
        """Zeros everywhere in a slot, whose numbers may not be finite."""
        for tensor in (*self.keys, *self.values):
            tensor[slot] = 0

    def move(self, source: int, slot: int, length: int) -> None:
        """Copy the first `length` tokens of a slot to another."""
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[slot, :, :, :length] = keys[source, :, :, :length]
            values[slot, :, :length] = values[source, :, :length]


def zeros(shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """A tensor of zeros; on a CPU its memory is taken where it is first written, not here."""
    import torch

    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """What is hidden of scores [B, R, T]: `added` [B or 1, R or 1, T - start] is added from key `start` on.

    All see what comes before. Rows of one length have little to hide, and most of the scores stay untouched.
    """

    start: int
    added: Any

    def on(self, scores: Any) -> Any:
        """The scores, changed in place."""
        if self.added.shape[-1]:
            scores[..., self.start :].add_(self.added)
        return scores


def allowed(queries: Any, keys: Any, window: int) -> Any:
    """What is added to scores, [..., S, T] float32: 0 where key position <= query position, and within
    `window` (0: however far back); else minus infinity. `queries`: int64 [..., S]; `keys`: int64 [T].
    """
    import torch

    distance = queries[..., None] - keys
    seen = distance >= 0
    if window:
        seen &= distance < window
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)


def causal(start: int, count: int, window: int, device: Any) -> Any:
    """`allowed` for queries at `start` to `start + count` and all keys up to them."""
    import torch

    at = torch.arange(start + count, device=device)
    return allowed(at[start:], at, window)


def whole(q: Any, k: Any, v: Any, scale: float) -> Any:
    """Causal attention of a sequence that begins here: q [S, H, d], k and v [S, K, d] to [S, H·d]."""
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    grouped = q.shape[1] != k.shape[1]
    seen = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    return seen[0].transpose(0, 1).flatten(1)


def over_parts(
    q: Any, parts: Sequence[tuple[Any, Any]], mask: Mask, scale: float, softcap: float = 0.0
) -> Any:
    """Attention of q [B, R, d] over parts (keys [B, d, T_i], values [B, T_i, d]) to [B, R, d]."""
    import torch

    q = q * scale
    found = [torch.bmm(q, keys) for keys, _ in parts]
    scores = found[0] if len(found) == 1 else torch.cat(found, -1)
    if softcap:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    weights = torch.softmax(mask.on(scores), -1)
    if len(parts) == 1:
        return torch.bmm(weights, parts[0][1])
    split = torch.split(weights, [values.shape[1] for _, values in parts], -1)
    made = torch.bmm(split[0], parts[0][1])
    for part, (_, values) in zip(split[1:], parts[1:], strict=True):
        made = made.baddbmm_(part, values)
    return made
