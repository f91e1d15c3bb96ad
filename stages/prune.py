"""The stage that takes passages away that the question does not look at, before a model reads them all.

A model's first layers read the passages with the question behind them; what the question's tokens attend
to decides. That is the part of MInference (arXiv 2407.02490) that needs no kernels: estimate cheaply, then
leave out. See `stages.llm.look`.

When not: where every passage counts (several steps), where few are found anyway, or where the first layers
are most of the model: the look costs them for every passage, and what stays is read again. Nor with a model
that does not look where it should: of SmolLM2-135M the first 4 layers tell a gold passage of HotpotQA from
another no better than chance (AUC 0.52, 8 or 12 layers 0.65; the search's own rank 0.89), so there a
smaller `k` is better. `keep` 1 is off; `python -m benchmarks.prune` says what it does to answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pipeline import models
from pipeline.errors import RidgewayError
from pipeline.lookup import near_miss
from pipeline.machine import BYTES, Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Passage, Passages, Queries
from retrieval.text import normalize
from stages import costs
from stages.llm import weights
from stages.llm.cost import phases, scratch_bytes
from stages.llm.family import network
from stages.llm.look import fewest, masses
from stages.llm.network import Network
from stages.shapes import Shape, named

__all__ = ["Prune"]

_BEGIN = "Passages:\n\n"
"""The first tokens of a prompt are attended to whatever they say; so they are no passage's."""
_AROUND = 4.0
"""Tokens around a passage: its number and the blank line."""
_ROW = 10.0
"""Operations of a row that is handed on as it came."""


@dataclass(frozen=True, slots=True)
class _Eye:
    """The first layers of a model, its tokenizer, and what each prompt begins with."""

    network: Network
    tokenizer: Any
    begin: tuple[int, ...]
    threads: int

    def tokens(self, text: str) -> list[int]:
        """Special tokens in `text` are plain characters."""
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)


@dataclass(frozen=True, slots=True)
class Prune:
    """Of each question's passages the fewest that get the share `keep` of its attention; 1: all of them.

    Attention is that of the question's `last` tokens at most, in the first `layers` layers of `model`, which
    need not be the model that answers. Those that stay keep their order, and one always stays. Passages that
    do not fit into the model's window stay too: nobody has looked at them.
    """

    model: str
    keep: float = 1.0
    layers: int = 4
    last: int = 64
    dtype: str = "auto"

    batch: ClassVar[int] = 32
    role: ClassVar[str] = "relevancy"
    shares: ClassVar[tuple[str, ...]] = ("model", "layers", "dtype", "is_on")

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise RidgewayError(f"Prune: keep is {self.keep!r}; give a share above 0, or 1 to keep all")
        for name in ("layers", "last"):
            if getattr(self, name) < 1:
                raise RidgewayError(f"Prune: {name} is {getattr(self, name)!r}; give at least 1")
        if self.dtype not in weights.DTYPES:
            raise RidgewayError(f"Prune: dtype is {self.dtype!r}{near_miss(self.dtype, weights.DTYPES)}")

    @property
    def is_on(self) -> bool:
        """Whether anything is looked at."""
        return self.keep < 1

    @property
    def accelerated(self) -> bool:
        """Whether a device other than the CPU would help."""
        return self.is_on

    def identity(self) -> Mapping[str, str | int]:
        """The model's fingerprint, where it is used."""
        return {"fingerprint": models.fingerprint(models.resolve(self.model))} if self.is_on else {}

    def cost(self, work: Work) -> Cost:
        """Prefill of the first layers, a row at a time; see `stages.llm.cost`. All may have to stay."""
        queries, k = work.port("queries"), costs.passages_in(work.port("passages"))
        output = Flow(queries.rows, 0.0, costs.passage_bytes(k))
        if not self.is_on:
            return Cost(output, scalar=_ROW * queries.rows)
        known, dtype = named(self.model), costs.number_type(self.dtype, work)
        asked = costs.question_characters(queries) / costs.TOKEN_CHARACTERS
        tokens = asked + k * (costs.CHUNK_CHARACTERS / costs.TOKEN_CHARACTERS + _AROUND)
        tokens = min(tokens, known.window or tokens)
        some, used = _first(known, self.layers), BYTES[dtype]
        one, _ = phases(some, 1, tokens, 1, dtype)
        looking = 2.0 * some.layers * min(asked, self.last) * tokens * known.heads
        parameters = some.linear + known.head
        return replace(
            one,
            output=output,
            flops=queries.rows * (one.flops + looking),
            traffic=queries.rows * one.traffic,
            scalar=queries.rows * (one.scalar + tokens * _ROW),
            resident=float(used * parameters),
            scratch=scratch_bytes(some, 1, tokens, 0, dtype) if queries.rows else 0.0,
            opening=float(known.stored * min(parameters / known.total, 1.0)),
        )

    def open(self, device: Device) -> _Eye | None:
        """The first layers; None where nothing is looked at. Raises ModelError, also for other families."""
        if not self.is_on:
            return None
        import torch

        torch.set_num_threads(device.threads)
        tokenizer = weights.tokenizer(self.model)
        made = network(weights.model(self.model, device, self.dtype, self.layers))
        begin = [*tokenizer("", add_special_tokens=True).input_ids]
        eye = _Eye(made, tokenizer, (), device.threads)
        return replace(eye, begin=(*begin, *eye.tokens(_BEGIN)))

    def run(self, state: _Eye | None, queries: Queries, passages: Passages) -> Passages:
        """The passages that stay."""
        if state is None:
            return passages
        import torch

        torch.set_num_threads(state.threads)
        pairs = zip(queries.texts, passages.passages, strict=True)
        return Passages(passages.ids, tuple(self._kept(state, text, found) for text, found in pairs))

    def _kept(self, eye: _Eye, question: str, found: tuple[Passage, ...]) -> tuple[Passage, ...]:
        asked = eye.tokens(question) if question.strip() else []
        tokens, spans = _prompt(eye, found, eye.network.sizes.window - len(asked))
        if not asked or len(spans) < 2:
            return found
        mass = masses(eye.network, [*tokens, *asked], spans, min(len(asked), self.last))
        stay = fewest(mass, self.keep)
        return (*(found[i] for i in stay), *found[len(spans) :])


def _prompt(eye: _Eye, found: Sequence[Passage], room: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The first passages, as many as have room, and the span of each in the tokens."""
    tokens, spans = list(eye.begin), []
    for number, passage in enumerate(found, start=1):
        own = eye.tokens(f"[{number}] {normalize(passage.text).text}\n\n")
        if len(tokens) + len(own) > room:
            break
        spans.append((len(tokens), len(tokens) + len(own)))
        tokens += own
    return tokens, spans


def _first(known: Shape, layers: int) -> Shape:
    """The shape of a model's first layers, without what gives logits."""
    count = min(layers, known.layers)
    return replace(known, layers=count, linear=known.linear * count // known.layers, vocabulary=0)
