"""From a model of the transformers library to a `Network`: the families of decoders that we run ourselves.

A model is accepted by what it is made of; others run through the library (`stages.llm.library`), which is
right too, and slower. One that is accepted, but whose logits are not the library's, is an error when it is
opened (`stages.llm.agreement`), never another decoder in silence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline.errors import ModelError
from stages.llm.linear import INT8, Linear, forms
from stages.llm.network import Layer, Network, Sizes, norm_factor

__all__ = ["FAMILIES", "network", "refusal", "with_twin"]

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"})
"""Values of `model_type` in a configuration. SmolLM and SmolLM2 are Llamas."""
_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings that do not depend on how long a sequence becomes."""


def refusal(model: Any) -> str:
    """Why this model is not run by us; empty where it is."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"models of type {config.model_type!r} are run by transformers"
    ropes = _rope_parameters(config).values()
    kinds = {rope.get("rope_type", "default") for rope in ropes}
    if any(rope.get("partial_rotary_factor", 1.0) != 1.0 for rope in ropes):
        return "rotary embedding of a part of a head is left to transformers"
    if kinds - _ROPES:
        return f"rotary embedding {sorted(kinds - _ROPES)[0]!r} is left to transformers"
    if getattr(config, "use_bidirectional_attention", False):
        return "bidirectional attention is left to transformers"
    return ""


def network(model: Any, quantise: str = "") -> Network:
    """The network of a loaded model, whose own weights are given up on the way, so that memory holds them
    once.

    `quantise`: "int8" for 8-bit products in the layers (CPU). Raises ModelError for a model with a `refusal`.
    """
    import torch

    why = refusal(model)
    if why:
        raise ModelError(why)
    inner, config = model.model, model.config
    is_single = inner.embed_tokens.weight.dtype == torch.float32
    with torch.no_grad():
        build = _Build(model, is_single, quantise)
        kinds = build.ropes()
        tables = tuple(build.table(k) for k in kinds)
        layers = tuple(build.layer(y, kinds) for y in inner.layers)
        embedding = inner.embed_tokens.weight.detach()
        head = build.head()
    return Network(
        sizes=build.sizes,
        layers=layers,
        embedding=embedding,
        embedding_scale=float(getattr(inner.embed_tokens, "scalar_embed_scale", 1.0)),
        head=head,
        ropes=tables,
        activation=_activation(inner.layers[0].mlp.act_fn),
        eps=float(config.rms_norm_eps),
        floor=torch.tensor(config.rms_norm_eps * config.hidden_size, device=embedding.device).sqrt(),
        scale=float(inner.layers[0].self_attn.scaling),
        softcap=float(getattr(config, "attn_logit_softcapping", None) or 0.0),
        head_softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
    )


def with_twin(model: Any) -> tuple[Network, Network]:
    """The network of a loaded model, and one whose layers are copies in 8 bits (CPU); all else they share."""
    import torch

    why = refusal(model)
    if why:
        raise ModelError(why)
    is_single = model.model.embed_tokens.weight.dtype == torch.float32
    with torch.no_grad():
        build = _Build(model, is_single, INT8, keeps=True)
        kinds = build.ropes()
        layers = tuple(build.layer(y, kinds) for y in model.model.layers)
    made = network(model)
    return made, replace(made, layers=layers)


class _Build:
    """Takes a model apart, which `keeps` its weights where these are copied."""

    def __init__(self, model: Any, is_single: bool, quantise: str, keeps: bool = False) -> None:
        config, weight = model.config, model.model.embed_tokens.weight
        self._model, self._keeps = model, keeps
        self._dtype = weight.dtype
        name = str(weight.dtype).removeprefix("torch.")
        self._form = forms(weight.device.type, name, quantise)
        self._plain = forms(weight.device.type, name)
        self._factor = norm_factor(config.hidden_size, is_single)
        heads = config.num_attention_heads
        self.sizes = Sizes(
            layers=config.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head=getattr(config, "head_dim", None) or config.hidden_size // heads,
            width=config.hidden_size,
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            window=config.max_position_embeddings,
            element=weight.element_size(),
        )

    def ropes(self) -> tuple[str, ...]:
        """Kinds of rotary embeddings: one, or one for each type of layer (Gemma 3)."""
        return tuple(sorted(_rope_parameters(self._model.config)))

    def table(self, kind: str) -> Any:
        """cos + i sin for each position and pair, complex64 [window, 1, d/2]."""
        import torch

        rotary, device = self._model.model.rotary_emb, self._model.device
        x = torch.empty(1, dtype=torch.float32, device=device)
        at = torch.arange(self.sizes.window, device=device)[None]
        cos, sin = rotary(x, at, kind) if kind else rotary(x, at)
        half = cos.shape[-1] // 2
        if cos.shape[-1] != self.sizes.head:
            raise ModelError(f"only {cos.shape[-1]} of {self.sizes.head} elements of a head are turned")
        return torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None].contiguous()

    def layer(self, layer: Any, ropes: tuple[str, ...]) -> Layer:
        """One layer. Its linear modules lose their weights, unless they are kept."""
        own = layer.self_attn
        kind = getattr(own, "layer_type", None)
        gated = getattr(layer, "pre_feedforward_layernorm", None)
        before_mlp = layer.post_attention_layernorm if gated is None else gated
        return Layer(
            qkv=self._joined((own.q_proj, own.k_proj, own.v_proj), layer.input_layernorm, turned=2),
            out=self._joined((own.o_proj,)),
            up=self._joined((layer.mlp.gate_proj, layer.mlp.up_proj), before_mlp),
            down=self._joined((layer.mlp.down_proj,)),
            rope=(ropes.index(kind) if kind in ropes else 0) if getattr(own, "use_rope", True) else -1,
            window=self._window(own),
            q_norm=self._head_norm(getattr(own, "q_norm", None)),
            k_norm=self._head_norm(getattr(own, "k_norm", None)),
            after_attention=None if gated is None else self._norm(layer.post_attention_layernorm),
            after_mlp=None if gated is None else self._norm(layer.post_feedforward_layernorm),
        )

    def _window(self, own: Any) -> int:
        """Tokens that a layer looks back to; Mistral says so for all layers at once."""
        config = self._model.config
        everywhere = config.sliding_window if config.model_type == "mistral" else None
        return int(getattr(own, "sliding_window", everywhere) or 0)

    def head(self) -> Linear:
        """The product that gives logits, with the last norm in it; never quantised."""
        weight = self._model.lm_head.weight.detach()
        norm = self._norm(self._model.model.norm).float() * self._factor
        return self._plain((weight.float() * norm).to(self._dtype), None)

    def _joined(self, modules: tuple[Any, ...], norm: Any = None, turned: int = 0) -> Linear:
        """Products that read the same rows, as one; the first `turned` with the pairs of a head together."""
        import torch

        weights, biases = [], []
        for i, m in enumerate(modules):
            weights.append(self._paired(m.weight.detach()) if i < turned else m.weight.detach())
            if m.bias is not None:
                biases.append(self._paired(m.bias.detach()) if i < turned else m.bias.detach())
            if not self._keeps:
                m.weight = None
        weight = torch.cat(weights)
        if norm is not None:
            weight = (weight.float() * (self._norm(norm).float() * self._factor)).to(self._dtype)
        return self._form(weight, torch.cat(biases) if biases else None)

    def _paired(self, weight: Any) -> Any:
        """Rows of each head as 0, d/2, 1, d/2 + 1, ...: the library turns element i with element d/2 + i."""
        d = self.sizes.head
        return weight.unflatten(0, (-1, 2, d // 2)).transpose(1, 2).flatten(0, 2)

    def _norm(self, norm: Any) -> Any:
        """The weight of a norm; Gemma's are written as what they differ from one by."""
        weight = norm.weight.detach()
        return weight + 1 if type(norm).__name__.startswith("Gemma") else weight

    def _head_norm(self, norm: Any) -> Any:
        return None if norm is None else self._paired(self._norm(norm))


def _rope_parameters(config: Any) -> dict[str, Any]:
    """Parameters of the rotary embedding by type of layer, "" where all layers have the same."""
    found = config.rope_parameters
    if "rope_type" in found or "rope_theta" in found:
        return {"": found}
    return {kind: found[kind] for kind in set(config.layer_types) if found.get(kind) is not None}


def _activation(module: Any) -> Any:
    from torch.nn.functional import silu

    return silu if type(module).__name__.lower().startswith("silu") else module
