import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from pipeline.errors import RidgewayError
from pipeline.models import resolve
from retrieval.chunk import Piece, split
from retrieval.facts import read_tokenizer
from retrieval.text import normalize

FILINGS = Path("../shared/material/kg-rag/sec-10-q/data/v1/docs")


def word_tokenizer() -> Tokenizer:
    """One token for each word and each punctuation mark, two special tokens."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "[": 1, "]": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[ $A ]", special_tokens=[("[", 1), ("]", 2)]
    )
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE, where a word with a space before it is other tokens than without."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat. The end of the tale"] * 9, trainer)
    return tokenizer


WORDS = word_tokenizer()
BYTES = byte_tokenizer()
WORD_PIECES = read_tokenizer(resolve("all-MiniLM-L6-v2"))
TOKENIZERS = {"words": WORDS, "bytes": BYTES, "word pieces": WORD_PIECES}

parts = st.sampled_from(
    ["the ", "Cat. ", "end.\n", "\n\n", "  ", "12,345 ", "$ 7 8 9\n", "in-\nstead ", "\ufb01nd ", "世界。",
     "x" * 130, "\ufffd", "\u200b", "Tale of ", "\r\n", "é", "\U0001f600 "]
)  # fmt: skip
steady = settings(deadline=None, derandomize=True, max_examples=50)
texts = st.lists(st.one_of(parts, st.text(max_size=6)), max_size=60).map("".join)


def length(tokenizer: Tokenizer, piece: Piece) -> int:
    return len(tokenizer.encode(piece.match).ids)


def sentences(count: int) -> str:
    return " ".join(f"Sentence {i} has exactly seven words here." for i in range(count))


@pytest.mark.parametrize("name", TOKENIZERS)
@steady
@given(text=texts, tokens=st.integers(12, 40), overlap=st.integers(0, 30), data=st.data())
def test_pieces_fit_cover_the_text_and_advance(
    name: str, text: str, tokens: int, overlap: int, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[name]
    offsets = sorted(data.draw(st.sets(st.integers(0, max(len(text) - 1, 0)), max_size=3)))
    headings = [(o, f"Part {o} of the tale") for o in offsets]
    pieces = split(text, headings, tokenizer, tokens, min(overlap, tokens - 1))
    assert all(length(tokenizer, p) <= tokens for p in pieces)
    ends = [p.end for p in pieces]
    assert ends == sorted(ends)
    covered = {i for p in pieces for i in range(p.start, p.end)}
    missed = "".join(c for i, c in enumerate(text) if i not in covered)
    assert normalize(missed).text == ""
    for p in pieces:
        assert text[p.start : p.end] == text[p.start : p.end].strip() != ""
        assert p.heading == next((h for o, h in reversed(headings) if o <= p.start), "")


@steady
@given(st.lists(st.sampled_from(["the ", "Cat. ", "end.\n", "\n\n", "in-\nstead ", "\ufb01nd "])))
def test_pieces_are_whole_words_and_match_is_their_normal_form(drawn: list[str]) -> None:
    text = "".join(drawn)
    words = normalize(text).text.split()
    for p in split(text, (), WORDS, 8, 3):
        assert p.match == normalize(text[p.start : p.end]).text
        assert set(p.match.split()) <= set(words)


@pytest.mark.parametrize("text", ["", " ", "\n \t\r\n", "\u200b\ufeff\xa0"])
def test_white_space_gives_no_pieces(text: str) -> None:
    assert split(text, (), WORDS, 10, 0) == ()


def test_a_text_that_fits_is_one_piece_without_the_white_space_around() -> None:
    assert split("  One two.\n", (), WORDS, 10, 5) == (Piece(2, 10, "One two.", ""),)


def test_sentences_stay_whole() -> None:
    pieces = split(sentences(20), (), WORDS, 30, 0)
    assert all(p.match.startswith("Sentence") and p.match.endswith("here.") for p in pieces)
    assert [length(WORDS, p) for p in pieces[:-1]] == [26] * (len(pieces) - 1)


def test_paragraphs_come_before_sentences() -> None:
    text = f"{sentences(2)}\n\n{sentences(3)}"
    assert [p.start for p in split(text, (), WORDS, 34, 0)] == [0, text.index("\n\n") + 2]


def test_neighbours_share_whole_sentences() -> None:
    pieces = split(sentences(12), (), WORDS, 34, 17)
    assert pieces[0].match.endswith("Sentence 3 has exactly seven words here.")
    assert pieces[1].match.startswith("Sentence 2 has exactly seven words here.")


def test_nothing_is_shared_across_a_heading() -> None:
    text = f"{sentences(3)}\nResults\n{sentences(3)}"
    place = text.index("Results")
    first, second = split(text, [(0, "Start"), (place, "Results")], WORDS, 36, 16)
    assert first.end < second.start == place


def test_match_begins_with_the_heading_above_once() -> None:
    text = f"Results\n{sentences(6)}"
    pieces = split(text, [(0, "Results")], WORDS, 30, 0)
    assert pieces[0].match.startswith("Results Sentence 0")
    assert all(p.match.startswith("Results: Sentence") for p in pieces[1:])
    assert {p.heading for p in pieces} == {"Results"}
    assert all(p.match.startswith("Sentence") for p in split(text, [(0, "Results")], WORDS, 30, 0, False)[1:])


def test_a_long_heading_leaves_three_quarters_for_the_text() -> None:
    heading = "long " * 200
    pieces = split(sentences(9), [(0, heading)], WORDS, 42, 0)
    assert all(length(WORDS, p) <= 42 and "Sentence" in p.match for p in pieces)
    assert pieces[1].match.startswith("long long")
    assert pieces[1].heading == heading


def test_lines_of_figures_stay_whole() -> None:
    rows = [f"Row {i} Inc. $ {i},100 $ {i},200 (3%) . 4" for i in range(12)]
    text = "\r\n".join(rows)
    for p in split(text, (), WORDS, 40, 13):
        assert set(re.split("\r\n", text[p.start : p.end])) <= set(rows)


def test_a_giant_word_is_cut() -> None:
    pieces = split("a" * 5000, (), WORD_PIECES, 50, 5)
    assert len(pieces) > 1
    assert all(length(WORD_PIECES, p) <= 50 for p in pieces)
    assert (pieces[0].start, pieces[-1].end) == (0, 5000)


def test_text_without_spaces_is_cut_after_its_sentences() -> None:
    pieces = split("世界和平。" * 20, (), WORD_PIECES, 20, 0)
    assert all(p.match.endswith("。") for p in pieces)


def test_initials_and_titles_end_no_sentence() -> None:
    text = "Many a word may well come before the end of it. "
    text += "The author is Dr. J. Smith of the Inc. Company there today."
    first, _ = split(text, (), WORDS, 22, 0)
    assert first.match.endswith("it.")


def test_broken_words_are_matched_whole_and_quoted_as_they_stand() -> None:
    text = "a speci\ufb01-\ncation of it"
    (piece,) = split(text, (), WORDS, 20, 0)
    assert piece.match == "a specification of it"
    assert text[piece.start : piece.end] == text


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_limit_that_leaves_no_room_is_refused(tokens: int) -> None:
    with pytest.raises(RidgewayError, match=f"tokens is {tokens}, 2 of them special"):
        split("text", (), WORDS, tokens, 0)


@pytest.mark.skipif(not FILINGS.is_dir(), reason=f"needs {FILINGS}, which is not part of a clone")
def test_a_filing_is_covered_by_pieces_that_fit() -> None:
    import pypdfium2

    document = pypdfium2.PdfDocument(FILINGS / "2022 Q3 AAPL.pdf")
    for page in list(document)[:12]:
        text = page.get_textpage().get_text_range()
        pieces = split(text, (), WORD_PIECES, 200, 32)
        assert max(length(WORD_PIECES, p) for p in pieces) <= 200
        assert all(b.start < a.end + 4 for a, b in pairwise(pieces))
    document.close()
