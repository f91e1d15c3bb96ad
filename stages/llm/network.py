"""A decoder network over a flat list of tokens: whose tokens they are is the attention's affair.

Tokens of prompts and of answers, of any number of sequences, go through the same few matrix products
together; nothing is padded. The weights of norms are part of the products that follow them, and heads are
turned (rotary embedding, Su et al. 2021, arXiv 2104.09864) as complex numbers, so that a layer takes few
calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stages.llm.linear import Linear

__all__ = ["Attend", "Layer", "Network", "Sizes"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """L `layers`; H query `heads` and K `kv_heads` of `head` elements each; `width` D, `vocabulary` V, in
    tokens the `window`, and bytes of an element. `inner` F: width between the two halves of an MLP.
    """

    layers: int
    heads: int
    kv_heads: int
    head: int
    width: int
    inner: int
    vocabulary: int
    window: int
    element: int

    @property
    def token_bytes(self) -> int:
        """Bytes that the keys and values of a token take."""
        return 2 * self.layers * self.kv_heads * self.head * self.element


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Weights of a layer. `qkv`, `up` (gate and up, one below the other) have the norm before them in them.

    `rope`: which table turns its heads (-1: none); `window`: tokens that it looks back to, 0: all. The
    norms of heads [d] (Qwen 3, Gemma 3) and of what the two halves give [D] (Gemma 2, 3) are None where
    there is none.
    """

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    rope: int = 0
    window: int = 0
    q_norm: Any = None
    k_norm: Any = None
    after_attention: Any = None
    after_mlp: Any = None


class Attend(Protocol):
    """Attention in layer `at`: q [N, H, d], k and v [N, K, d] of the tokens, to [N, H·d].

    It keeps k and v where later tokens of the same sequence will look.
    """

    def __call__(self, at: int, q: Any, k: Any, v: Any) -> Any:
        """What each token sees."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A model in the form in which it is run. `scale` of attention scores; `softcap`s: 0 for none.

    `embedding` [V, D]; `ropes`: complex64 [window, 1, d/2] each; `activation` of the gate; `head` gives
    logits. `floor`: the square root of D times `eps` of the norms, a tensor [].
    """

    sizes: Sizes
    layers: tuple[Layer, ...]
    embedding: Any
    embedding_scale: float
    head: Linear
    ropes: tuple[Any, ...]
    activation: Callable[[Any], Any]
    eps: float
    floor: Any
    scale: float
    softcap: float = 0.0
    head_softcap: float = 0.0

    @property
    def device(self) -> Any:
        """Where it is."""
        return self.embedding.device

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        own = int(self.embedding.numel() * self.embedding.element_size()) + self.head.nbytes
        return own + sum(p.nbytes for y in self.layers for p in (y.qkv, y.out, y.up, y.down))

    @property
    def has_windows(self) -> bool:
        """Whether a layer looks back only so far; such models read prefixes only in their own slots."""
        return any(layer.window for layer in self.layers)

    def hidden(self, tokens: Any, positions: Any, attend: Attend) -> Any:
        """The last layer's output [N, D] for tokens int64 [N] at positions int64 [N], without the last
        norm.
        """
        from torch.nn.functional import embedding

        x = embedding(tokens, self.embedding)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        turns = [table[positions] for table in self.ropes]
        for at, layer in enumerate(self.layers):
            seen = layer.out(attend(at, *self._heads(layer, layer.qkv(self.unit(x)), turns)))
            x = x + (seen if layer.after_attention is None else self._normed(seen, layer.after_attention))
            both = layer.up(self.unit(x))
            half = both.shape[1] // 2
            said = layer.down(self.activation(both[:, :half]).mul_(both[:, half:]))
            x = x.add_(said if layer.after_mlp is None else self._normed(said, layer.after_mlp))
        return x

    def logits(self, hidden: Any) -> Any:
        """float32 [N, V] of the next token."""
        import torch

        found = self.head(self.unit(hidden)).float()
        return torch.tanh(found / self.head_softcap).mul_(self.head_softcap) if self.head_softcap else found

    def unit(self, x: Any) -> Any:
        """`x` over its root mean square (Zhang and Sennrich 2019, arXiv 1910.07467); in float32 over its
        norm.

        The square root of D between the two is in the weights that follow: `norm_factor`.
        """
        import torch
        from torch.nn.functional import rms_norm

        if x.dtype != torch.float32:
            return rms_norm(x, x.shape[-1:], None, self.eps)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / norm.hypot_(self.floor)

    def _normed(self, x: Any, weight: Any) -> Any:
        from torch.nn.functional import rms_norm

        return rms_norm(x, x.shape[-1:], weight, self.eps)

    def _heads(self, layer: Layer, qkv: Any, turns: list[Any]) -> tuple[Any, Any, Any]:
        """q, k, v of what the product gave, q and k turned."""
        import torch

        sizes = self.sizes
        both = sizes.heads + sizes.kv_heads
        found = qkv.unflatten(1, (both + sizes.kv_heads, sizes.head))
        qk, v = found[:, :both], found[:, both:]
        if layer.q_norm is not None:
            q, k = qk[:, : sizes.heads], qk[:, sizes.heads :]
            qk = torch.cat([self._normed(q, layer.q_norm), self._normed(k, layer.k_norm)], 1)
        if layer.rope >= 0:
            pairs = torch.view_as_complex(qk.float().unflatten(-1, (-1, 2)))
            qk = torch.view_as_real(pairs * turns[layer.rope]).flatten(-2).to(v.dtype)
        return qk[:, : sizes.heads], qk[:, sizes.heads :], v


def norm_factor(width: int, is_single: bool) -> float:
    """What weights behind a norm are multiplied by: see `Network.unit`."""
    return math.sqrt(width) if is_single else 1.0
