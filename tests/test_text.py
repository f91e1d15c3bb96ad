import re
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrieval.text import normalize

LETTERS = (
    "ab Z.-\n\r\t\u2010\xad\xa0\ufb01\u0301\u0323e\u1100\u1161\u11a8가\uff76\uff9e\u314f\u200b"
    "\u00b4\ufe0fﬃ\u3000\ufffe"
)
steady = settings(deadline=None, derandomize=True)
texts = st.text(st.one_of(st.sampled_from(LETTERS), st.characters()), max_size=40)

INVISIBLE = ("Cc", "Cf", "Cs")
VISIBLE_FORMATS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"


def reference(source: str) -> str:
    """The same in the plainest way, without places."""
    text = re.sub("\ufffe(?=(.?))", lambda m: "\xad" if m[1].islower() else "-", source, flags=re.DOTALL)
    broken = re.compile(r"(.)[-\u2010\xad][ \t]*(?:\r\n|\r|\n)[ \t]*(?=(.))", re.DOTALL)
    done, at = "", 0
    while match := broken.search(text, at):
        joined = match[1].isalpha() and match[2].islower()
        done += text[at : match.start() + 1] + ("" if joined else text[match.start() + 1])
        at = match.end() if joined else match.start() + 2
    text = done + text[at:]
    text = "".join(c for c in text if not invisible(c))
    return " ".join(unicodedata.normalize("NFKC", text).split())


def invisible(c: str) -> bool:
    if c.isspace() or c in VISIBLE_FORMATS:
        return False
    extra = "\u034f\u2065\ufffe\uffff" + "".join(map(chr, [*range(0xFE00, 0xFE10)]))
    return unicodedata.category(c) in INVISIBLE or c in extra or 0xE0100 <= ord(c) <= 0xE01EF


def rare(c: str) -> bool:
    """Format characters of scripts that nobody normalises: musical and shorthand controls."""
    return unicodedata.category(c) == "Cf" and ord(c) >= 0x13000 and ord(c) < 0xE0000


@steady
@given(texts)
@example("in-\nstead")
@example("a-\r\n-\nb")
@example("\uff76\uff9e")
@example("\u1100\u314f\u3133")
def test_text_is_that_of_the_plain_reference(source: str) -> None:
    source = "".join(c for c in source if not rare(c))
    assert normalize(source).text == reference(source)


@steady
@given(texts)
def test_offsets_never_fall_and_end_at_the_end(source: str) -> None:
    made = normalize(source)
    assert made.offsets.dtype == np.int32
    assert len(made.offsets) == len(made.text) + 1
    assert made.offsets[-1] == len(source)
    assert (np.diff(made.offsets) >= 0).all()
    assert (made.offsets[:-1] < max(len(source), 1)).all()


@steady
@given(texts, st.data())
def test_the_span_of_a_piece_holds_the_piece(source: str, data: st.DataObject) -> None:
    made = normalize(source)
    start = data.draw(st.integers(0, len(made.text)))
    end = data.draw(st.integers(start, len(made.text)))
    first, last = made.span(start, end)
    assert 0 <= first <= last <= len(source)
    assert made.text[start:end].strip() in normalize(source[first:last]).text


@steady
@given(texts)
def test_normalising_twice_changes_nothing(source: str) -> None:
    once = normalize(source).text
    assert normalize(once).text == once


def test_every_pair_of_characters_that_composes_is_composed() -> None:
    decomposed = [unicodedata.normalize("NFD", chr(c)) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    pairs = [(d[:-1], d[-1]) for d in decomposed if len(d) > 1]
    for first, second in pairs:
        expected = unicodedata.normalize("NFKC", first + second)
        assert normalize(first + second).text == " ".join(expected.split())


@pytest.mark.parametrize(
    ("source", "text", "offsets"),
    [
        ("", "", [0]),
        (" \n ", "", [3]),
        ("speci\ufb01c", "specific", [0, 1, 2, 3, 4, 5, 5, 6, 7]),
        ("in-\r\n stead", "instead", [0, 1, 6, 7, 8, 9, 10, 11]),
        ("in\u2010\nstead", "instead", [0, 1, 4, 5, 6, 7, 8, 9]),
        ("a  b\n\nc", "a b c", [0, 1, 3, 4, 6, 7]),
        ("e\u0301t", "ét", [0, 2, 3]),
        ("\u1112\u1161\u11ab!", "한!", [0, 3, 4]),
        ("co\xadop", "coop", [0, 1, 3, 4, 5]),
        ("\ufeffx\u200b", "x", [1, 3]),
    ],
)
def test_places(source: str, text: str, offsets: list[int]) -> None:
    made = normalize(source)
    assert (made.text, made.offsets.tolist()) == (text, offsets)


@pytest.mark.parametrize("source", ["2019-\n20", "Anglo-\nSaxon", "a -\nb", "end-\n\nnext", "well-known"])
def test_hyphens_that_break_no_word_stay(source: str) -> None:
    assert "-" in normalize(source).text


def test_the_mark_of_pdfium_for_a_broken_word_joins_it() -> None:
    assert normalize("adip\ufffeiscing con\ufffe\r\nsectetuer").text == "adipiscing consectetuer"
    assert normalize("Anglo\ufffeSaxon").text == "Anglo-Saxon"


def test_the_span_of_half_a_ligature_is_the_ligature() -> None:
    made = normalize("speci\ufb01c")
    assert made.span(0, 6) == (0, 6)
    assert made.span(6, 8) == (5, 7)
    assert made.span(3, 3) == (3, 3)
