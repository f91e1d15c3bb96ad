"""What a decoder is, whoever is behind it: prompts in, answers out, many callers at once.

The conformance tests hold every entry of `DECODERS` to the plain reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RowId
from stages.llm.sampling import Sampling

__all__ = ["GREEDY", "Abilities", "Ask", "Counts", "Decoder", "Said"]

GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a decoder can do beside answering; the planner believes it.

    `split`: prefill and decode apart; `prefix`: prompts that begin alike are read once; `drafts`: several
    tokens a step where they can be guessed; `constraints`: answers of a given form; `stream`:
    text as it comes.
    """

    split: bool = False
    prefix: bool = False
    drafts: bool = False
    constraints: bool = False
    stream: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One prompt. `tokens`: int32 [S], S of at least 1; `most`: new tokens at most.

    `row`: what is drawn by chance follows from it, and its first element is the question it belongs to.
    `grammar`: a compiled constraint (`stages.llm.constrain`), or None.
    """

    tokens: NDArray[np.int32]
    most: int
    row: RowId = ()
    sampling: Sampling = GREEDY
    grammar: Any = None


@dataclass(frozen=True, slots=True)
class Said:
    """An answer. `tokens`: those computed, the end token among them; `text` without it and without blanks
    around.

    `stop`: "end" (the model finished, or a stop text came), "length" (it was cut off), "invalid" (it computed
    numbers that are not finite), "grammar" (it cannot be held to its form), "memory" (it does not fit).
    `reused`: prompt tokens that were read before; `drafted`, `accepted`: tokens guessed.
    """

    tokens: tuple[int, ...]
    text: str
    stop: str
    reused: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Counts:
    """What a decoder has done: `prompt` tokens asked for, of them `reused`, `new` ones, `drafted`,
    `accepted`.

    `steps` through the network, in `seconds`; `held`: tokens in caches at most; `preempted` sequences.
    """

    prompt: int = 0
    reused: int = 0
    new: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    held: int = 0
    preempted: int = 0
    seconds: float = 0.0

    def add(self, prompt: int, said: Said) -> None:
        """One more answer, to a prompt of so many tokens."""
        self.prompt += prompt
        self.reused += said.reused
        self.new += len(said.tokens)
        self.drafted += said.drafted
        self.accepted += said.accepted


class Decoder(Protocol):
    """Answers prompts. Several threads may ask at once: their prompts share steps."""

    abilities: Abilities

    def answer(self, asks: Sequence[Ask]) -> list[Said]:
        """One answer to each, in order; those of a row that fails say so."""
