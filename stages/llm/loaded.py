"""What a decoder is made of: the loaded model, and what the stage says about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Loaded"]


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """`stage`: its parameters; `ends`: tokens that end an answer; `decode`: tokens to text."""

    stage: Any
    model: Any
    tokenizer: Any
    ends: frozenset[int]

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """Tokens to text, without special ones and with blanks as they are."""
        tokenizer = self.tokenizer  # alone: the model must be free to go

        def text(tokens: Sequence[int]) -> str:
            found: str = tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            return found

        return text
