"""Many questions on the same contexts: the engine against a length-sorted, batched script; and a loop of
rounds.

The script is transformers' `generate`, greedy, left-padded, batches of prompts of like length; its fastest
batch size is tried first on a few prompts. Both sides say the same number of tokens. Tokens are compared:
in float32 all are equal, but for places where the library's two best tokens are as good as equally likely.

The loop asks each of a few questions in three rounds over the same passages, a sentence more in each round,
as multi-step pipelines do: counted is how many prompt tokens are read, against a fresh prompt for every
round.

    python -m benchmarks.prefix [--contexts 8] [--questions 12] [--length 1500] [--new 24]

Exits 0 only where the engine takes at most a fifth of the script's time, and the loop reads less than half.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.decode import Ours, Theirs, agree
from pipeline.machine import cores
from stages.llm.decoder import Ask

TIMES, SHARE = 5.0, 0.5
ROUNDS, MORE = 3, 40
"""Rounds of a loop, and the tokens that a round adds to its prompt."""
BATCHES = (4, 8, 16)

Prompts = list[NDArray[np.int32]]


def asked(contexts: int, questions: int, length: int) -> Prompts:
    """Prompts of a context and a question of 20 to 60 tokens, the contexts in turn."""
    random = np.random.default_rng(0)
    bodies = [random.integers(100, 40_000, length) for _ in range(contexts)]
    made = []
    for _ in range(questions):
        for body in bodies:
            tail = random.integers(100, 40_000, int(random.integers(20, 61)))
            made.append(np.concatenate([body, tail]).astype(np.int32))
    return made


def script(theirs: Theirs, prompts: Prompts, new: int, batch: int) -> list[list[int]]:
    """Longest first, in batches, padded on the left."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    said: dict[int, list[int]] = {}
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        said.update(zip(part, theirs.tokens([prompts[i] for i in part], new), strict=True))
    return [said[i] for i in range(len(prompts))]


def best_batch(theirs: Theirs, prompts: Prompts, new: int) -> int:
    """The batch size at which the script is fastest a prompt."""
    found = []
    for batch in BATCHES:
        part = prompts[:batch]
        start = time.perf_counter()
        script(theirs, part, new, batch)
        found.append(((time.perf_counter() - start) / len(part), batch))
    return min(found)[1]


def compare(ours: Ours, theirs: Theirs, given: argparse.Namespace) -> bool:
    """Questions on contexts: print, and whether the target holds."""
    prompts = asked(given.contexts, given.questions, given.length)
    theirs.tokens(prompts[:1], 2)
    batch = best_batch(theirs, prompts, given.new)
    start = time.perf_counter()
    other = script(theirs, prompts, given.new, batch)
    middle = time.perf_counter()
    mine = ours.tokens(prompts, given.new)
    end = time.perf_counter()
    equal, ties, good = agree(theirs, prompts, mine, other)
    counts = ours.engine.counts
    print(f"{equal} of {len(prompts)} answers equal, {ties} part where ours is as good")
    print(
        f"{given.contexts} contexts of {given.length} x {given.questions} questions: "
        f"engine {end - middle:.1f} s, script at batch {batch} {middle - start:.1f} s: "
        f"{(middle - start) / (end - middle):.2f} times; "
        f"{counts.prompt} prompt tokens, {counts.reused} of them read before"
    )
    return good and (middle - start) / (end - middle) >= TIMES


def rounds(ours: Ours, length: int, new: int) -> bool:
    """Loops: prompt tokens that are read, as a share of those of fresh prompts."""
    before, random = ours.engine.counts.reused, np.random.default_rng(1)
    bodies = [random.integers(100, 40_000, length).astype(np.int32) for _ in range(4)]
    total = 0
    for i in range(ROUNDS):
        prompts = [
            np.concatenate([b, random.integers(100, 40_000, MORE)[:MORE]]).astype(np.int32) for b in bodies
        ]
        ours.engine.answer([Ask(p, new, (f"q{j}",)) for j, p in enumerate(prompts)])
        total += sum(map(len, prompts))
        bodies = prompts if i + 1 < ROUNDS else bodies
    share = 1 - (ours.engine.counts.reused - before) / total
    print(f"loop of {ROUNDS} rounds: {share:.0%} of the {total} tokens of fresh prompts are read")
    return share < SHARE


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets hold."""
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contexts", type=int, default=8)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--length", type=int, default=1500)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args(arguments)
    torch.set_num_threads(cores())
    ours, theirs = Ours(given.dtype, ""), Theirs(given.dtype)
    holds = [compare(ours, theirs, given), rounds(ours, given.length, given.new)]
    print(f"targets: {sum(holds)} of {len(holds)} hold")
    return 0 if all(holds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
