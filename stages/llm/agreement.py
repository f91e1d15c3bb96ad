"""Whether a network computes what the library does: compared once, on a paragraph, when a model is opened.

In float32 the two must agree; in half precision, and in 8 bits, how far they differ is measured and told.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ModelError
from stages.llm.attention import Slab
from stages.llm.network import Network
from stages.llm.passes import Pass, Prompt

__all__ = ["Agreement", "Sample", "compared", "sample", "tell"]

TEXT = """The observatory stands on a ridge above the valley, and was opened in 1932. Measurements of snow
depth are taken at eight in the morning; when more than 40 centimetres have fallen, the road to the station
is closed, and supplies are brought by sledge. The director, who lives on the site, reports to the council."""
TOKENS = 64
CLOSE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
"""Of the largest logit: what two orders of summing may differ by, with room to spare."""
_log = logging.getLogger("ridgeway")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Tokens int64 [S] and the library's logits for each, float32 [S, V]."""

    tokens: Any
    logits: Any


@dataclass(frozen=True, slots=True)
class Agreement:
    """`error`: the largest difference, as a share of the largest logit; `same`: at how many of `count` tokens
    the most probable next one is the same.
    """

    error: float
    same: int
    count: int


def sample(model: Any, tokenizer: Any) -> Sample:
    """What the library's model says to a paragraph; before its weights are given up."""
    import torch

    ids = tokenizer(TEXT, add_special_tokens=True).input_ids[:TOKENS]
    tokens = torch.tensor(ids, device=model.device)
    with torch.inference_mode():
        return Sample(tokens, model(tokens[None]).logits[0].float())


def compared(network: Network, known: Sample) -> Agreement:
    """How far the network agrees."""
    import torch

    count = len(known.tokens)
    with torch.inference_mode():
        reading = Pass((Prompt(network, Slab(network, 1, count), 0, 0, count),))
        positions = torch.arange(count, device=network.device)
        logits = network.logits(network.hidden(known.tokens, positions, reading))
        error = (logits - known.logits).abs().max() / known.logits.abs().max()
        same = (logits.argmax(-1) == known.logits.argmax(-1)).sum()
    return Agreement(float(error), int(same), count)


def tell(network: Network, known: Sample, name: str, quantised: str) -> None:
    """Compare, and log what 8 bits cost. Raises ModelError where the network is not the library's model."""
    found = compared(network, known)
    if quantised:
        told = "model %s in %s: logits differ by up to %.1f %% of the largest, the best token is the same"
        _log.info(f"{told} at %d of %d places", name, quantised, 100 * found.error, found.same, found.count)
        return
    dtype = str(network.embedding.dtype).removeprefix("torch.")
    if not found.error <= CLOSE[dtype]:
        raise ModelError(
            f"model {name!r}: our engine's logits differ from transformers' by {found.error:.3g} of the "
            "largest; "
            "give decoder: transformers"
        )
