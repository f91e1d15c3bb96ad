"""The stage that lets a language model answer prompts, greedily, in batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline import models
from pipeline.cuts import Shapes
from pipeline.errors import BadRowsError, GraphError, RidgewayError, RowError, RowId
from pipeline.lookup import near_miss
from pipeline.machine import BYTES, Device
from pipeline.roofline import Cost, Work
from pipeline.values import Completions, Prompts
from stages import costs
from stages.llm import weights
from stages.llm.cost import generating, phases
from stages.llm.generate import Completion, generate
from stages.shapes import named

__all__ = ["Generate"]

_SKIPPED = Completion("", 0, "skipped")


@dataclass(frozen=True, slots=True)
class _State:
    """Model and tokenizer on one device; `window` in tokens, `threads` of the CPU to use."""

    model: Any
    tokenizer: Any
    window: int
    threads: int


@dataclass(frozen=True, slots=True)
class Generate:
    """Greedy answers of `model`, at most `max_new_tokens` each.

    A folder, a GGUF file or a model's name; `dtype` "auto" computes in bfloat16 where the hardware does,
    else in float32. 48 tokens are one or two sentences: an answer that is cut off says so by its stop
    "length". Prompts without tokens are not asked and come back with the stop "skipped".
    """

    model: str
    max_new_tokens: int = 48
    dtype: str = "auto"

    batch: ClassVar[int] = 16
    accelerated: ClassVar[bool] = True
    shares: ClassVar[tuple[str, ...]] = ("model", "dtype")

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RidgewayError(f"Generate: max_new_tokens is {self.max_new_tokens!r}; give at least 1")
        if self.dtype not in weights.DTYPES:
            hint = near_miss(self.dtype, weights.DTYPES)
            raise RidgewayError(f"Generate: dtype is {self.dtype!r}{hint}")

    def check(self, upstream: tuple[Any, ...]) -> None:
        """Raise GraphError where the prompts leave less room than the answers may take."""
        for stage in upstream:
            reserve = getattr(stage, "reserve", self.max_new_tokens)
            if reserve < self.max_new_tokens:
                raise GraphError(
                    f"max_new_tokens is {self.max_new_tokens}, but {type(stage).__name__} keeps only "
                    f"{reserve} tokens free for the answer; raise its reserve, or lower max_new_tokens"
                )

    def identity(self) -> Mapping[str, str | int]:
        """The model's fingerprint: answers of another model under the same name are other answers."""
        return {"fingerprint": models.fingerprint(models.resolve(self.model))}

    def cost(self, work: Work) -> Cost:
        """See `stages.llm.cost`. As many new tokens are expected as are allowed."""
        prompts = work.port("prompts")
        known, dtype = named(self.model), costs.number_type(self.dtype, work)
        return generating(known, prompts.rows, costs.prompt_tokens(prompts), self.max_new_tokens, dtype)

    def cut(self, work: Work) -> tuple[Shapes, Cost, Cost]:
        """What would cross between prefill and decode for one row, and what each of them takes (B9).

        The context is the prompt: the cache of the new tokens is made where they are.
        """
        prompts = work.port("prompts")
        known, dtype = named(self.model), costs.number_type(self.dtype, work)
        tokens = costs.prompt_tokens(prompts)
        shapes = Shapes(known.layers, 1, known.keys, known.width, 0, max(1, round(tokens)), BYTES[dtype])
        return shapes, *phases(known, prompts.rows, tokens, self.max_new_tokens, dtype)

    def open(self, device: Device) -> _State:
        """Load tokenizer and weights. Raises ModelError."""
        tokenizer = weights.tokenizer(self.model)
        window = weights.window(self.model)
        return _State(weights.model(self.model, device, self.dtype), tokenizer, window, device.threads)

    def run(self, state: _State, prompts: Prompts) -> Completions:
        """One answer to each prompt.

        Raises BadRowsError for prompts that leave no room for the answer in the model's window ("too
        long") and for those the model computes no finite numbers for ("model").
        """
        import torch

        torch.set_num_threads(state.threads)
        self._check(state, prompts)
        asked = [i for i, tokens in enumerate(prompts.tokens) if len(tokens) > 0]
        said = generate(state.model, state.tokenizer, [prompts.tokens[i] for i in asked], self.max_new_tokens)
        _check_finite([prompts.ids[i] for i in asked], said)
        done = dict(zip(asked, said, strict=True))
        rows = [done.get(i, _SKIPPED) for i in range(len(prompts))]
        return Completions(
            prompts.ids,
            tuple(r.text for r in rows),
            prompts.lengths,
            tuple(r.new_tokens for r in rows),
            tuple(r.stop for r in rows),
        )

    def _check(self, state: _State, prompts: Prompts) -> None:
        room = max(state.window - self.max_new_tokens, 0)
        bad = {
            i: RowError(
                "too long",
                f"the prompt has {n} tokens, but the model's window of {state.window} leaves {room} beside "
                f"an answer of {self.max_new_tokens}; put fewer passages in it, or lower max_new_tokens",
            )
            for i, n in zip(prompts.ids, prompts.lengths, strict=True)
            if n > room
        }
        if bad:
            raise BadRowsError(bad)


def _check_finite(ids: list[RowId], said: list[Completion]) -> None:
    bad = {
        i: RowError("model", "the model computed numbers that are not finite; try dtype 'float32'")
        for i, completion in zip(ids, said, strict=True)
        if completion.stop == "invalid"
    }
    if bad:
        raise BadRowsError(bad)
