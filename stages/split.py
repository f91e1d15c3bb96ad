"""Pages to chunks that the encoder sees whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelError, RidgewayError
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Chunks, PageTexts
from retrieval.chunk import Piece, split
from retrieval.facts import facts, read_tokenizer
from stages import costs

_COLUMNS = 7


@dataclass(frozen=True, slots=True)
class Split:
    """Cut pages into chunks of at most `tokens` tokens of `encoder`, at headings, paragraphs, sentences.

    Neighbours share up to `overlap` tokens. `headings`: whether what is embedded and indexed (`matches`)
    begins with the heading above the chunk; it counts as tokens. Pages without text give no chunks. Only
    the encoder's tokenizer is loaded. Raises RidgewayError where the numbers cannot work, ModelError on
    opening where the encoder sees fewer than `tokens`.
    """

    encoder: str
    tokens: int = 200
    overlap: int = 32
    headings: bool = True

    expands: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tokens <= 0:
            raise RidgewayError(f"tokens is {self.tokens}, overlap is {self.overlap}: tokens must be above 0")
        if not 0 <= self.overlap < self.tokens:
            raise RidgewayError(
                f"overlap is {self.overlap}, tokens is {self.tokens}: overlap must be 0 to tokens - 1"
            )

    def open(self, device: Device) -> Any:
        """The encoder's tokenizer; raises ModelError where `tokens` is beyond its window, or too few."""
        known = facts(self.encoder)
        tokenizer = read_tokenizer(known.folder)
        prompt = len(tokenizer.encode(known.prompts["document"], add_special_tokens=False).ids)
        window = known.window - prompt
        special = tokenizer.num_special_tokens_to_add(False)
        if not special < self.tokens <= window:
            raise ModelError(
                f"tokens is {self.tokens}, but encoder {self.encoder!r} sees {window} tokens of a chunk, "
                f"{special} of them special: set tokens from {special + 1} to {window}"
            )
        return tokenizer

    def cost(self, work: Work) -> Cost:
        """About 33 operations a character (ours, timed).

        Pages of P tokens on average give (P - overlap) / (tokens - overlap) chunks and half a one more, the
        rest at their end; at least one; none where they are blank.
        """
        texts = work.port("texts")
        characters = costs.page_characters(texts)
        page, step = characters / costs.TOKEN_CHARACTERS, self.tokens - self.overlap
        count = max(0.5 + (page - self.overlap) / step, 1.0) if characters else 0.0
        shared = self.overlap * costs.TOKEN_CHARACTERS * max(count - 1, 0)
        length = (characters + shared) / count if count else 0.0
        given = Flow(texts.rows * count, length, costs.chunk_bytes(length))
        return Cost(given, scalar=33 * texts.rows * characters)

    def run(self, state: Any, texts: PageTexts) -> Chunks:
        """All chunks of the pages, in order; chunk ids count from 0 on each page."""
        rows = [row for i in range(len(texts)) for row in self._page(state, texts, i)]
        columns = zip(*rows, strict=True) if rows else ((),) * _COLUMNS
        return Chunks(*columns)

    def _page(self, tokenizer: Any, texts: PageTexts, i: int) -> Iterator[tuple[object, ...]]:
        """The rows of page `i`, in the order of the columns of `Chunks`."""
        text, headings = texts.texts[i], texts.headings[i]
        pieces = split(text, headings, tokenizer, self.tokens, self.overlap, self.headings)
        for n, p in enumerate(pieces):
            boxes = _boxes(p, texts.spans[i], texts.boxes[i])
            source = text[p.start : p.end]
            yield (*texts.ids[i], n), source, p.match, p.heading, p.start, p.end, boxes


def _boxes(piece: Piece, spans: NDArray[np.int32], boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [L, 4]: the boxes of the lines that share a character with the piece."""
    if not len(spans):
        return np.zeros((0, 4), dtype=np.float32)
    shared: NDArray[np.float32] = boxes[(spans[:, 0] < piece.end) & (spans[:, 1] > piece.start)]
    return shared
