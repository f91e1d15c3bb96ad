"""Prompts as text, for servers that take no token ids: their tokenizer must read back what was meant.

When not: where ids can be sent. In a text, what a document says may become a special token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stages.llm import weights

__all__ = ["Writer", "writer"]


@dataclass(frozen=True, slots=True)
class Writer:
    """Token ids to text. `begin`: the tokens that a tokenizer puts before every text by itself."""

    tokenizer: Any
    begin: tuple[int, ...]

    def text(self, ids: tuple[int, ...]) -> str:
        """The text that is read as `ids`; special tokens are written out."""
        start = len(self.begin) if ids[: len(self.begin)] == self.begin else 0
        return str(self.tokenizer.decode(ids[start:], clean_up_tokenization_spaces=False))


def writer(model: str) -> Writer:
    """For a server that has the tokenizer of `model`. Raises ModelError."""
    tokenizer = weights.tokenizer(model)
    return Writer(tokenizer, tuple(tokenizer("", add_special_tokens=True).input_ids))
