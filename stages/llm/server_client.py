"""Completions by a server that speaks OpenAI's protocol: vLLM, llama.cpp's server, or one somewhere else.

Each prompt is a request of its own, so that a bad one fails alone; the server batches them. Prompts go as
token ids, which mean the same to both sides: in a text, what a document says could become a special token.
Servers that only take text get text.

What may pass is tried again after fixed pauses, or after as long as the server asks for, until the
deadline. What no row can pass (a key that is refused, a model that is not there) ends the run.

When not: for one prompt at a time on a CPU, where a model in this process saves the way.
Deliberately not here: chat endpoints (prompts hold the chat form already), beams, probabilities.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import ModelError, RidgewayError, RowError
from pipeline.lookup import near_miss
from stages.llm import server_protocol as protocol
from stages.llm.server_http import DROPPED, Reply, address, opened
from stages.llm.server_protocol import Again, Ask, Said

__all__ = ["PAUSES", "Ask", "Said", "Server"]

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each further attempt. No chance in them: no more than `concurrency` requests wait."""

_CHECK_SECONDS = 10.0
_PATH, _MODELS = "/v1/completions", "/v1/models"
_FAULTS = (Again, *DROPPED)
"""What another attempt may mend, and the deadline, whose TimeoutError is among `DROPPED`."""


@dataclass(frozen=True)
class Server:
    """A server at `url` and the `model` that it is asked for. Threads may share it.

    `key_env`: the environment variable that holds its key. `kind`: "vllm" or "llama.cpp" where that is
    known: what is not in OpenAI's protocol is only said to those. `seconds`: the deadline of a completion,
    all attempts together. Raises RidgewayError for an address that is none, ModelError without the key.
    """

    url: str
    model: str
    key_env: str = ""
    kind: str = ""
    seconds: float = 600.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", address(self.url).url)
        object.__setattr__(self, "_key", _key(self.key_env, self.url))

    def check(self) -> None:
        """Raise ModelError where no server answers, or where it refuses the key."""
        try:
            with self._opened(_MODELS, self._tries(_CHECK_SECONDS)) as reply:
                self._check_key(reply)
        except DROPPED as error:
            raise ModelError(
                f"no server answers at {self.url} ({_why(error)}); start one there, or correct the address"
            ) from error

    def complete(self, asks: Sequence[Ask], concurrency: int) -> list[Said | RowError]:
        """A completion for each of `asks`, at most `concurrency` at once; a RowError stands in for one.

        Raises ModelError where the server would refuse every one of them.
        """
        if concurrency < 1:
            raise RidgewayError(f"concurrency is {concurrency!r}; give at least 1")
        if not asks:
            return []
        with ThreadPoolExecutor(min(concurrency, len(asks)), "asking") as threads:
            coming = [threads.submit(self._answer, ask) for ask in asks]
            try:
                return [c.result() for c in coming]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def stream(self, ask: Ask) -> Generator[str, None, Said]:
        """The text of a completion in pieces as they come; what the generator returns is the whole.

        Raises RowError; once a piece was given there is no second attempt. ModelError as `complete`.
        """
        sent = protocol.body(self.model, self.kind, ask, stream=True)
        tries = self._tries(self.seconds)
        while True:
            pieces: list[str] = []
            try:
                with self._opened(_PATH, tries, sent) as reply:
                    self._check(reply)
                    return (yield from self._pieces(reply, pieces))
            except _FAULTS as error:
                tries.after(error, last=bool(pieces))

    def _answer(self, ask: Ask) -> Said | RowError:
        try:
            return self._once(protocol.body(self.model, self.kind, ask, stream=False))
        except RowError as error:
            return error

    def _once(self, sent: bytes) -> Said:
        tries = self._tries(self.seconds)
        while True:
            try:
                with self._opened(_PATH, tries, sent) as reply:
                    self._check(reply)
                    return protocol.said(self.url, protocol.parsed(self.url, reply.read()))
            except _FAULTS as error:
                tries.after(error)

    def _pieces(self, reply: Reply, pieces: list[str]) -> Generator[str, None, Said]:
        """Text as it comes, put into `pieces` too."""
        reason = usage = None
        for event in protocol.events(self.url, reply.lines()):
            if "error" in event:
                raise protocol.fault(
                    self.url, 500, self._shown(protocol.message_in(json.dumps(event).encode()))
                )
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                reason = choice.get("finish_reason") or reason
                if text := choice.get("text"):
                    pieces.append(text)
                    yield text
        whole = {"text": "".join(pieces), "finish_reason": reason}
        return protocol.said(self.url, {"choices": [whole], "usage": usage})

    def _opened(self, path: str, tries: _Tries, sent: bytes | None = None) -> AbstractContextManager[Reply]:
        secret = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return opened(address(self.url), path, tries.left, sent, secret)

    def _check(self, reply: Reply) -> None:
        """Raise what a status means: Again, RowError, or ModelError."""
        self._check_key(reply)
        if reply.status == 200:
            return
        message = self._shown(protocol.message_in(reply.read()))
        if reply.status == 404 or 300 <= reply.status < 400:
            raise ModelError(
                f"{self.url} has no completions of {self.model!r}{self._near()}; it says, with status "
                f"{reply.status}: {message or reply.headers.get('Location', 'nothing')}"
            )
        raise protocol.fault(self.url, reply.status, message, protocol.retry_after(reply.headers))

    def _check_key(self, reply: Reply) -> None:
        if reply.status in (401, 403):
            what = f"the key in {self.key_env!r}" if self.key_env else "to answer without a key; give key_env"
            raise ModelError(
                f"{self.url} refuses {what}; it says: {self._shown(protocol.message_in(reply.read()))}"
            )

    def _near(self) -> str:
        """The models that the server has, as a hint."""
        try:
            with self._opened(_MODELS, self._tries(_CHECK_SECONDS)) as reply:
                found = protocol.parsed(self.url, reply.read())
                return near_miss(self.model, [str(m["id"]) for m in found["data"]])
        except (LookupError, TypeError, *_FAULTS):
            return ""

    def _tries(self, seconds: float) -> _Tries:
        return _Tries(self, seconds, self.clock() + seconds, iter(PAUSES))

    def _shown(self, message: str) -> str:
        """A message of the server, fit to be quoted: one line, not long, and without our key."""
        line = " ".join(message.split())
        line = line.replace(self._key, "...") if self._key else line
        return line if len(line) <= 300 else line[:300] + "..."


@dataclass(slots=True)
class _Tries:
    """The attempts of one request: `pauses` that are left, and the clock's time at which it `end`s."""

    server: Server
    seconds: float
    end: float
    pauses: Iterator[float]

    def left(self) -> float:
        """Seconds that are left. Raises TimeoutError where there are none."""
        seconds = self.end - self.server.clock()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def after(self, error: Any, last: bool = False) -> None:
        """Wait until the next attempt. Raises the RowError that `error` is where there is none."""
        if isinstance(error, TimeoutError) and error.errno is None:  # ours, not the network's
            raise RowError(
                "timeout",
                f"{self.server.url} gave no completion within {self.seconds:g} seconds; lower `concurrency`, "
                f"or raise `seconds`",
            ) from error
        if isinstance(error, ssl.SSLCertVerificationError):
            raise ModelError(f"{self.server.url} has no certificate to be trusted: {error}") from error
        if not isinstance(error, Again):
            gone = f"the connection to {self.server.url} broke ({_why(error)}); see whether the server runs"
            error = Again(RowError("server", gone))
        pause = max(next(self.pauses, float("inf")), error.seconds)
        if last or self.server.clock() + pause >= self.end:
            raise error.row from error
        self.server.sleep(pause)


def _key(variable: str, url: str) -> str:
    """The key in an environment variable, "" for none. Raises ModelError, which never shows it."""
    key = os.environ.get(variable, "").strip()
    if variable and not key:
        raise ModelError(
            f"the environment variable {variable!r} for the key of {url} is not set or empty where the "
            f"workers run; set it, or leave key_env out"
        )
    if not (key.isprintable() and key.isascii()):
        raise ModelError(f"the key in {variable!r} has characters that no key has; set it anew")
    return key


def _why(error: BaseException) -> str:
    """What went wrong with a connection, in words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
