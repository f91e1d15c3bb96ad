"""Decoding by the transformers library's own loop: any model that it loads, one left-padded batch at a time.

Tokens are chosen by us, as in the engine, so sampling, stop texts and constraints mean the same. Finished
rows stay in the batch until the last one is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.llm.batch import Batch
from stages.llm.decoder import Abilities, Ask, Counts, Said
from stages.llm.loaded import Loaded
from stages.llm.sequence import Sequence

__all__ = ["Library", "library"]


def library(loaded: Loaded) -> Library:
    """The model as the library runs it."""
    return Library(loaded.model, loaded.ends, loaded.decode, loaded.tokenizer.pad_token_id)


class Library:
    """A model of transformers and the tokens that end its answers. `decode`: tokens to text."""

    abilities = Abilities(constraints=True)

    def __init__(
        self, model: Any, ends: frozenset[int], decode: Callable[[Many[int]], str], pad: int
    ) -> None:
        self._model, self._ends, self._decode, self._pad = model, ends, decode, pad
        self._lock = threading.Lock()
        self.counts = Counts()

    def answer(self, asks: Many[Ask]) -> list[Said]:
        """See `Decoder`. Raises what torch raises where memory does not suffice."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        rows = [Sequence(ask, self._decode) for ask in asks]
        if not rows:
            return []
        tokens, mask = _left_padded([ask.tokens for ask in asks], self._pad)
        speaker = _Speaker(rows, self._ends)
        config = GenerationConfig(
            max_new_tokens=max(ask.most for ask in asks), do_sample=False, num_beams=1, pad_token_id=self._pad
        )
        with self._lock, torch.inference_mode():
            self._model.generate(
                input_ids=torch.from_numpy(tokens).to(self._model.device),
                attention_mask=torch.from_numpy(mask).to(self._model.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([speaker]),
                stopping_criteria=StoppingCriteriaList([speaker.over]),
            )
        for s in rows:
            self.counts.add(s.size, s.result())
        return [s.result() for s in rows]


class _Speaker:
    """Chooses the tokens of all rows that are not over."""

    def __init__(self, rows: list[Sequence], ends: frozenset[int]) -> None:
        self._rows, self._ends = rows, ends
        self._is_over = [False] * len(rows)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores, with nothing possible but what was chosen."""
        import torch

        live = [i for i, over in enumerate(self._is_over) if not over]
        batch = Batch(asked=[self._rows[i] for i in live])
        for s in batch.asked:
            s.guess(0)
        chosen = batch.choose(scores[torch.tensor(live, device=scores.device)].float())
        tokens = [0] * len(self._rows)
        for i, token in zip(live, chosen, strict=True):
            self._is_over[i] = self._rows[i].take([token], self._ends)
            tokens[i] = max(token, 0)
        scores = torch.full_like(scores, -torch.inf)
        return scores.scatter_(1, torch.tensor(tokens, device=scores.device)[:, None], 0.0)

    def over(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Whether each row is over, bool [B]."""
        import torch

        return torch.tensor(self._is_over, device=input_ids.device)


def _left_padded(prompts: Many[NDArray[np.int32]], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and attention mask, int64 [B, S]: the mask alone says what is padding."""
    width = max(len(p) for p in prompts)
    tokens = np.full((len(prompts), width), pad, dtype=np.int64)
    mask = np.zeros((len(prompts), width), dtype=np.int64)
    for i, prompt in enumerate(prompts):
        tokens[i, width - len(prompt) :] = prompt
        mask[i, width - len(prompt) :] = 1
    return tokens, mask
