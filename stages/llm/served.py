"""A decoder behind a server that is started for it: vLLM or llama.cpp's, in an environment of its own.

On a large GPU vLLM's kernels are the ones to beat, so decoder "auto" takes it where it is installed and the
stage asks for nothing that only the engine has. `preferred` says which, and why.

When not: on a CPU, where the engine is faster than llama.cpp and saves the way; where prefill and decode are
apart; where int8 weights, drafts or a budget for caches are asked for; on lanes that divide a GPU, each of
which would start a server. llama.cpp is never chosen, only asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline import models
from pipeline.errors import BadRowsError, ModelError, RidgewayError, RowError, RowId
from pipeline.gates import size
from pipeline.machine import Device
from pipeline.roofline import Cost
from stages.llm import server_client, server_command, weights
from stages.llm.cost import generating
from stages.llm.decoder import Abilities, Ask, Counts, Said
from stages.llm.server_command import KINDS, Launch, executable
from stages.llm.server_start import Running, start
from stages.shapes import Shape, named

__all__ = [
    "AUTO", "Choice", "Served", "asking", "check", "launch", "preferred", "rows", "seed_of", "served",
    "serving",
]  # fmt: skip

AUTO, VLLM = "auto", "vllm"
_ROWS, _CONTEXT = {VLLM: 64, "llama.cpp": 8}, 1 << 16
"""Rows in flight: two batches of `Generate`. llama.cpp keeps a window for each, so many tokens in all."""
_ENGINES = ("quantize", "cache_gib", "drafts", "draft_model")
_UNKNOWN = -1
_REQUEST, _TOKEN = 7.3e3, 1.6
"""Operations of a request and of a prompt token in it: 0.36 ms and 80 ns, timed as in `stages.costs`."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The `server` that answers for a stage on a device, "" for none, and `why`."""

    server: str
    why: str

    @property
    def told(self) -> str:
        """In words: "vllm answers: it is installed ..."."""
        return f"{self.server or 'no server'} answers: {self.why}"


def preferred(stage: Any, device: Device, environ: Mapping[str, str] = os.environ) -> Choice:
    """Which server answers for `stage` on `device`, with the programs that `environ` leads to."""
    if stage.decoder != AUTO:
        return Choice(stage.decoder if stage.decoder in KINDS else "", "it is asked for")
    why = _against(stage, device, environ)
    if why:
        return Choice("", why)
    return Choice(VLLM, f"it is installed, and {_needed(stage.model, device)}")


def _against(stage: Any, device: Device, environ: Mapping[str, str]) -> str:
    """Why vLLM is not taken; "" where it is."""
    if device.kind != "cuda":
        return "servers are chosen on CUDA devices only"
    if not _is_whole(stage):
        return "prefill and decode are apart"
    if executable(VLLM, environ) is None:
        return f"no vLLM is installed ({KINDS[VLLM].variable} may name its program)"
    if device.share:
        return f"it is a part of {device.share}, and a server takes a whole GPU"
    if stage.dtype != "auto":
        return f"dtype {stage.dtype!r} is asked for, and vLLM computes in the model's own"
    for name in _ENGINES:
        if getattr(stage, name, 0):
            return f"{name} is for the engine"
    needed = _memory(VLLM, named(stage.model))
    return f"vLLM {_needed(stage.model, device)}" if needed > server_command.MOST * _total(device) else ""


def _needed(model: str, device: Device) -> str:
    return f"takes {size(_memory(VLLM, named(model)))} of its {size(_total(device))}"


def _total(device: Device) -> float:
    return device.profile.memory


def _is_whole(stage: Any) -> bool:
    """Whether a stage reads and answers."""
    return bool(getattr(stage, "whole", False))


def check(stage: Any) -> None:
    """Raise ModelError for a half of a model on a server, RidgewayError for what its server cannot do."""
    name, kind = type(stage).__name__, stage.decoder
    if not _is_whole(stage):
        raise ModelError(f"{name}: {kind} does not split a model; use Generate instead of Prefill and Decode")
    if stage.dtype != "auto":
        raise RidgewayError(f"{name}: {kind} computes in the model's own type; leave dtype or decoder out")
    if kind != VLLM and stage.regex:
        raise RidgewayError(f"{name}: only vLLM follows a regex; give a json_schema, or another decoder")


def rows(kind: str, window: int) -> int:
    """Rows in flight on a server of our own."""
    return min(_ROWS[kind], max(1, _CONTEXT // max(window, 1))) if kind != VLLM else _ROWS[kind]


def _memory(kind: str, known: Shape) -> float:
    return server_command.memory(known, kind, known.window, rows(kind, known.window))


def serving(
    known: Shape, kind: str, count: float, tokens: float, new: int, dtype: str, window: int, at_once: int
) -> Cost:
    """What `stages.llm.cost.generating` says of `at_once` rows, as often as `count` rows need it, and the
    requests; the memory is that of `stages.llm.server_command.memory`.
    """
    batch = min(count, at_once)
    times = count / batch if batch else 1.0
    one = generating(known, batch, tokens, new, dtype)
    return replace(
        one,
        output=replace(one.output, rows=count),
        flops=times * one.flops,
        traffic=times * one.traffic,
        scalar=asking(count, tokens),
        resident=server_command.memory(known, kind, window, at_once),
        scratch=0.0,  # part of what the server holds all the time
    )


def asking(count: float, tokens: float) -> float:
    """Ordinary operations of `count` requests with prompts of `tokens` tokens."""
    return count * (_REQUEST + _TOKEN * tokens)


def launch(kind: str, model: str, window: int, at_once: int, device: Device) -> Launch:
    """How to start a server for a model of this machine. Raises ModelError for one that it cannot read."""
    place = weights.folder(model) if kind == VLLM else models.resolve(model)
    needed = server_command.memory(named(model), kind, window, at_once)
    return Launch(kind, place, model, window, at_once, server_command.share(needed, device))


def seed_of(seed: int, row: RowId) -> int:
    """31 bits: equal prompts of two rows are answered independently, and each the same whoever asks along."""
    return int.from_bytes(hashlib.blake2b(repr((seed, row)).encode(), digest_size=4).digest(), "little") >> 1


def served(kind: str, model: str, device: Device) -> Served:
    """A server for `model`, healthy on `device`. Slow. Raises ModelError."""
    window = weights.window(model)
    running = start(launch(kind, model, window, rows(kind, window), device), device)
    return Served(server_client.Server(running.url, model, kind=kind), running, rows(kind, window))


class Served:
    """A server of our own, asked for at most `at_once` answers at the same time by each caller.

    It stops when this is collected. A server says how many tokens it computed, not which: each is -1.
    """

    abilities = Abilities(prefix=True, constraints=True)

    def __init__(self, server: server_client.Server, running: Running, at_once: int) -> None:
        self._server, self.running, self._at_once = server, running, at_once
        self._kept: dict[tuple[Any, ...], Said] = {}
        self.counts = Counts()

    def answer(self, asks: Sequence[Ask]) -> list[Said]:
        """See `Decoder`.

        Raises BadRowsError for rows that the server has no answer for; what it said to the others is kept
        for when they are asked again. ModelError where it has ended.
        """
        keys = [(a.row, a.tokens.tobytes(), a.most, a.sampling, a.grammar) for a in asks]
        done = {key: said for key in keys if (said := self._kept.pop(key, None)) is not None}
        new = [i for i, key in enumerate(keys) if key not in done]
        bad: dict[RowId, RowError] = {}
        found = self._server.complete([_wish(asks[i]) for i in new], self._at_once)
        for i, one in zip(new, found, strict=True):
            if isinstance(one, RowError):
                bad[asks[i].row] = one
            else:
                done[keys[i]] = _said(one)
        if bad:
            self.running.check()
            self._kept.update(done)
            raise BadRowsError(bad)
        for ask, key in zip(asks, keys, strict=True):
            self.counts.add(len(ask.tokens), done[key])
        return [done[key] for key in keys]


def _wish(ask: Ask) -> server_client.Ask:
    """What a server is asked; the constraint goes to it as text."""
    chosen, form = ask.sampling, ask.grammar
    schema, regex = ("", "") if form is None else (form.text, "") if form.kind == "json" else ("", form.text)
    seeded = replace(chosen, seed=seed_of(chosen.seed, ask.row))
    return server_client.Ask(tuple(ask.tokens.tolist()), ask.most, seeded, schema, regex)


def _said(said: server_client.Said) -> Said:
    return Said((_UNKNOWN,) * said.new_tokens, said.text, said.stop, said.reused)
