"""The stage that goes on where `Prefill` ended: bound by the bytes of weights and caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline import models
from pipeline.roofline import Cost, Work
from pipeline.values import Completions, KVCache
from stages import costs
from stages.llm.answers import asks_of, check_read, check_room, check_speaker, completions
from stages.llm.attention import Past
from stages.llm.cost import decoding
from stages.llm.opened import SHARES, Opened, check_model, opened, split_engine
from stages.shapes import named

__all__ = ["Decode"]


@dataclass(frozen=True, slots=True)
class Decode:
    """Answers to prompts that `Prefill` of the same `model` has read. Parameters: see `Generate`."""

    model: str
    max_new_tokens: int = 48
    dtype: str = "auto"
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    json_schema: str = ""
    regex: str = ""
    decoder: str = "auto"
    quantize: str = ""
    cache_gib: float = 0.0
    drafts: int = 0
    draft_model: str = ""

    batch: ClassVar[int] = 32
    accelerated: ClassVar[bool] = True
    in_flight: ClassVar[int] = 2
    shares: ClassVar[tuple[str, ...]] = SHARES

    def __post_init__(self) -> None:
        check_speaker(self)
        check_model(self)

    def check(self, upstream: tuple[Any, ...]) -> None:
        """Raise GraphError where prompts leave too little room, or were read for another model."""
        check_room(self, upstream)
        check_read(self, upstream)

    def identity(self) -> Mapping[str, str | int]:
        """The model's fingerprint."""
        return {"fingerprint": models.fingerprint(models.resolve(self.model))}

    def cost(self, work: Work) -> Cost:
        """See `stages.llm.cost`. As many new tokens are expected as are allowed."""
        caches = work.port("caches")
        known, dtype = named(self.model), costs.number_type(self.dtype, work)
        return decoding(known, caches.rows, costs.prompt_tokens(caches), self.max_new_tokens, dtype)

    open = opened

    def run(self, state: Opened, caches: KVCache) -> Completions:
        """One answer to each prompt. Raises BadRowsError, as `Generate` does."""
        import torch

        torch.set_num_threads(state.threads)
        asks = asks_of(self, state, caches.ids, caches.tokens)
        pasts = [Past(caches.keys_of[i], caches.values_of[i]) for i in asks]
        said = split_engine(state, self).decode(list(asks.values()), pasts)
        return completions(caches.ids, caches.lengths, dict(zip(asks, said, strict=True)))
