"""What greedy generation takes: prefill is bound by arithmetic, decode by the bytes of weights and cache.

The counts of Pope et al. 2022 (arXiv 2211.05102, sections 2 and 3) for a dense decoder with a KV cache:

    prefill   2·P·S FLOP a row, and 2·S²·H·d a layer for attention (causal: half of all pairs); logits of
              the last token only; the weights are read once for the batch
    decode    T - 1 steps for T tokens: 2·(P + V·D) FLOP a row, and 4·(S + t)·H·d a layer; each step reads
              all weights, those of the logits included, once for the batch, and the whole cache
    cache     2·L·n_kv·d elements a token

P parameters of the layers, B rows, S prompt tokens, T new ones. These are bounds: kernels are started from
Python, which the measured ratio of a run and `scalar` stand for.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from pipeline.machine import BYTES
from pipeline.roofline import Cost, Flow
from stages.costs import RESERVED, completion_bytes
from stages.llm.rooms import capacity
from stages.shapes import Shape

CHUNK = 512
"""Prompt tokens in a step: `stages.llm.limits.Limits.chunk`."""
_HEAD = 64
_STEP, _LAYER = 1e4, 4e3
"""Operations of Python in a step beside the layers, and in a layer: 0.5 ms and 0.2 ms on one core of a
Sapphire Rapids machine, with layers so narrow that nothing else counts (about 45 calls of torch a layer)."""


def cache_bytes(known: Shape, dtype: str) -> int:
    """Bytes that the KV cache takes for one token: keys and values of all layers."""
    return 2 * known.layers * known.keys * BYTES[dtype]


def prefill_flops(known: Shape, rows: float, tokens: float) -> float:
    """FLOP to read `rows` prompts of `tokens` tokens and to give the logits of the last one."""
    pairs = 2.0 * known.layers * tokens**2 * known.heads
    return rows * (2.0 * known.linear * tokens + 2.0 * known.head + pairs)


def decode_flops(known: Shape, rows: float, context: float) -> float:
    """FLOP of one step of `rows` rows that attend to `context` tokens each."""
    pairs = 4.0 * known.layers * context * known.heads
    return rows * (2.0 * (known.linear + known.head) + pairs)


def scratch_bytes(known: Shape, rows: float, tokens: float, new: float, dtype: str) -> float:
    """The most that the engine takes beside weights, prompts and answers; checked against dry runs.

    A slot for each row, as long as `stages.llm.rooms` makes it, and the larger of two moments: a piece of a
    prompt (three F and ten D wide tensors for each token of it and of the rows that decode meanwhile; where
    prompts are read in several pieces, scores and weights of attention to a whole one, and its mask, in
    `dtype` and in float32), and the logits of a step (in `dtype` and in float32). Heads are taken to have
    64 elements, the fewest in use. Prefixes that are kept for later prompts lie in what the device has free,
    and give way.
    """
    size, most = BYTES[dtype], ceil(tokens + new)
    cache = rows * capacity(most) * cache_bytes(known, dtype) if rows else 0.0
    piece = min(rows * tokens, CHUNK) + rows
    seen = min(tokens, CHUNK) * (tokens + new) if rows * tokens > CHUNK else 0.0
    groups = known.heads / max(known.keys, 1)
    scores = seen * (2 * size * known.heads / _HEAD + groups * (size + 4))
    reading = piece * size * (3 * known.inner + 10 * known.width) + scores
    choosing = rows * known.vocabulary * (size + 4)
    return RESERVED * (cache + max(reading, choosing))


def resident_bytes(known: Shape, dtype: str) -> float:
    """Weights as the engine holds them: the product that gives logits has the last norm in it, so that it is
    there beside the embedding also where a model ties them.
    """
    return float(BYTES[dtype] * max(known.total, known.linear + 2 * known.head))


def phases(known: Shape, rows: float, tokens: float, new: int, dtype: str) -> tuple[Cost, Cost]:
    """Prefill and decode of `new` tokens, each for itself; all `new` are expected to be asked for.

    Prefill gives the cache of the prompts, and the first token with it.
    """
    size, steps, context = BYTES[dtype], new - 1, tokens + new / 2
    weights = size * (known.linear + known.head)
    cache = cache_bytes(known, dtype)
    widths = size * known.layers * (16 * known.width + 6 * known.inner)  # what the modules of a layer move
    python = _STEP + known.layers * _LAYER if rows else 0.0
    prefill = Cost(
        output=Flow(rows, tokens, cache * tokens),
        flops=prefill_flops(known, rows, tokens),
        traffic=weights + rows * tokens * (widths + cache),
        scalar=python,
        dtype=dtype,
    )
    decode = Cost(
        output=Flow(rows, 0.0, completion_bytes(new)),
        flops=steps * decode_flops(known, rows, context),
        traffic=steps * (weights + rows * cache * context),
        scalar=steps * python,
        dtype=dtype,
    )
    return prefill, decode


def prefilling(known: Shape, rows: float, tokens: float, dtype: str) -> Cost:
    """The cost of prefill alone, with the weights that it keeps."""
    prefill, _ = phases(known, rows, tokens, 1, dtype)
    return _kept(prefill, known, rows, tokens, 1, dtype)


def decoding(known: Shape, rows: float, tokens: float, new: int, dtype: str) -> Cost:
    """The cost of decode alone: all new tokens are computed there, the first from the last of the prompt."""
    _, decode = phases(known, rows, tokens, new + 1, dtype)
    said = replace(decode.output, nbytes=completion_bytes(new))
    return _kept(replace(decode, output=said), known, rows, tokens, new, dtype)


def _kept(cost: Cost, known: Shape, rows: float, tokens: float, new: int, dtype: str) -> Cost:
    return replace(
        cost,
        resident=resident_bytes(known, dtype),
        scratch=scratch_bytes(known, rows, tokens, new, dtype),
        opening=float(known.stored),
    )


def generating(known: Shape, rows: float, tokens: float, new: int, dtype: str) -> Cost:
    """The cost of answers of `new` tokens to prompts of `tokens`, on average: of both phases.

    A batch ends with its longest answer.
    """
    prefill, decode = phases(known, rows, tokens, new, dtype)
    both = replace(
        decode,
        flops=prefill.flops + decode.flops,
        traffic=prefill.traffic + decode.traffic,
        scalar=prefill.scalar + decode.scalar,
    )
    return _kept(both, known, rows, tokens, new, dtype)
