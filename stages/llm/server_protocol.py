"""What is said to a server and what it answers, in OpenAI's protocol for completions. Pure.

Beyond the protocol, vLLM and llama.cpp draw from fewer tokens than were asked for where nothing is said
(top-k, min-p), and take a form of the answer each under a name of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from pipeline.errors import RidgewayError, RowError
from stages.llm.sampling import Sampling

__all__ = ["Again", "Ask", "Said", "body", "events", "fault", "message_in", "parsed", "retry_after", "said"]

_PASSING = (408, 429, 500, 502, 503, 504, 529)
"""Statuses that may be others in a while."""

_TOO_LONG = (
    "context length", "context size", "context window", "context_length", "maximum model length",
    "max_model_len", "too long", "too many tokens",
)  # fmt: skip
"""What servers say, beside other things, of a prompt that does not fit."""

_STOPS = {"stop": "end", "length": "length"}


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, as token ids or as text, and how to continue it.

    `schema`: the JSON Schema, as text, that the answer follows; or `regex`. Raises RidgewayError for both, or
    a schema that is no JSON.
    """

    prompt: tuple[int, ...] | str
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    schema: str = ""
    regex: str = ""

    def __post_init__(self) -> None:
        if self.schema and self.regex:
            raise RidgewayError("schema and regex are both given; an answer follows one of them")
        try:
            json.loads(self.schema or "{}")
        except ValueError as error:
            raise RidgewayError(f"schema is no JSON ({error}); give a JSON Schema") from error


@dataclass(frozen=True, slots=True)
class Said:
    """A completion: `text` without surrounding blanks, tokens as the server counts them (0: it does not say).

    `stop`: "end" or "length". `reused`: prompt tokens that it had read before.
    """

    text: str
    prompt_tokens: int
    new_tokens: int
    stop: str
    reused: int = 0


class Again(Exception):
    """What another attempt may mend. `row`: the error if it does not; `seconds`: wait as long at least."""

    def __init__(self, row: RowError, seconds: float = 0.0) -> None:
        super().__init__(row.message, seconds)
        self.row = row
        self.seconds = seconds


def body(model: str, kind: str, ask: Ask, stream: bool) -> bytes:
    """The request. `kind`: "vllm", "llama.cpp", or "": nothing then that a strict server would refuse.

    Raises RidgewayError for a regex that the server cannot follow.
    """
    chosen = ask.sampling
    said_: dict[str, Any] = {
        "model": model,
        "prompt": ask.prompt,
        "max_tokens": ask.max_new_tokens,
        "temperature": chosen.temperature,
        "top_p": chosen.top_p,
        "seed": chosen.seed,
    }
    if chosen.stop:
        said_["stop"] = chosen.stop
    if kind:
        said_ |= {"top_k": -1, "min_p": 0.0}
    if stream:
        said_ |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(said_ | _form(kind, ask)).encode()


def _form(kind: str, ask: Ask) -> dict[str, Any]:
    """The keys that ask for an answer of a form."""
    if ask.regex:
        if kind != "vllm":
            raise RidgewayError(f"regex {ask.regex!r}: only vLLM follows one; give a schema")
        return {"structured_outputs": {"regex": ask.regex}}
    if not ask.schema:
        return {}
    schema = json.loads(ask.schema)
    if kind == "vllm":
        return {"structured_outputs": {"json": schema}}
    if kind == "llama.cpp":
        return {"json_schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def parsed(url: str, answer: bytes) -> dict[str, Any]:
    """The JSON object that `answer` is. Raises Again for anything else."""
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Again(_broken(url, "answers with something that is no JSON object"))
    return found


def said(url: str, answer: Mapping[str, Any]) -> Said:
    """The completion in an answer.

    Raises Again where there is none or only a part, RowError where the server ended it for another reason.
    """
    try:
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        text, reason = choice["text"].strip(), choice["finish_reason"]
        read, new = (int(usage.get(k) or 0) for k in ("prompt_tokens", "completion_tokens"))
        reused = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise Again(_broken(url, "answers with something that is no completion")) from error
    if reason is None:
        raise Again(_broken(url, "breaks off in an answer"))
    if reason not in _STOPS:
        raise RowError(
            "server", f"{url} ended the answer with {str(reason)[:80]!r}; the server's log says more"
        )
    return Said(text, read, new, _STOPS[reason], reused)


def events(url: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to `[DONE]`. Raises Again for data that is none."""
    for line in lines:
        name, _, data = line.partition(b":")
        if name == b"data":
            if data.strip() == b"[DONE]":
                return
            yield parsed(url, data)


def message_in(answer: bytes) -> str:
    """What an answer with an error says: OpenAI's form, what FastAPI gives, or all of it."""
    try:
        found = json.loads(answer)
    except ValueError:
        return answer.decode("utf-8", "replace")
    error = found.get("error", found.get("detail", found)) if isinstance(found, dict) else found
    told = error.get("message", error) if isinstance(error, dict) else error
    code = f" ({error['code']})" if isinstance(error, dict) and isinstance(error.get("code"), str) else ""
    return f"{told}{code}"


def fault(url: str, status: int, message: str, wait: float = 0.0) -> RowError | Again:
    """What to raise for a status that is no success and concerns one row; `message` as the server put it.

    `wait`: seconds that it asks for.
    """
    if any(mark in message.lower() for mark in _TOO_LONG) and status != 429:
        return RowError(
            "too long",
            f"{url} has no room for the prompt and its answer ({message}); put fewer passages in it, or "
            f"lower max_new_tokens",
        )
    if status in _PASSING:
        busy = "is busy" if status in (429, 503) else "failed"
        what = f"{url} {busy} (status {status}: {message}), however often it was asked"
        return Again(RowError("server", f"{what}; lower `concurrency`, or see the server's log"), wait)
    return RowError("server", f"{url} refuses the prompt (status {status}: {message})")


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait (RFC 9110, section 10.2.3): a number, or a date beside its own."""
    found = {k.lower(): v for k, v in headers.items()}
    value = found.get("retry-after", "").strip()
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        until, now = (parsedate_to_datetime(v) for v in (value, found.get("date", "")))
        return max((until - now).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return 0.0


def _broken(url: str, how: str) -> RowError:
    return RowError("server", f"{url} {how}; see the server's log, and whether it is one for completions")
