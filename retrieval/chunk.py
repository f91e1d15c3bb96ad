"""Pages to pieces that an encoder sees whole.

The idea: tokenise a page once, with places; a cut is then a choice among token starts, each with a level
(word, line, sentence, paragraph, heading), and its cost a difference of two cumulative counts. A piece
ends at the last place of the highest level in the second half of what fits, so that no piece is small
for the sake of form. The pieces are tokenised once more at the end: they keep the limit also where a
tokenizer counts a word differently at the start of a text.

Deliberately not here: meaning. No model decides where a text is cut, so a cut never changes by itself.
"""

# ruff: noqa: A005  (Python's own module of this name is gone since 3.13, and imports are absolute)

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RidgewayError
from retrieval.text import Normalized, normalize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Headings = Sequence[tuple[int, str]]
Places = NDArray[np.int64]

CELL, WORD, LINE, SENTENCE, PARAGRAPH, HEADING = 1, 2, 3, 4, 5, 6
"""Levels of a cut; 0 is inside a word, CELL between the words of a line of figures."""
GIANT = 100
"""Characters after which a word may be cut anywhere: encoders see longer ones as one unknown token."""

_WORDS = re.compile(r"\S+")
_GIANTS = re.compile(rf"\S{{{GIANT + 1},}}")
_LETTER = re.compile(r"[^\W\d_]")
_LINE_ENDS = re.compile("\r\n|[\r\n\v\f\x85\u2028\u2029]")
_SENTENCE_ENDS = re.compile(
    r"(?<!\b\w)(?<!\b(?:Mr|Ms|Dr|St|No|Nr|vs|cf|al))(?<!\b(?:Mrs|Inc|Ltd|Fig|Nos|bzw))"  # J. Smith et al.
    r"""[.!?…]["')\]”’»]* (?=["'(\[“‘«]?(?![a-z])[^\W_])|[。！？]["'）」』”’]*(?=\S)"""
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a page: characters `start` to `end` of its text, whole words, no white space around.

    `match` is what to embed and index: the piece normalised, the heading before it. `heading` is the last
    one at or before `start`, "" where there is none.
    """

    start: int
    end: int
    match: str
    heading: str


def split(
    text: str, headings: Headings, tokenizer: Tokenizer, tokens: int, overlap: int, prefix: bool = True
) -> tuple[Piece, ...]:
    """`text` in pieces of at most `tokens` tokens of `tokenizer`, heading and special tokens included.

    `headings`: (offset in `text`, heading), ascending. Each piece repeats whole sentences (where there are
    none, lines or words) of at most `overlap` tokens from the end of the one before, never across a
    heading, and less where the next word would not fit otherwise. `prefix`: whether `match` begins with
    the heading; it gets at most a quarter of the tokens. A word that does not fit is cut. A text of white
    space gives no pieces. `tokenizer` has truncation and padding off. Raises RidgewayError where `tokens`
    leaves no room for text.
    """
    special = tokenizer.num_special_tokens_to_add(False)
    if tokens <= special:
        raise RidgewayError(f"tokens is {tokens}, {special} of them special: raise it to leave room for text")
    page = _Page(text, normalize(text), headings, tokenizer)
    limit = tokens - special
    while True:
        plan = _Plan(page, limit, overlap, prefix)
        pieces = tuple(plan.piece(begin, end) for begin, end in plan.cuts())
        excess = max((page.count(p.match) for p in pieces), default=0) + special - tokens
        if excess <= 0 or limit == 1:
            return pieces
        limit = max(limit - excess, 1)


class _Page:
    """A page's normalised text in units: places where it may be cut, with levels and token counts.

    `starts`, `ends`: [U] characters of each unit; `totals`: [U + 1] tokens before each; `levels`: [U] of
    a cut in front of each.
    """

    def __init__(self, source: str, made: Normalized, headings: Headings, tokenizer: Tokenizer) -> None:
        self.source = source
        self.made = made
        self.text = made.text
        self.tokenizer = tokenizer
        self.places = np.array([offset for offset, _ in headings], dtype=np.int64)
        self.headings = [heading for _, heading in headings]
        self.prefixes = [normalize(heading).text for heading in self.headings]
        self.starts, self.totals = _units(self.text, tokenizer)
        self.ends = np.append(self.starts[1:], len(self.text))
        self.levels = self._levels()

    def count(self, text: str) -> int:
        """Tokens of `text`, without special tokens."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def cost(self, begin: int, end: int) -> int:
        """Tokens of units `begin` to `end`."""
        return int(self.totals[end] - self.totals[begin])

    def heading(self, place: int) -> int:
        """Which heading stands last at or before character `place` of the source; -1 for none."""
        return int(np.searchsorted(self.places, place, side="right")) - 1

    def _levels(self) -> NDArray[np.int8]:
        words = np.array([m.start() for m in _WORDS.finditer(self.text)], dtype=np.int64)
        levels = np.zeros(len(self.starts) + 1, dtype=np.int8)
        lines, figures = self._lines(words)
        step = np.diff(lines, prepend=lines[:1])
        inside = figures[lines] & (step == 0)
        self._raise(levels, words, np.where(inside, CELL, WORD))
        table = figures[lines] | figures[np.roll(lines, 1)]
        self._raise(levels, words[step > 0], np.where(table, SENTENCE, LINE)[step > 0])
        self._raise(levels, self._sentences(words, inside), SENTENCE)
        self._raise(levels, words[step > 1], PARAGRAPH)
        self._raise(levels, np.searchsorted(self.made.offsets, self.places), HEADING)
        return levels[:-1]

    def _raise(self, levels: NDArray[np.int8], places: Places, level: Places | int) -> None:
        """Raise the level of the cut at or after each character of `places`."""
        np.maximum.at(levels, np.searchsorted(self.starts, places), np.asarray(level, dtype=np.int8))

    def _lines(self, words: Places) -> tuple[Places, NDArray[np.bool_]]:
        """The source line of each word, and which lines are figures: half the words without letters."""
        ends = np.array([m.start() for m in _LINE_ENDS.finditer(self.source)], dtype=np.int64)
        lines = np.searchsorted(ends, self.made.offsets[words])
        bare = [_LETTER.search(m[0]) is None for m in _WORDS.finditer(self.text)]
        size = len(ends) + 1
        counts = np.bincount(lines, minlength=size)
        return lines, (2 * np.bincount(lines, weights=bare, minlength=size) >= counts) & (counts > 2)

    def _sentences(self, words: Places, inside: NDArray[np.bool_]) -> Places:
        """Where sentences begin, but not in the middle of a line of figures."""
        found = np.array([m.end() for m in _SENTENCE_ENDS.finditer(self.text)], dtype=np.int64)
        return np.setdiff1d(found, words[inside])


class _Plan:
    """Where to cut a page, for one limit of tokens."""

    def __init__(self, page: _Page, limit: int, overlap: int, prefix: bool) -> None:
        self.page = page
        self.limit = limit
        self.overlap = overlap
        self.prefixes = [self._shortened(p) if prefix else "" for p in page.prefixes]
        self.costs = [page.count(p) for p in self.prefixes]
        self.count = len(page.starts) if page.text else 0

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Units of each piece. Ends rise strictly, so there is an end."""
        begin = end = 0
        while end < self.count:
            end = self._end(begin, end)
            yield begin, end
            begin = self._next(begin, end) if end < self.count else end

    def piece(self, begin: int, end: int) -> Piece:
        """The piece of units `begin` to `end`."""
        page = self.page
        first, last = int(page.starts[begin]), int(page.ends[end - 1])
        text = page.text[first:last].rstrip(" ")
        start, stop = page.made.span(first, first + len(text))
        stop = start + len(page.source[start:stop].rstrip())
        which = page.heading(start)
        heading = page.headings[which] if which >= 0 else ""
        return Piece(start, stop, self._prefix(begin) + text, heading)

    def _prefix(self, begin: int) -> str:
        """The heading in front of a piece, unless the piece begins with it."""
        which = self.page.heading(int(self.page.made.offsets[self.page.starts[begin]]))
        if which < 0 or self.page.text.startswith(self.page.prefixes[which], int(self.page.starts[begin])):
            return ""
        return self.prefixes[which]

    def _room(self, begin: int) -> int:
        """Tokens of text that fit a piece that begins at unit `begin`."""
        which = self.page.heading(int(self.page.made.offsets[self.page.starts[begin]]))
        return self.limit - (self.costs[which] if self._prefix(begin) else 0)

    def _end(self, begin: int, past: int) -> int:
        """The unit at which a piece from `begin` ends: after `past`, within its room, at a good place."""
        totals, low = self.page.totals, past + 1
        room = self._room(begin)
        last = max(int(np.searchsorted(totals, totals[begin] + room, side="right")) - 1, low)
        if last >= self.count:
            return self.count
        half = int(np.searchsorted(totals, totals[begin] + room / 2))
        for first in (max(half, low), low):
            levels = self.page.levels[first : last + 1]
            best = int(levels.max(initial=0))
            if best >= CELL:
                return first + int(np.flatnonzero(levels == best)[-1])
        return last

    def _next(self, begin: int, end: int) -> int:
        """The unit at which the piece after `begin` to `end` begins: the overlap, sentences first."""
        levels, totals = self.page.levels, self.page.totals
        word_ends = np.flatnonzero(levels[end + 1 :] >= CELL)
        after = end + 1 + int(word_ends[0]) if len(word_ends) else self.count
        first = max(int(np.searchsorted(totals, totals[end] - self.overlap)), begin + 1)
        first = max([first, *(np.flatnonzero(levels[first : end + 1] == HEADING) + first)])
        for level in (SENTENCE, LINE, WORD):
            for unit in np.flatnonzero(levels[first:end] >= level) + first:
                if self.page.cost(int(unit), after) <= self._room(int(unit)):
                    return int(unit)
        return end

    def _shortened(self, heading: str) -> str:
        """`heading` and a colon, cut after a word to a quarter of the limit; "" where not one word fits."""
        words = heading.split(" ") if heading else []
        while words:
            line = f"{' '.join(words)}: "
            if self.page.count(line) <= self.limit // 4:
                return line
            words = words[: min(len(words) - 1, self.limit)]
        return ""


def _units(text: str, tokenizer: Tokenizer) -> tuple[Places, Places]:
    """Token starts, distinct and ascending from 0, and the tokens before each (one entry more).

    Tokenizers that count the space to the word that follows, or make several tokens of one character,
    are brought to the same form; giant words may be cut every `GIANT` characters.
    """
    cuts = [k for m in _GIANTS.finditer(text) for k in range(m.start() + GIANT, m.end(), GIANT)]
    starts = [0, *cuts]
    for a, b in pairwise([0, *cuts, len(text)]):
        found = tokenizer.encode(text[a:b], add_special_tokens=False).offsets
        starts += [a + s + (text[a + s] == " ") for s, e in found if e > s]
    places, counts = np.unique(np.array(starts, dtype=np.int64), return_counts=True)
    counts[np.searchsorted(places, [0, *cuts])] -= 1
    return places, np.concatenate([[0], np.cumsum(np.maximum(counts, 1))])
