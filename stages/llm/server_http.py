"""One HTTP exchange with a server, and a deadline for all of it, by the standard library alone.

The timeout of a socket is one for each read: a server that sends a byte now and then never runs into it.
Here each read gets the time that is left.

Deliberately not here: redirects (a key would follow them), proxies, retries, connections that are kept
(beside the seconds that a model takes, opening one is nothing).
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipeline.errors import RidgewayError

__all__ = ["DROPPED", "Address", "Reply", "address", "opened"]

DROPPED = (OSError, http.client.HTTPException)
"""What is raised where a connection is refused, reset, or says something that is no HTTP."""

_MOST = 64 << 20
"""Bytes of an answer that are read; no completion is as long."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `path`: what comes before `/v1` in its paths; `url`: all of it, for people."""

    url: str
    scheme: str
    host: str
    port: int
    path: str


def address(url: str) -> Address:
    """The address that `url` means, with or without a `/v1` at its end. Raises RidgewayError."""
    what = f"the address {url!r} of the server"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise RidgewayError(f"{what} cannot be read ({error}); write it as 'http://host:port'") from error
    if "@" in parts.netloc:
        shown = url.replace(parts.netloc, "..." + parts.netloc[parts.netloc.rindex("@") :])
        raise RidgewayError(f"the address {shown!r} of the server holds a password; use key_env for its key")
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
        raise RidgewayError(f"{what} is none; write it as 'http://host:port' or 'https://host/path'")
    path = parts.path.rstrip("/").removesuffix("/v1")
    place = f"{parts.scheme}://{parts.netloc}{path}"
    return Address(place, parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)


@dataclass(slots=True)
class Reply:
    """An answer whose head is there. Reading raises TimeoutError at the deadline, or one of `DROPPED`."""

    status: int
    headers: Mapping[str, str]
    _body: http.client.HTTPResponse
    _socket: socket.socket
    _left: Callable[[], float]

    def read(self) -> bytes:
        """All of the body."""
        parts: list[bytes] = []
        while part := self._part(lambda: self._body.read1(1 << 16)):
            parts.append(part)
            if sum(map(len, parts)) > _MOST:
                raise http.client.HTTPException(f"an answer of more than {_MOST >> 20} MiB")
        return b"".join(parts)

    def lines(self) -> Iterator[bytes]:
        """The body line by line, each as soon as it is there."""
        while line := self._part(lambda: self._body.readline(_MOST)):
            yield line

    def _part(self, read: Callable[[], bytes]) -> bytes:
        self._socket.settimeout(self._left())
        return read()


@contextmanager
def opened(
    place: Address,
    path: str,
    left: Callable[[], float],
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Reply]:
    """The reply to a GET of `path`, or to a POST of `body`.

    `left` gives the seconds that are left, and raises TimeoutError where there are none.
    """
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.host, place.port, timeout=left())
    try:
        method = "GET" if body is None else "POST"
        sent = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
        connection.request(method, place.path + path, body, sent)
        stream = connection.sock  # the connection forgets it once the head is read
        stream.settimeout(left())
        with connection.getresponse() as found:
            yield Reply(found.status, dict(found.headers.items()), found, stream, left)
    finally:
        connection.close()
