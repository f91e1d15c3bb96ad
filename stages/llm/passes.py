"""One pass through the network: whose tokens are in the flat list, and where each finds its past.

Sequences that decode lie in slots of slabs and are attended to slab by slab, all slots in two products;
prompts one by one. What several sequences share is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stages.llm.attention import Mask, Past, Slab, allowed, causal, over_parts, whole
from stages.llm.network import Network

__all__ = ["Decoding", "Pass", "Prompt", "Reader"]


class Reader(Protocol):
    """Some rows of the flat list. `count` of them; `attend` keeps k and v, and gives [count, H·d]."""

    count: int

    def attend(self, at: int, q: Any, k: Any, v: Any) -> Any:
        """What these rows see in layer `at`."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Attention of a whole pass: its readers have the rows of the flat list one after the other."""

    readers: tuple[Reader, ...]

    def __call__(self, at: int, q: Any, k: Any, v: Any) -> Any:
        """See `network.Attend`."""
        import torch

        if len(self.readers) == 1:
            return self.readers[0].attend(at, q, k, v)
        made, start = [], 0
        for reader in self.readers:
            rows = slice(start, start + reader.count)
            made.append(reader.attend(at, q[rows], k[rows], v[rows]))
            start = rows.stop
        return torch.cat(made)


class Prompt:
    """`count` tokens of one sequence, `start` behind the prefix `past`, in a slot of a slab."""

    def __init__(
        self, network: Network, slab: Slab, slot: int, start: int, count: int, past: Sequence[Past] = ()
    ) -> None:
        self.count = count
        self._net, self._slab, self._slot = network, slab, slot
        self._start, self._stop, self._past = start, start + count, tuple(past)
        self._masks: dict[int, Mask] = {}

    def attend(self, at: int, q: Any, k: Any, v: Any) -> Any:
        """See `Reader`."""
        keys, values = self._slab.keys[at][self._slot], self._slab.values[at][self._slot]
        keys[:, :, self._start : self._stop] = k.permute(1, 2, 0)
        values[:, self._start : self._stop] = v.transpose(0, 1)
        net, window = self._net, self._net.layers[at].window
        is_plain = not (self._past or self._start or net.softcap or 0 < window < self._stop)
        if is_plain:
            return whole(q, k, v, net.scale)
        parts = [(p.keys[at], p.values[at]) for p in self._past]
        parts.append((keys[:, :, : self._stop], values[:, : self._stop]))
        kinds = net.sizes.kv_heads
        rows = q.unflatten(1, (kinds, -1)).transpose(0, 1).flatten(1, 2)
        seen = over_parts(rows, parts, self._mask(window), net.scale, net.softcap)
        return seen.unflatten(1, (self.count, -1)).transpose(0, 1).flatten(1)

    def _mask(self, window: int) -> Mask:
        """What is shared is all visible (models with windows share nothing), and so is what came before."""
        if window not in self._masks:
            s, shared = self._net.sizes, sum(map(len, self._past))
            first = 0 if 0 < window < self._stop else self._start + 1
            own = causal(self._start, self.count, window, self._net.device)[:, first:]
            added = own.repeat_interleave(s.heads // s.kv_heads, 0)[None].to(self._net.embedding.dtype)
            self._masks[window] = Mask(shared + first, added)
        return self._masks[window]


class Decoding:
    """Sequences that decode in one slab: each has its last token, and drafts after it, in the flat list.

    `slots` ascending; `starts`: own tokens of each that are there before the pass; `counts`: tokens of each
    in it. `shared`: groups that read the same prefix, as places in `slots` and what they share.
    """

    def __init__(
        self,
        network: Network,
        slab: Slab,
        slots: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        shared: Sequence[tuple[Sequence[int], Sequence[Past]]] = (),
    ) -> None:
        import torch

        self._net, self._slab = network, slab
        self.count, self._steps, self._high = sum(counts), max(counts), slots[-1] + 1
        self._length = max(s + c for s, c in zip(starts, counts, strict=True))
        self._seen = min(starts) + 1  # all see so many of their own
        device = network.device
        rows = [(s, i, a + i) for s, a, c in zip(slots, starts, counts, strict=True) for i in range(c)]
        at = torch.tensor(rows, device=device)
        self._slot, self._step, self._position = at.unbind(1)
        self._is_dense = self._steps == 1 and len(slots) == self._high
        self._queries = torch.zeros(self._high, self._steps, dtype=torch.int64, device=device)
        self._queries[self._slot, self._step] = self._position
        self._shared = [(torch.tensor([slots[i] for i in g], device=device), past) for g, past in shared]
        self._masks: dict[int, Mask] = {}

    def attend(self, at: int, q: Any, k: Any, v: Any) -> Any:
        """See `Reader`."""
        keys, values = self._slab.keys[at], self._slab.values[at]
        keys[self._slot, :, :, self._position] = k
        values[self._slot, :, self._position] = v
        keys = keys[: self._high, :, :, : self._length].flatten(0, 1)
        values = values[: self._high, :, : self._length].flatten(0, 1)
        net = self._net
        rows, mask = self._rows(q), self._mask(net.layers[at].window)
        if self._shared:
            seen = self._with_shared(at, rows, keys, values, mask)
        else:
            seen = over_parts(rows, [(keys, values)], mask, net.scale, net.softcap)
        return self._flat(seen)

    def _rows(self, q: Any) -> Any:
        """q [count, H, d] as [slots·K, steps·G, d]; slots and steps that are not in the pass are 0."""
        s = self._net.sizes
        groups = s.heads // s.kv_heads
        if self._is_dense:
            return q.reshape(-1, groups, s.head)
        padded = q.new_zeros(self._high, self._steps, s.heads, s.head)
        padded[self._slot, self._step] = q
        return (
            padded.unflatten(2, (s.kv_heads, groups))
            .transpose(1, 2)
            .reshape(self._high * s.kv_heads, self._steps * groups, s.head)
        )

    def _flat(self, seen: Any) -> Any:
        s = self._net.sizes
        if self._is_dense:
            return seen.reshape(self.count, -1)
        apart = seen.view(self._high, s.kv_heads, self._steps, -1, s.head).transpose(1, 2)
        return apart[self._slot, self._step].flatten(1)

    def _mask(self, window: int) -> Mask:
        """For rows [slots·K, 1 or steps·G] and own keys."""
        import torch

        if window not in self._masks:
            s = self._net.sizes
            first = 0 if 0 < window < self._length else self._seen
            at = torch.arange(first, self._length, device=self._queries.device)
            mask = allowed(self._queries, at, window).to(self._net.embedding.dtype)
            if self._steps > 1:
                mask = mask.repeat_interleave(s.heads // s.kv_heads, 1)
            self._masks[window] = Mask(first, mask.repeat_interleave(s.kv_heads, 0))
        return self._masks[window]

    def _with_shared(self, at: int, rows: Any, keys: Any, values: Any, mask: Mask) -> Any:
        """Scores of prefixes, [slots, K, R, P] with minus infinity where there is none, before the own
        ones.
        """
        import torch

        net, kinds = self._net, self._net.sizes.kv_heads
        q = rows.unflatten(0, (-1, kinds))
        most = max(sum(map(len, past)) for _, past in self._shared)
        before = q.new_full((*q.shape[:3], most), -torch.inf)
        for group, past in self._shared:
            asked = q[group].transpose(0, 1).flatten(1, 2)
            found = torch.cat([torch.bmm(asked, p.keys[at]) for p in past], -1)
            before[group, :, :, : found.shape[-1]] = _apart(found, 1, len(group)).transpose(0, 1)
        scores = torch.cat([before.flatten(0, 1), torch.bmm(rows, keys)], -1).mul_(net.scale)
        if net.softcap:
            scores = scores.div_(net.softcap).tanh_().mul_(net.softcap)
            scores[..., :most].masked_fill_(before.flatten(0, 1).isinf(), -torch.inf)
        mask.on(scores[..., most:])
        weights = torch.softmax(scores, -1)
        made = _apart(torch.bmm(weights[..., most:], values), 0, -1, kinds)
        parts = _apart(weights[..., :most], 0, -1, kinds)
        for group, past in self._shared:
            size = sum(map(len, past))
            part = parts[group, :, :, :size].transpose(0, 1).flatten(1, 2)
            split = torch.split(part, [len(p) for p in past], -1)
            for w, p in zip(split, past, strict=True):
                made[group] += _apart(torch.bmm(w, p.values[at]), 1, len(group)).transpose(0, 1)
        return made.flatten(0, 1)


def _apart(x: Any, axis: int, first: int, second: int = -1) -> Any:
    """`x` with an axis as two."""
    return x.unflatten(axis, (first, second))
