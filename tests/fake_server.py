"""A server with OpenAI's protocol for completions, in a thread on loopback, that says what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """`body`: JSON of it is sent, or the bytes as they are; None: the connection is cut. `promised`: a
    Content-Length that is not true.
    """

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    promised: int | None = None


Answer = Callable[[dict[str, Any]], Reply]


def completion(text: str, new: int = 1, reason: str | None = "stop", read: int = 3) -> Reply:
    usage = {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}
    return Reply({"choices": [{"index": 0, "text": text, "finish_reason": reason}], "usage": usage})


def streamed(*events: Any, done: bool = True) -> Reply:
    lines = [f"data: {json.dumps(e)}\n\n" for e in events] + ["data: [DONE]\n\n"] * done
    return Reply("".join(lines).encode())


def piece(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}


@dataclass
class Fake:
    """What was asked: `asked` bodies of completions, `paths`, `keys`; `most` completions at the same time."""

    answer: Answer = lambda body: completion("yes")
    models: Reply = field(default_factory=lambda: Reply({"data": [{"id": "tiny"}]}))
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    most: int = 0
    url: str = ""
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, path: str, key: str | None, body: dict[str, Any] | None) -> Reply:
        with self._lock:
            self.paths.append(path)
            self.keys.append(key)
            if body is None:
                return self.models
            self.asked.append(body)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return self.answer(body)
        finally:
            with self._lock:
                self._now -= 1


class _Handler(BaseHTTPRequestHandler):
    fake: Fake

    def do_GET(self) -> None:
        self._reply(self.fake.say(self.path, self.headers["Authorization"], None))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._reply(self.fake.say(self.path, self.headers["Authorization"], body))

    def _reply(self, reply: Reply) -> None:
        if reply.body is None:
            self.close_connection = True
            return
        sent = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        with suppress(ConnectionError):  # whoever asked may be gone
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(sent) if reply.promised is None else reply.promised))
            self.end_headers()
            self.wfile.write(sent)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(answer: Answer = lambda body: completion("yes")) -> Iterator[Fake]:
    """A fake that listens, at its `url`."""
    fake = Fake(answer)
    handler = type("Handler", (_Handler,), {"fake": fake})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
