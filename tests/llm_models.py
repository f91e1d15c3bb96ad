"""Tiny random models by family, as transformers makes them, and what they say greedily: the truth."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 97
END = 2
WINDOW = 256

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": END,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True}),
    "llama, all heads": ("Llama", {"num_key_value_heads": 4}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("Llama", {"rope_parameters": YARN}),
    "llama, linear": ("Llama", {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": 20}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
}
"""By name: the class's name without its endings, and what its configuration says beside `SIZES`."""


def tiny(name: str, **changes: Any) -> Any:
    """A random model in float32. Weights of norms and biases are as random as the others."""
    import torch
    import transformers

    stem, settings = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{stem}TextConfig" if stem == "Gemma3" else f"{stem}Config")
    made = getattr(transformers, f"{stem}ForCausalLM")(config(**{**SIZES, **settings, **changes})).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def random_tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    """Tokens of a prompt, none of them special."""
    return np.random.default_rng([seed, count]).integers(3, VOCABULARY, count).astype(np.int32)


class Greedy:
    """What a model's own `generate` says to a prompt alone, remembered."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._said = functools.cache(self._generate)

    def __call__(self, prompt: Sequence[int] | NDArray[np.int32], most: int) -> tuple[int, ...]:
        return self._said(tuple(int(t) for t in prompt), most)

    def _generate(self, prompt: tuple[int, ...], most: int) -> tuple[int, ...]:
        import torch

        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=most,
                do_sample=False,
                eos_token_id=END,
                pad_token_id=0,
            )
        return tuple(out[0, len(prompt) :].tolist())


def numbers(tokens: Sequence[int]) -> str:
    """Tokens as text: their numbers, those of the end left out."""
    return "".join(f" {t}" for t in tokens if t != END)


def one_thread() -> Iterator[None]:
    """For a fixture: tiny products gain nothing from more, and threads that spin wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
