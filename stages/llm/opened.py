"""A model opened for answering: the decoder that suits it and its device, and what goes with it.

`Generate`, `Prefill` and `Decode` have the same `open`, so stages that name the same model share one. What
they say about it: `decoder` "engine" is ours, "transformers" the library's own loop, "reference" plain NumPy
for tiny Llamas, "vllm" and "llama.cpp" servers that are started; "auto" is `stages.llm.served.preferred`'s
choice, else ours where it knows the model's family, else the library's. `quantize` "int8": 8-bit
products in the layers, on CPUs. `cache_gib`: memory for caches, 0: a share of what is free. `drafts`: tokens
that are guessed at most, from what was said before and by `draft_model`; answers stay the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from pipeline.errors import ModelError, RidgewayError
from pipeline.lookup import Table, find, near_miss
from pipeline.machine import Device
from stages.llm import agreement, constrain, served, weights
from stages.llm.constrain import Constraint, words
from stages.llm.decoder import Decoder
from stages.llm.draft_model import Pair, check_draft_model, pair
from stages.llm.engine import Engine
from stages.llm.family import refusal
from stages.llm.limits import Limits
from stages.llm.linear import INT8
from stages.llm.loaded import Loaded
from stages.llm.rooms import capacity
from stages.llm.served import AUTO
from stages.llm.server_command import KINDS

__all__ = [
    "AUTO",
    "DECODERS",
    "SHARES",
    "Opened",
    "check_model",
    "engine",
    "opened",
    "split_engine",
    "stop_ids",
    "streaming",
]

ENGINE, LIBRARY = "engine", "transformers"
DECODERS: Table = {
    ENGINE: "stages.llm.opened:engine",
    "reference": "stages.llm.reference:reference",
    LIBRARY: "stages.llm.library:library",
}
"""A function for each that makes a `Decoder` of a `Loaded`; the conformance tests hold all of them."""
SHARES = ("model", "dtype", "decoder", "quantize", "cache_gib", "drafts", "draft_model")
"""The parameters that decide what is opened."""
_CPU_SHARE, _CUDA_SHARE = 0.25, 0.8
"""Of the memory that is free once the weights are there, for caches."""
_GIB = 1 << 30
_CHAT_END = "<|im_end|>"
_log = logging.getLogger("ridgeway")


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """`window` in tokens; `threads` of the CPU to use; `grammar` makes of a constraint, once, what the
    decoder wants.
    """

    decoder: Decoder
    tokenizer: Any
    window: int
    threads: int
    grammar: Callable[[Constraint], Any]


def check_model(stage: Any) -> None:
    """Raise RidgewayError for parameters that no model has."""
    name = type(stage).__name__
    for key, value, known in (
        ("dtype", stage.dtype, weights.DTYPES),
        ("decoder", stage.decoder, (AUTO, *DECODERS, *KINDS)),
        ("quantize", stage.quantize, ("", INT8)),
    ):
        if value not in known:
            raise RidgewayError(f"{name}: {key} is {value!r}{near_miss(value, known)}")
    if stage.cache_gib < 0 or stage.drafts < 0:
        raise RidgewayError(
            f"{name}: cache_gib is {stage.cache_gib!r}, drafts is {stage.drafts!r}; give 0 or more"
        )
    if stage.decoder not in (AUTO, ENGINE) and (stage.quantize or stage.cache_gib or stage.drafts):
        raise RidgewayError(
            f"{name}: quantize, cache_gib and drafts are for the engine; leave them, or decoder, out"
        )
    check_draft_model(stage)
    if stage.decoder in KINDS:
        served.check(stage)


def opened(stage: Any, device: Device) -> Opened:
    """Load tokenizer and weights, or start a server that does. Raises ModelError."""
    found = served.preferred(stage, device)
    if device.kind == "cuda" or found.server:
        _log.info("model %s on %s: %s", stage.model, device.name, found.told)
    if found.server:
        return _served(stage, device, found.server)
    import torch

    torch.set_num_threads(device.threads)
    tokenizer = weights.tokenizer(stage.model)
    model = weights.model(stage.model, device, stage.dtype)
    ends = stop_ids(model, tokenizer)
    loaded = Loaded(stage, model, tokenizer, ends)
    decoder = cast(Decoder, find(_chosen(loaded), DECODERS, "decoder")(loaded))
    vocabulary = int(model.config.vocab_size)
    vocabulary_words = cache(lambda: words(tokenizer, vocabulary, ends))
    grammar = cache(lambda constraint: constrain.compile(constraint, vocabulary_words()))
    return Opened(decoder, tokenizer, weights.window(stage.model), device.threads, grammar)


def _served(stage: Any, device: Device, kind: str) -> Opened:
    """The model behind a server, which has the weights and is told constraints as they are."""
    decoder = served.served(kind, stage.model, device)
    window = weights.window(stage.model)
    return Opened(decoder, weights.tokenizer(stage.model), window, device.threads, lambda form: form)


def split_engine(state: Opened, stage: Any) -> Engine:
    """The decoder of a model, if it reads and answers apart. Raises ModelError where it does not."""
    if state.decoder.abilities.split:
        return cast(Engine, state.decoder)
    raise ModelError(
        f"model {stage.model!r} is run in one piece by {type(state.decoder).__name__!r}, which does not "
        "split it; use Generate instead of Prefill and Decode"
    )


def streaming(state: Opened, stage: Any) -> Engine:
    """The decoder of a model, if it gives text as it comes. Raises ModelError where it does not."""
    if state.decoder.abilities.stream:
        return cast(Engine, state.decoder)
    raise ModelError(
        f"model {stage.model!r} is run by {type(state.decoder).__name__!r}, which says nothing before the "
        "end; leave decoder out, or use run"
    )


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: the model's end tokens, the tokenizer's, and the end of a chat turn."""
    own = model.generation_config.eos_token_id
    ids = set(own if isinstance(own, list) else [own])
    ids.add(tokenizer.eos_token_id)
    ids.add(tokenizer.get_added_vocab().get(_CHAT_END))
    return frozenset(i for i in ids if i is not None)


def engine(loaded: Loaded) -> Engine:
    """Our own engine for the model. Raises ModelError for one that it does not run, or not as it should."""
    stage = loaded.stage
    known = agreement.sample(loaded.model, loaded.tokenizer)
    made = pair(loaded)
    agreement.tell(made.network, known, stage.model, stage.quantize)
    limits = Limits(_cache_tokens(stage, made), drafts=stage.drafts)
    drafter = made.drafter(loaded.ends, limits)
    return Engine(made.network, loaded.ends, loaded.decode, limits, drafter)


def _chosen(loaded: Loaded) -> str:
    """The name of the decoder. Raises ModelError for a model that the stage's decoder does not run."""
    stage, why = loaded.stage, refusal(loaded.model)
    if why and (stage.decoder == ENGINE or stage.quantize or stage.draft_model):
        raise ModelError(f"model {stage.model!r}: {why}; leave decoder, quantize and draft_model out")
    if stage.decoder != AUTO:
        return str(stage.decoder)
    if why:
        _log.info("model %s: %s", stage.model, why)
    return LIBRARY if why else ENGINE


def _cache_tokens(stage: Any, made: Pair) -> int:
    nbytes = stage.cache_gib * _GIB or _free_share(made.network.device)
    tokens = int(nbytes / made.token_bytes)
    if tokens < capacity(1):
        raise ModelError(
            f"{nbytes / _GIB:.3f} GiB for caches hold {tokens} tokens of model {stage.model!r}; "
            "give more as cache_gib"
        )
    return tokens


def _free_share(device: Any) -> float:
    if device.type == "cuda":
        import torch

        return _CUDA_SHARE * torch.cuda.mem_get_info(device)[0]
    import psutil

    return _CPU_SHARE * float(psutil.virtual_memory().available)
