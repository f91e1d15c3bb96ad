"""Text out of tokens as they come, up to the first stop.

The idea: what has been shown is never taken back. Held back are the bytes of a character that is not
complete, and an end of the text that may be the beginning of a stop. Each token costs the decoding of a
few tokens, not of the whole answer.

When not: without `stop` and without somebody who reads along, decoding everything at the end is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Decode", "Stream", "cut"]

Decode = Callable[[Sequence[int]], str]
"""Tokens to text: of a tokenizer `decode`, without special tokens and without cleaning up of blanks."""

_PARTIAL = "\ufffd"
"""What decoders write for bytes that are no character, and so for those that are not one yet."""


class Stream:
    """The text of one row while its tokens come, up to the first of `stops`.

    The first stop is the one that is complete first, and of those that end together the longest. Where a
    decoder gives up whole runs of bytes for one that is wrong (the byte fallback of SentencePiece), such a
    run may read otherwise here than decoded at once.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._recent: list[int] = []  # tokens since the last but one place where the text was complete
        self._read = 0  # of them, those up to the last such place
        self._known = 0  # characters of their text that were taken
        self._held = ""
        self.finished = False
        """Whether a stop was found, or `close` called."""

    def feed(self, token: int) -> str:
        """The text that may be shown now that `token` is there; nothing after a stop."""
        if self.finished:
            return ""
        self._recent.append(token)
        text = self._decode(self._recent)
        whole = text.rstrip(_PARTIAL)
        new, self._known = whole[self._known :], max(self._known, len(whole))
        if len(whole) == len(text) and new:
            self._forget()
        return self._show(new)

    def close(self) -> str:
        """What is left when no token follows: no stop came of it, and half characters stay what they are."""
        if self.finished:
            return ""
        shown = self._show(self._decode(self._recent)[self._known :])
        if not self.finished:
            shown, self._held, self.finished = shown + self._held, "", True
        return shown

    def _forget(self) -> None:
        # Some decoders drop the blank before their first token: the last few stay, for the next to follow.
        self._recent = self._recent[self._read :]
        self._read = len(self._recent)
        self._known = len(self._decode(self._recent))

    def _show(self, new: str) -> str:
        text, self._held = self._held + new, ""
        place = cut(text, self._stops)
        if place is not None:
            self.finished = True
            return text[:place]
        keep = len(text) - _beginning(text, self._stops)
        self._held = text[keep:]
        return text[:keep]


def cut(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop of `text` begins: that which is complete first, and then the longest."""
    found = [(at + len(s), at) for s in stops if (at := text.find(s)) >= 0]
    return min(found)[1] if found else None


def _beginning(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop."""
    lengths = (n for s in stops for n in range(min(len(s) - 1, len(text)), 0, -1) if text.endswith(s[:n]))
    return max(lengths, default=0)
