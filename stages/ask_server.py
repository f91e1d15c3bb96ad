"""The stage that lets a server answer prompts: one that runs somewhere, or one that is started for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline import models
from pipeline.errors import BadRowsError, RidgewayError, RowError, RowId
from pipeline.lookup import near_miss
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Completions, Prompts
from stages import costs
from stages.llm.answers import check_room
from stages.llm.sampling import Sampling
from stages.llm.served import asking, launch, seed_of, serving
from stages.llm.server_client import Ask, Said, Server
from stages.llm.server_http import address
from stages.llm.server_protocol import body
from stages.llm.server_start import Running, start
from stages.llm.server_text import Writer, writer
from stages.shapes import named

__all__ = ["AskServer"]

LOCAL = "http://127.0.0.1:8000"
"""Where vLLM listens by default."""

_SKIPPED = Said("", 0, 0, "skipped")
_SENDS, _STARTS = ("tokens", "text"), ("", "vllm", "llama.cpp")


@dataclass(frozen=True, slots=True)
class _State:
    """A server, who runs it where that is us, and what writes prompts as text where it wants text.

    `kept`: answers of batches that failed for another row: the server is not asked for them again.
    """

    server: Server
    running: Running | None
    writer: Writer | None
    kept: dict[tuple[Any, ...], Said] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskServer:
    """Answers of `model` on a server with OpenAI's protocol at `url`, at most `max_new_tokens` each.

    Without a `url` it is asked at port 8000 of this machine. `key_env` names the environment variable that
    holds the key. `concurrency`: requests at once; `seconds`: the deadline of each, all attempts together.

    `start` "vllm" or "llama.cpp" starts a server on the stage's device, from the program that RIDGEWAY_VLLM
    or RIDGEWAY_LLAMA_SERVER names or that is on the path; `model` is then a model of this machine, and
    `window` its tokens for a prompt with its answer, less than the model's own to save memory.

    Prompts are token ids of the model's tokenizer. `send` "text" is for servers that take no ids; `tokenizer`
    then names the model that wrote the prompts, where the server calls it otherwise.

    `temperature` 0 is greedy, else `seed` and `top_p` decide; `stop`: texts that end an answer. `json_schema`
    or, on vLLM, `regex`: what it must match. Answers that are cut off stop with "length"; prompts without
    tokens are not asked, and stop with "skipped".
    """

    model: str
    url: str = ""
    max_new_tokens: int = 48
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    json_schema: str = ""
    regex: str = ""
    concurrency: int = 32
    seconds: float = 600.0
    key_env: str = ""
    send: Literal["tokens", "text"] = "tokens"
    tokenizer: str = ""
    start: Literal["", "vllm", "llama.cpp"] = ""
    window: int | None = None

    batch: ClassVar[int] = 128
    shares: ClassVar[tuple[str, ...]] = (
        "model", "url", "concurrency", "seconds", "key_env", "send", "tokenizer", "start", "window",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "concurrency", "seconds"):
            value = getattr(self, name)
            if not value >= 1:
                raise RidgewayError(f"AskServer: {name} is {value!r}; give at least 1")
        for name, known in (("send", _SENDS), ("start", _STARTS)):
            if getattr(self, name) not in known:
                given = getattr(self, name)
                raise RidgewayError(f"AskServer: {name} is {given!r}{near_miss(given, known)}")
        self._check_place()
        body(
            self.model, self.start, self._wish("", self.seed), stream=False
        )  # raises what an answer cannot be

    def _check_place(self) -> None:
        address(self.url or LOCAL)
        if self.start and (self.url or self.key_env):
            why = f"start is {self.start!r}, so url and key_env mean nothing; leave them or it out"
            raise RidgewayError(f"AskServer: {why}")
        if not self.start and self.window is not None:
            raise RidgewayError(
                "AskServer: window is for a server that is started; give start, or leave it out"
            )
        if self.window is not None and self.window <= self.max_new_tokens:
            why = f"window is {self.window}, and the answer alone may take {self.max_new_tokens}; raise it"
            raise RidgewayError(f"AskServer: {why}")

    @property
    def accelerated(self) -> bool:
        """Whether a device other than the CPU would help: only where the server is ours."""
        return bool(self.start)

    def check(self, upstream: tuple[Any, ...]) -> None:
        """Raise GraphError where the prompts leave less room than the answers may take."""
        check_room(self, upstream)

    def identity(self) -> Mapping[str, str | int]:
        """The fingerprint of a model that is started here; else the server, for no more is known."""
        if self.start:
            return {"fingerprint": models.fingerprint(models.resolve(self.model))}
        return {"server": address(self.url or LOCAL).url}

    def cost(self, work: Work) -> Cost:
        """Ordinary code for the requests; what a server elsewhere takes is not known, and learned from runs.

        One that is started does what `Generate` does, `concurrency` rows at once, and its memory is that of
        `stages.llm.server_command.memory`.
        """
        prompts = work.port("prompts")
        tokens = costs.prompt_tokens(prompts)
        if not self.start:
            output = Flow(prompts.rows, 0.0, costs.completion_bytes(self.max_new_tokens))
            return Cost(output, scalar=asking(prompts.rows, tokens))
        new, dtype = self.max_new_tokens, costs.number_type("auto", work)
        at_once = self.concurrency
        return serving(
            named(self.model), self.start, prompts.rows, tokens, new, dtype, self._window(), at_once
        )

    def open(self, device: Device) -> _State:
        """Start the server, or see whether one answers. Raises ModelError."""
        running = self._started(device) if self.start else None
        url = running.url if running else self.url or LOCAL
        server = Server(url, self.model, self.key_env, self.start, self.seconds)
        if running is None:
            server.check()
        return _State(server, running, writer(self.tokenizer or self.model) if self.send == "text" else None)

    def run(self, state: _State, prompts: Prompts) -> Completions:
        """One answer to each prompt.

        Raises BadRowsError for rows that the server has no room for ("too long"), does not answer in time
        ("timeout"), or not at all ("server"); ModelError where it would answer none.
        """
        asked = [i for i, tokens in enumerate(prompts.tokens) if len(tokens) > 0]
        said = self._ask(state, [prompts.ids[i] for i in asked], [prompts.tokens[i] for i in asked])
        done = dict(zip(asked, said, strict=True))
        rows = [done.get(i, _SKIPPED) for i in range(len(prompts))]
        return Completions(
            prompts.ids,
            tuple(r.text for r in rows),
            prompts.lengths,
            tuple(r.new_tokens for r in rows),
            tuple(r.stop for r in rows),
            tuple(r.reused for r in rows),
            (0,) * len(rows),
            (0,) * len(rows),
        )

    def _ask(self, state: _State, ids: Sequence[RowId], tokens: Sequence[NDArray[np.int32]]) -> list[Said]:
        """What the server says, or said when the rows were in a batch that failed."""
        keys = [(self, i, t.tobytes()) for i, t in zip(ids, tokens, strict=True)]
        found: list[Said | RowError | None] = [state.kept.pop(key, None) for key in keys]
        new = [i for i, said in enumerate(found) if said is None]
        write = state.writer.text if state.writer else tuple[int, ...]
        asks = [self._wish(write(tuple(tokens[i].tolist())), seed_of(self.seed, ids[i])) for i in new]
        for i, said in zip(new, state.server.complete(asks, self.concurrency), strict=True):
            found[i] = said
        bad = {i: said for i, said in zip(ids, found, strict=True) if isinstance(said, RowError)}
        good = {key: said for key, said in zip(keys, found, strict=True) if isinstance(said, Said)}
        if bad:
            if state.running is not None:
                state.running.check()
            state.kept.update(good)
            raise BadRowsError(bad)
        return [said for said in found if isinstance(said, Said)]

    def _wish(self, prompt: tuple[int, ...] | str, seed: int) -> Ask:
        sampling = Sampling(self.temperature, self.top_p, seed, self.stop)
        return Ask(prompt, self.max_new_tokens, sampling, self.json_schema, self.regex)

    def _window(self) -> int:
        return self.window or named(self.model).window

    def _started(self, device: Device) -> Running:
        return start(launch(self.start, self.model, self._window(), self.concurrency, device), device)
