"""The draft model that a stage names: checked against the model, opened, and given its share of the memory.

`draft_model` "" is none, "int8" a copy of the model itself in 8 bits (`twin`), else the name or folder of a
smaller model with the same tokenizer (`small_model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ModelError, RidgewayError
from pipeline.machine import Device
from stages.llm import weights
from stages.llm.drafter import Drafter
from stages.llm.family import network, refusal, with_twin
from stages.llm.limits import Limits
from stages.llm.linear import INT8
from stages.llm.loaded import Loaded
from stages.llm.network import Network
from stages.llm.small_model import SmallModel
from stages.llm.twin import Twin

__all__ = ["Pair", "check_draft_model", "pair"]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A model's network, and that of what drafts for it, if anything does."""

    network: Network
    draft: Network | None = None
    is_twin: bool = False

    @property
    def token_bytes(self) -> int:
        """Bytes that the keys and values of a token take, in both; those of a twin are the model's own."""
        own = self.network.sizes.token_bytes
        return own if self.draft is None or self.is_twin else own + self.draft.sizes.token_bytes

    def drafter(self, ends: frozenset[int], limits: Limits) -> Drafter | None:
        """What drafts, with caches for as many tokens as the model's."""
        if self.draft is None:
            return None
        return Twin(self.draft, ends) if self.is_twin else SmallModel(self.draft, ends, limits)


def check_draft_model(stage: Any) -> None:
    """Raise RidgewayError for a draft model that has nothing to do, or is the model itself."""
    name, draft = type(stage).__name__, stage.draft_model
    if not draft:
        return
    if not stage.drafts:
        raise RidgewayError(
            f"{name}: draft_model is {draft!r}, but drafts is 0: no token is drafted; give drafts, "
            "the most tokens to draft in a step (4, say), or leave draft_model out"
        )
    if draft == INT8 and stage.quantize == INT8:
        raise RidgewayError(
            f"{name}: draft_model 'int8' is a copy of the model in 8 bits, and with quantize 'int8' the "
            "model is that itself; leave one of them out"
        )


def pair(loaded: Loaded) -> Pair:
    """The networks of a loaded model and of the draft model that its stage names.

    Raises ModelError for a model that the engine does not run, and for two whose vocabularies differ.
    """
    stage, device = loaded.stage, loaded.model.device
    if not stage.draft_model:
        return Pair(network(loaded.model, stage.quantize))
    if stage.draft_model == INT8:
        if device.type != "cpu":
            raise ModelError(
                f"draft_model 'int8' on {device}: 8-bit products are for CPUs; give a smaller model, or none"
            )
        return Pair(*with_twin(loaded.model), is_twin=True)
    draft = _opened(stage, device)
    _check_words(stage, loaded.tokenizer.get_vocab(), weights.tokenizer(stage.draft_model).get_vocab())
    _check_size(stage, loaded.model.config.vocab_size, draft.config.vocab_size)
    return Pair(network(loaded.model, stage.quantize), network(draft))


def _opened(stage: Any, device: Any) -> Any:
    """The draft model. Raises ModelError for one that the engine does not run."""
    import torch

    name = f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu:0"
    draft = weights.model(stage.draft_model, Device(name, torch.get_num_threads()), stage.dtype)
    why = refusal(draft)
    if why:
        raise ModelError(f"draft_model {stage.draft_model!r}: {why}; leave it out, or give another")
    return draft


def _check_words(stage: Any, model: Mapping[str, int], draft: Mapping[str, int]) -> None:
    """Raise ModelError for the first token that is not the same in both."""
    if model == draft:
        return
    ours, theirs = ({i: word for word, i in words.items()} for words in (model, draft))
    at = next(i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i))
    raise ModelError(
        f"draft_model {stage.draft_model!r} has another vocabulary than model {stage.model!r}: token {at} is "
        f"{_said(theirs.get(at))}, not {_said(ours.get(at))}; give a model of the same family"
    )


def _said(word: str | None) -> str:
    return "no token" if word is None else repr(word)


def _check_size(stage: Any, model: int, draft: int) -> None:
    if model != draft:
        raise ModelError(
            f"draft_model {stage.draft_model!r} has vocab_size {draft}, model {stage.model!r} {model}; give "
            "a model of the same family"
        )
