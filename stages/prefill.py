"""The stage that reads prompts, which is bound by arithmetic, and hands on their keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pipeline import models
from pipeline.errors import BadRowsError
from pipeline.roofline import Cost, Work
from pipeline.values import KVCache, Prompts
from stages import costs
from stages.llm.answers import check_housed, too_long
from stages.llm.cost import prefilling
from stages.llm.decoder import Ask
from stages.llm.opened import SHARES, Opened, check_model, opened, split_engine
from stages.shapes import named

__all__ = ["Prefill"]


@dataclass(frozen=True, slots=True)
class Prefill:
    """The caches of prompts, for `Decode` of the same model. Parameters: see `stages.llm.opened`.

    Apart they pay where two devices suit the two halves; on one device `Generate` does both and hands on
    nothing. `ridgeway plan` says which it would be.
    """

    model: str
    dtype: str = "auto"
    decoder: str = "auto"
    quantize: str = ""
    cache_gib: float = 0.0
    drafts: int = 0
    draft_model: str = ""

    batch: ClassVar[int] = 8
    accelerated: ClassVar[bool] = True
    shares: ClassVar[tuple[str, ...]] = SHARES
    leaves: ClassVar[str] = "device"
    role: ClassVar[str] = "apply"

    def __post_init__(self) -> None:
        check_model(self)

    def identity(self) -> Mapping[str, str | int]:
        """The model's fingerprint."""
        return {"fingerprint": models.fingerprint(models.resolve(self.model))}

    def cost(self, work: Work) -> Cost:
        """See `stages.llm.cost`."""
        prompts = work.port("prompts")
        known, dtype = named(self.model), costs.number_type(self.dtype, work)
        return prefilling(known, prompts.rows, costs.prompt_tokens(prompts), dtype)

    open = opened

    def run(self, state: Opened, prompts: Prompts) -> KVCache:
        """The cache of each prompt. Raises BadRowsError ("too long", "memory")."""
        import torch

        torch.set_num_threads(state.threads)
        bad = too_long(prompts.ids, prompts.lengths, state.window, 1)
        if bad:
            raise BadRowsError(bad)
        asked = {i: Ask(t, 1, prompts.ids[i]) for i, t in enumerate(prompts.tokens) if len(t)}
        made = dict(zip(asked, split_engine(state, self).prefill(list(asked.values())), strict=True))
        check_housed({prompts.ids[i] for i, past in made.items() if past is None})
        rows = [made.get(i) for i in range(len(prompts))]
        return KVCache(
            prompts.ids,
            prompts.tokens,
            tuple(None if r is None else r.keys for r in rows),
            tuple(None if r is None else r.values for r in rows),
        )
