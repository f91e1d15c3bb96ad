"""The stage that lets a language model answer prompts: prefill and decode in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline import models
from pipeline.cuts import Shapes
from pipeline.gates import Decision
from pipeline.machine import BYTES, Device
from pipeline.roofline import Cost, Work
from pipeline.values import Completions, Prompts
from stages import costs
from stages.llm import served
from stages.llm.answers import asks_of, check_room, check_speaker, completions
from stages.llm.cost import generating, phases
from stages.llm.opened import SHARES, Opened, check_model, opened, streaming
from stages.llm.server_command import KINDS
from stages.shapes import named

__all__ = ["Generate"]


@dataclass(frozen=True, slots=True)
class Generate:
    """Answers of `model`, at most `max_new_tokens` each, greedy unless `temperature` is more than 0.

    A folder, a GGUF file or a model's name; `dtype` "auto" computes in bfloat16 where the hardware does,
    else in float32. 48 tokens are one or two sentences: an answer that is cut off says so by its stop
    "length". Prompts without tokens are not asked and come back with the stop "skipped". How answers come
    about: see `stages.llm.answers`; what computes them: see `stages.llm.opened`.
    """

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
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_speaker(self)
        check_model(self)

    def check(self, upstream: tuple[Any, ...]) -> None:
        """Raise GraphError where the prompts leave less room than the answers may take."""
        check_room(self, upstream)

    def identity(self) -> Mapping[str, str | int]:
        """The model's fingerprint: answers of another model under the same name are other answers."""
        return {"fingerprint": models.fingerprint(models.resolve(self.model))}

    def cost(self, work: Work) -> Cost:
        """See `stages.llm.cost`. As many new tokens are expected as are allowed."""
        prompts = work.port("prompts")
        known, dtype = named(self.model), costs.number_type(self.dtype, work)
        tokens, new = costs.prompt_tokens(prompts), self.max_new_tokens
        if self.decoder in KINDS:
            at_once = served.rows(self.decoder, known.window)
            return served.serving(
                known, self.decoder, prompts.rows, tokens, new, dtype, known.window, at_once
            )
        return generating(known, prompts.rows, tokens, new, dtype)

    def choices(self, device: Device) -> tuple[Decision, ...]:
        """What would answer on `device`, with the programs that this machine has."""
        found = served.preferred(self, device)
        chosen = found.server or ("engine" if self.decoder == served.AUTO else self.decoder)
        return (Decision("decoder", chosen, f"{chosen} answers on {device.name}: {found.why}", {}),)

    @property
    def splits(self) -> bool:
        """Whether what answers could also do it in two places."""
        return self.decoder in (served.AUTO, "engine")

    def cut(self, work: Work) -> tuple[Shapes, Cost, Cost]:
        """What would cross between prefill and decode for one row, and what each of them takes (B9).

        The context is the prompt: the cache of the new tokens is made where they are.
        """
        prompts = work.port("prompts")
        known, dtype = named(self.model), costs.number_type(self.dtype, work)
        tokens = costs.prompt_tokens(prompts)
        shapes = Shapes(known.layers, 1, known.keys, known.width, 0, max(1, round(tokens)), BYTES[dtype])
        return shapes, *phases(known, prompts.rows, tokens, self.max_new_tokens, dtype)

    open = opened

    def run(self, state: Opened, prompts: Prompts) -> Completions:
        """One answer to each prompt.

        Raises BadRowsError for prompts that leave no room for the answer in the model's window ("too
        long") or in memory ("memory"), and for those the model computes no finite numbers for ("model").
        """
        import torch

        torch.set_num_threads(state.threads)
        asks = asks_of(self, state, prompts.ids, prompts.tokens)
        said = state.decoder.answer(list(asks.values()))
        return completions(prompts.ids, prompts.lengths, dict(zip(asks, said, strict=True)))

    def stream(self, state: Opened, prompts: Prompts) -> Iterator[str]:
        """The answer to one prompt as it comes, in pieces of whole characters; for Python, where somebody
        reads.

        Raises what `run` raises, and ModelError for a decoder that says nothing before the end.
        """
        import torch

        torch.set_num_threads(state.threads)
        for ask in asks_of(self, state, prompts.ids, prompts.tokens).values():
            yield from streaming(state, self).stream(ask)
