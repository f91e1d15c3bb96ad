"""The plain reference: a Llama in NumPy, one prompt at a time, everything computed anew for each token.

It is what the other decoders are compared with, and slow; use it for models of a few thousand parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelError
from stages.llm import weights
from stages.llm.accept import inverse
from stages.llm.decoder import Abilities, Ask, Counts, Said
from stages.llm.loaded import Loaded
from stages.llm.sampling import distribution, uniform
from stages.llm.sequence import Sequence

__all__ = ["Reference", "reference"]

Array = NDArray[np.float64]


def reference(loaded: Loaded) -> Reference:
    """The model computed from its files. Raises ModelError for one that is no plain Llama."""
    config = loaded.model.config
    kind, rope = config.model_type, config.rope_parameters.get("rope_type", "default")
    if kind != "llama" or rope != "default" or config.attention_bias or config.mlp_bias:
        raise ModelError(
            f"model {loaded.stage.model!r}: the reference runs Llamas with default rotary embedding and "
            f"without biases, not {kind!r} with {rope!r}; leave decoder out"
        )
    return Reference(weights.folder(loaded.stage.model), loaded.ends, loaded.decode)


class Reference:
    """A folder with config.json and float32 safetensors of a Llama; see `Library` for the rest."""

    abilities = Abilities(constraints=True)

    def __init__(self, folder: Path, ends: frozenset[int], decode: Callable[[Many[int]], str]) -> None:
        from safetensors.numpy import load_file

        self._config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        files = sorted(folder.glob("*.safetensors"))
        self._weights = {k: v.astype(np.float64) for f in files for k, v in load_file(f).items()}
        self._ends, self._decode = ends, decode
        self.counts = Counts()

    def answer(self, asks: Many[Ask]) -> list[Said]:
        """See `Decoder`."""
        return [self._say(ask) for ask in asks]

    def _say(self, ask: Ask) -> Said:
        s = Sequence(ask, self._decode)
        while not s.take([self._next(s)], self._ends):
            pass
        self.counts.add(s.size, s.result())
        return s.result()

    def _next(self, s: Sequence) -> int:
        logits = self.logits(np.array(s.tokens))[-1]
        s.guess(0)
        if s.masks is not None:
            logits = np.where(s.masks[0], logits, -np.inf)
        if not np.isfinite(logits.max()):
            return -1
        sampling = s.ask.sampling
        if sampling.greedy:
            return int(logits.argmax())
        return inverse(distribution(logits, sampling), uniform(sampling.seed, s.ask.row, s.said))

    def logits(self, tokens: NDArray[np.int64]) -> Array:
        """float64 [S, V] for tokens [S]."""
        w, eps = self._weights, self._config["rms_norm_eps"]
        x = w["model.embed_tokens.weight"][tokens]
        for i in range(self._config["num_hidden_layers"]):
            at = f"model.layers.{i}."
            x = x + self._attention(at, _norm(x, w[f"{at}input_layernorm.weight"], eps))
            h = _norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
            gate = h @ w[f"{at}mlp.gate_proj.weight"].T
            up = h @ w[f"{at}mlp.up_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{at}mlp.down_proj.weight"].T
        head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
        made: Array = _norm(x, w["model.norm.weight"], eps) @ head.T
        return made

    def _attention(self, at: str, h: Array) -> Array:
        heads, keys = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        q, k, v = (
            (h @ self._weights[f"{at}self_attn.{n}_proj.weight"].T).reshape(len(h), count, -1).swapaxes(0, 1)
            for n, count in (("q", heads), ("k", keys), ("v", keys))
        )
        q, k = self._turned(q), self._turned(k).repeat(heads // keys, 0)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(len(h), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weights / weights.sum(-1, keepdims=True) @ v.repeat(heads // keys, 0)
        made: Array = (
            seen.swapaxes(0, 1).reshape(len(h), -1) @ self._weights[f"{at}self_attn.o_proj.weight"].T
        )
        return made

    def _turned(self, x: Array) -> Array:
        """Rotary embedding: element i turns with i + d/2."""
        half = x.shape[-1] // 2
        base = self._rope()
        angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def _rope(self) -> float:
        rope: dict[str, Any] = self._config.get("rope_parameters") or {}
        return float(rope.get("rope_theta", self._config.get("rope_theta", 10000.0)))


def _norm(x: Array, weight: Array, eps: float) -> Array:
    made: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return made
