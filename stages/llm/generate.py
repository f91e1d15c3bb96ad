"""Batched greedy generation with the library's own `generate`.

The idea: one left-padded batch with an explicit attention mask, in float32 with the same answer for a
prompt whoever shares its batch (in half precision ties may fall differently). Prefill and decode run in
one call here; finished rows stay in the batch until the last one is done.

Deliberately not here: sampling, beams, streaming, caches that outlive a call, reordering by length
(the Scheduler fills batches with prompts of like length).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Completion", "generate", "stop_ids"]

_CHAT_END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model said to one prompt.

    `text` without special tokens and surrounding blanks; `new_tokens` as computed, the end token
    included; `stop`: "end" (the model finished), "length" (it was cut off), or "invalid" (it computed
    numbers that are not finite, and `text` means nothing).
    """

    text: str
    new_tokens: int
    stop: str


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[NDArray[np.int32]], max_new_tokens: int
) -> list[Completion]:
    """Greedy continuations of `prompts`, int32 [S] each with S of at least 1, in order.

    Each ends at the model's end token or after `max_new_tokens`. Raises what torch raises where memory
    does not suffice.
    """
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    if not prompts:
        return []
    stops = stop_ids(model, tokenizer)
    tokens, mask = _left_padded(prompts, tokenizer.pad_token_id)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        eos_token_id=sorted(stops) or None,
        pad_token_id=tokenizer.pad_token_id,
    )
    watch = _Finite(len(prompts), model.device)
    with torch.inference_mode():
        out = model.generate(
            input_ids=torch.from_numpy(tokens).to(model.device),
            attention_mask=torch.from_numpy(mask).to(model.device),
            generation_config=config,
            logits_processor=LogitsProcessorList([watch]),
        )
    new = out[:, tokens.shape[1] :].cpu().numpy()
    finite = watch.finite.cpu().numpy()
    return [_completion(tokenizer, row, stops, bool(ok)) for row, ok in zip(new, finite, strict=True)]


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: the model's end tokens, the tokenizer's, and the end of a chat turn."""
    own = model.generation_config.eos_token_id
    ids = set(own if isinstance(own, list) else [own])
    ids.add(tokenizer.eos_token_id)
    ids.add(tokenizer.get_added_vocab().get(_CHAT_END))
    return frozenset(i for i in ids if i is not None)


def _left_padded(
    prompts: Sequence[NDArray[np.int32]], pad: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and attention mask, int64 [B, S]: the mask alone says what is padding."""
    width = max(len(p) for p in prompts)
    tokens = np.full((len(prompts), width), pad, dtype=np.int64)
    mask = np.zeros((len(prompts), width), dtype=np.int64)
    for i, prompt in enumerate(prompts):
        tokens[i, width - len(prompt) :] = prompt
        mask[i, width - len(prompt) :] = 1
    return tokens, mask


def _completion(tokenizer: Any, row: NDArray[np.int64], stops: frozenset[int], ok: bool) -> Completion:
    ends = np.flatnonzero(np.isin(row, list(stops)))
    ended = len(ends) > 0
    count = int(ends[0]) + 1 if ended else len(row)
    text = tokenizer.decode(
        row[: count - ended].tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return Completion(text.strip(), count, ("end" if ended else "length") if ok else "invalid")


class _Finite:
    """Watches each row's logits without waiting for the device: `finite`, bool [B], is read at the end."""

    def __init__(self, rows: int, device: Any) -> None:
        import torch

        self.finite = torch.ones(rows, dtype=torch.bool, device=device)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        # A NaN or an overflow wins the maximum, so one reduction sees both.
        self.finite &= scores.amax(dim=-1).isfinite()
        return scores
