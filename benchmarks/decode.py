"""Prefill and decode of one model: the engine against transformers' `generate`, ratios in one run.

Both sides have the same weights and read random prompts of one length. transformers runs in each of its
dtypes, with its attention kernels and its growing cache, and the faster one counts. Seconds of decode are
those of a run with T new tokens less those of a run with one. Tokens are compared first: in float32 all
must be equal up to the first place where the library's two best tokens are as good as equally likely; such
places are counted.

The bound of a decode step is the larger of bytes (all weights and the cache, read once) over measured
bandwidth and FLOP over the rate that products reach here; of prefill it is that rate, on the model's own
shapes.

    python -m benchmarks.decode [--prompt 512] [--new 33] [--pairs 3] [--batches 1,8,16,32] [--quantize int8]

Exits 0 only where decode is at least 2.5, 3, 3 and 3 times as fast at batch 1, 8, 16, 32, reaches 55 % of its
bound at 1 and 16, and prefill reaches 65 % of its rate and 1.3 times transformers at its best batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rates import Rates, layer_parameters, rates, step_bound
from pipeline.machine import Device, cores
from stages.llm import weights
from stages.llm.decoder import Ask
from stages.llm.engine import Engine
from stages.llm.family import network
from stages.llm.limits import Limits
from stages.llm.network import Network

MODEL = "SmolLM2-135M-Instruct"
TIMES = {1: 2.5, 8: 3.0, 16: 3.0, 32: 3.0}
"""Batches, and how many times faster decode is to be."""
REACHED = {1: 0.55, 16: 0.55}
IN_FLIGHT, PREFILL_RATE, PREFILL_TIMES = 2048, 0.65, 1.3
TIE = 1e-3
"""A token whose logit is so near the best one's is as good: sums in another order may fall either way."""

Prompts = Sequence[NDArray[np.int32]]


class Ours:
    """The engine."""

    def __init__(self, dtype: str, quantize: str) -> None:
        self.name = f"engine {dtype} {quantize}".strip()
        self.network: Network = network(weights.model(MODEL, Device("cpu:0", cores()), dtype), quantize)
        limits = Limits(200_000, rows=max(TIMES), chunk=IN_FLIGHT)
        self.engine = Engine(self.network, frozenset(), lambda tokens: "", limits)

    def tokens(self, prompts: Prompts, new: int) -> list[list[int]]:
        """`new` tokens for each prompt."""
        return [list(s.tokens) for s in self.engine.answer([Ask(p, new) for p in prompts])]


class Theirs:
    """transformers."""

    def __init__(self, dtype: str) -> None:
        self.name = f"transformers {dtype}"
        self.model = weights.model(MODEL, Device("cpu:0", cores()), dtype)

    def tokens(self, prompts: Prompts, new: int) -> list[list[int]]:
        """`new` tokens for each prompt, padded on the left."""
        import torch
        from transformers import GenerationConfig

        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = torch.from_numpy(prompt)
            mask[i, width - len(prompt) :] = 1
        config = GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0)
        with torch.inference_mode():
            out = self.model.generate(ids, attention_mask=mask, generation_config=config)
        found: list[list[int]] = out[:, width:].tolist()
        return found

    def logits(self, tokens: Sequence[int]) -> Any:
        """Of the next token."""
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor([list(tokens)]), logits_to_keep=1).logits[0, -1].float()


def fresh(count: int, length: int, seed: int) -> Prompts:
    """Random prompts."""
    return list(np.random.default_rng(seed).integers(100, 40_000, (count, length)).astype(np.int32))


def seconds(side: Ours | Theirs, prompts: Prompts, new: int) -> float:
    """Of one run."""
    start = time.perf_counter()
    side.tokens(prompts, new)
    return time.perf_counter() - start


def decode_seconds(side: Ours | Theirs, prompts: Prompts, new: int, pairs: int) -> float:
    """Of one step: the best of several runs, less the best of several that end with their first token."""
    side.tokens(prompts, 2)
    long, short = (min(seconds(side, prompts, n) for _ in range(pairs)) for n in (new, 1))
    return (long - short) / (new - 1)


def agree(
    theirs: Theirs, prompts: Prompts, ours: Sequence[list[int]], other: Sequence[list[int]]
) -> tuple[int, int, bool]:
    """Rows that are equal, rows that part where ours is as good, and whether there are no others.

    As the library has it for the row alone: in a padded batch it may itself say something else.
    """
    equal = ties = 0
    for prompt, a, b in zip(prompts, ours, other, strict=True):
        if a == b:
            equal += 1
            continue
        at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        logits = theirs.logits([*prompt.tolist(), *b[:at]])
        ties += int(logits.max() - logits[a[at]] < TIE)
    return equal, ties, equal + ties == len(prompts)


def compare_decode(
    ours: Ours, theirs: Sequence[Theirs], at: Rates, batch: int, given: argparse.Namespace
) -> bool:
    """One batch size: print it; whether its targets hold."""
    prompts = fresh(batch, given.prompt, batch)
    mine = decode_seconds(ours, prompts, given.new, given.pairs)
    other, name = min((decode_seconds(t, prompts, given.new, given.pairs), t.name) for t in theirs)
    bound = step_bound(ours.network, at, batch, given.prompt + given.new / 2)
    reached, times = bound.seconds / mine, other / mine
    print(
        f"decode batch {batch:2}: {batch / mine:6.1f} tokens/s ({mine * 1e3:.1f} ms a step), {name} "
        f"{batch / other:6.1f}: {times:.2f} times; {reached:.0%} of the bound ({bound.name}, "
        f"{bound.seconds * 1e3:.1f} ms)"
    )
    return bool(times >= TIMES.get(batch, 0) and reached >= REACHED.get(batch, 0))


def compare_prefill(ours: Ours, theirs: Sequence[Theirs], at: Rates, given: argparse.Namespace) -> bool:
    """Prompts of `IN_FLIGHT` tokens together; transformers at its best batch."""
    count = max(1, IN_FLIGHT // given.prompt)
    tokens = count * given.prompt
    seeds = range(100, 100 + given.pairs + 1)
    mine = statistics.median([seconds(ours, fresh(count, given.prompt, s), 1) for s in seeds][1:])
    other, name = min(
        (seconds(t, fresh(batch, given.prompt, s), 1) * count / batch, f"{t.name} at batch {batch}")
        for t in theirs
        for batch in (1, count, 2 * count)
        for s in range(2)
    )
    reached = 2 * layer_parameters(ours.network) * tokens / at.flops / mine
    print(
        f"prefill of {count} x {given.prompt}: {tokens / mine:.0f} tokens/s, {name} {tokens / other:.0f}: "
        f"{other / mine:.2f} times; {reached:.0%} of the rate of its products ({at.flops / 1e9:.0f} GFLOP/s)"
    )
    return bool(reached >= PREFILL_RATE and other / mine >= PREFILL_TIMES)


def main() -> int:
    """Measure, print, and say whether the targets hold."""
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=33)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--batches", default="1,8,16,32")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", default="")
    given = parser.parse_args()
    torch.set_num_threads(cores())
    ours, theirs = Ours(given.dtype, given.quantize), [Theirs("float32")]
    if weights.dtype_name("auto", Device("cpu:0", cores())) == "bfloat16":
        theirs.append(Theirs("bfloat16"))
    at = rates(ours.network, IN_FLIGHT)
    print(f"products {at.flops / 1e9:.0f} GFLOP/s, reading {at.read / 1e9:.1f} GB/s, {cores()} threads")
    prompts = fresh(8, given.prompt, 7)
    mine, other = ours.tokens(prompts, given.new), theirs[0].tokens(prompts, given.new)
    equal, ties, good = agree(theirs[0], prompts, mine, other)
    print(f"{ours.name}: {equal} of 8 answers equal to {theirs[0].name}, {ties} part where ours is as good")
    if not good and ours.network.sizes.element == 4 and not given.quantize:
        print("the tokens differ: the comparison does not hold")
        return 1
    holds = [compare_decode(ours, theirs, at, int(b), given) for b in given.batches.split(",")]
    holds.append(compare_prefill(ours, theirs, at, given))
    print(f"targets: {sum(holds)} of {len(holds)} hold")
    return 0 if all(holds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
