"""The form of a text that is compared: what is embedded and indexed, never what is quoted.

Readers give text as it is drawn: ligatures, words broken at line ends, hard spaces. `normalize` makes
"specification" of "speciﬁ-\\ncation" and keeps, for every character it gives, the place it came from, so
that a hit is still quoted to the letter. Three steps, each a map of positions: drop what is invisible,
compose (NFKC, Unicode Standard Annex 15), collapse white space. Case and accents stay: tokenizers
know better.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress, pairwise

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int32]

_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # controls that are no white space
    "\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"  # soft hyphen, zero width, bidi
    "\ufe00-\ufe0f\U000e0100-\U000e01ef\U000e0001\U000e0020-\U000e007f"  # variation selectors, tags
    "\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"  # annotation marks, no characters at all
    "]+"
)
_BROKEN = re.compile(r"(?<=\w)[-\u2010\xad][ \t]*(?:\r\n|\r|\n)[ \t]*(?=(\w))")
_PDF_HYPHEN = re.compile("\ufffe(?=(.?))", re.DOTALL)
_SPACES = re.compile(" {2,}|^ | $")
_SPACE = re.compile(r"[^\S ]")


@dataclass(frozen=True, slots=True)
class Normalized:
    """A text in its compared form, and where each character was.

    `offsets`: int32 [len(text) + 1]; character i of `text` comes from the source at `offsets[i]`, the last
    entry is the length of the source. Offsets never fall; characters that one source character became
    (the f and the i of a ligature) share one.
    """

    text: str
    offsets: Offsets

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Start and end in the source of `text[start:end]`: whole source characters, all of them.

        An empty piece is an empty span at its place.
        """
        first = int(self.offsets[start])
        if end <= start:
            return first, first
        after = np.searchsorted(self.offsets, self.offsets[end - 1], side="right")
        last = len(self.offsets) - 1
        return first, int(self.offsets[min(int(after), last)])


def normalize(source: str) -> Normalized:
    """`source` in NFKC, without invisible characters, broken words joined, white space runs one space.

    A word counts as broken where a letter and a hyphen end a line and a lower-case letter begins the next;
    PDFium's mark for that (U+FFFE) is understood. Lone surrogates are dropped. The result is stripped.
    """
    text = _PDF_HYPHEN.sub(lambda m: "\xad" if m[1].islower() else "-", source)
    offsets = np.arange(len(text) + 1, dtype=np.int32)
    text, offsets = _drop(text, offsets, _breaks(text))
    text, offsets = _drop(text, offsets, (m.span() for m in _INVISIBLE.finditer(text)))
    text, offsets = _compose(text, offsets)
    text = _SPACE.sub(" ", text)
    text, offsets = _drop(text, offsets, _surplus(text))
    return Normalized(text, offsets)


def _breaks(text: str) -> Iterable[tuple[int, int]]:
    """The hyphen and the line end inside each broken word."""
    found = _BROKEN.finditer(text)
    return (m.span() for m in found if m[1].islower() and text[m.start() - 1].isalpha())


def _surplus(text: str) -> Iterable[tuple[int, int]]:
    """Spaces at either end, and all but the first of a run."""
    size = len(text)
    for match in _SPACES.finditer(text):
        start, end = match.span()
        yield (start, end) if start == 0 or end == size else (start + 1, end)


def _drop(text: str, offsets: Offsets, spans: Iterable[tuple[int, int]]) -> tuple[str, Offsets]:
    """`text` without `spans`; what is left keeps its offsets."""
    keep = np.ones(len(offsets), dtype=np.bool_)
    for start, end in spans:
        keep[start:end] = False
    if keep.all():
        return text, offsets
    return "".join(compress(text, keep[:-1].tolist())), offsets[keep]


def _compose(text: str, offsets: Offsets) -> tuple[str, Offsets]:
    """NFKC, cluster by cluster: a cluster is a character and all that may compose with it.

    Every character of a cluster's result has the offset of the cluster's start.
    """
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return text, offsets
    marks = {c for c in set(text) if _joins(c)}
    starts = [i for i, c in enumerate(text) if c not in marks or i == 0]
    clusters = [text[a:b] for a, b in pairwise([*starts, len(text)])]
    table = {c: unicodedata.normalize("NFKC", c) for c in set(clusters)}
    made = [table[c] for c in clusters]
    origin = np.repeat(offsets[starts], [len(m) for m in made])
    return "".join(made), np.append(origin, offsets[-1]).astype(np.int32)


def _joins(char: str) -> bool:
    """Whether `char` may compose with what stands before it: marks, and vowels and finals of Hangul.

    Asked of its NFKC form: half-width voicing marks and compatibility jamo join too. Kirat Rai vowels
    (Unicode 16) are letters that compose.
    """
    first = unicodedata.normalize("NFKC", char)[0]
    hangul = "\u1160" <= first <= "\u11ff"
    return hangul or unicodedata.category(first)[0] == "M" or "\U00016d63" <= first <= "\U00016d6a"
