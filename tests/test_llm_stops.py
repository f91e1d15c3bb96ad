"""Text from tokens as they come: never taken back, never past a stop."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.llm.stops import Stream, cut

MERGED = [b"ab", b"bc", b"a\n\nb", "é".encode(), "日本".encode(), "日".encode()[:2], b"\xac!", b""]


def decode(tokens: Sequence[int]) -> str:
    """A byte-level tokenizer: a token for each byte, then a few that are longer, and one without text."""
    return b"".join(bytes([t]) if t < 256 else MERGED[t - 256] for t in tokens).decode(errors="replace")


def decode_words(tokens: Sequence[int]) -> str:
    """As SentencePiece does it: each word brings its blank, and the first one loses it; 0 has no text."""
    return "".join(" " + "abc"[t - 1] for t in tokens if t).removeprefix(" ")


def encode(text: str) -> list[int]:
    return list(text.encode())


def first_stop(text: str, stops: Sequence[str]) -> str:
    """The plain meaning: read on, character by character, until what was read ends with a stop."""
    for end in range(len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def streamed(tokens: Sequence[int], stops: Sequence[str]) -> tuple[list[str], Stream]:
    stream = Stream(decode, stops)
    return [*map(stream.feed, tokens), stream.close()], stream


stops_of_few_letters = st.lists(st.text("ab\né", min_size=1, max_size=4), max_size=3)
odd_tokens = st.lists(
    st.one_of(st.sampled_from([*b"ab\n", *range(256, 264)]), st.integers(0, 255)), max_size=25
)


@given(odd_tokens, stops_of_few_letters)
def test_what_is_shown_is_everything_decoded_and_cut_at_the_first_stop(
    tokens: list[int], stops: list[str]
) -> None:
    shown, stream = streamed(tokens, stops)
    assert "".join(shown) == first_stop(decode(tokens), stops)
    assert stream.finished


@given(st.text("ab\né日", max_size=20), stops_of_few_letters, st.data())
def test_how_the_text_is_split_into_tokens_changes_nothing(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    left, tokens = text.encode(), []
    while left:
        fitting = [i for i, m in enumerate(MERGED) if m and left.startswith(m)]
        token = data.draw(st.sampled_from([left[0], *(256 + i for i in fitting)]))
        tokens.append(token)
        left = left[len(MERGED[token - 256]) if token >= 256 else 1 :]
    assert "".join(streamed(tokens, stops)[0]) == first_stop(text, stops)


@given(odd_tokens, stops_of_few_letters)
def test_nothing_is_shown_that_a_stop_might_take_back(tokens: list[int], stops: list[str]) -> None:
    stream, seen = Stream(decode, stops), ""
    for i, token in enumerate(tokens):
        seen += stream.feed(token)
        text = decode(tokens[: i + 1])
        for stop in stops:
            for other in (stop, "".join(text[-1:]) + stop):
                assert first_stop(text + other, stops).startswith(seen)


@given(st.lists(st.integers(0, 3), max_size=12))
def test_blanks_that_a_decoder_drops_before_its_first_token_are_kept(tokens: list[int]) -> None:
    stream = Stream(decode_words)
    assert "".join(map(stream.feed, tokens)) == decode_words(tokens)


def test_half_a_character_waits_for_its_other_half() -> None:
    stream = Stream(decode)
    assert [stream.feed(t) for t in "€!".encode()] == ["", "", "€", "!"]
    assert stream.close() == ""


def test_half_a_character_at_the_end_stays_what_it_is() -> None:
    stream = Stream(decode)
    assert stream.feed("€".encode()[0]) == ""
    assert stream.close() == "\ufffd"


def test_a_beginning_of_a_stop_is_held_back_until_it_is_none() -> None:
    stream = Stream(decode, ("\n\nQ:",))
    assert [stream.feed(t) for t in encode("yes\n\nQ")] == ["y", "e", "s", "", "", ""]
    assert stream.feed(ord("u")) == "\n\nQu"
    assert not stream.finished


def test_a_stop_ends_the_text_and_what_follows_is_not_read() -> None:
    stream = Stream(decode, ("\n\n", "END"))
    assert [stream.feed(t) for t in encode("no\n\nEND")] == ["n", "o", "", "", "", "", ""]
    assert stream.finished
    assert stream.close() == ""


def test_a_beginning_of_a_stop_at_the_end_is_shown_then() -> None:
    stream = Stream(decode, ("END",))
    assert [stream.feed(t) for t in encode("SEEN")] == ["S", "", "E", ""]
    assert stream.close() == "EN"


def test_without_stops_every_whole_character_is_shown_at_once() -> None:
    stream = Stream(decode)
    assert [stream.feed(t) for t in encode("abc")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "stops", "place"),
    [("abcd", ("bc", "cd"), 1), ("abcd", ("bcd", "c"), 2), ("abcd", ("c", "bc"), 1), ("abc", ("x",), None)],
)
def test_the_first_stop_is_the_one_complete_first_and_then_the_longest(
    text: str, stops: tuple[str, ...], place: int | None
) -> None:
    assert cut(text, stops) == place


def test_a_token_costs_the_decoding_of_few_tokens() -> None:
    most = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal most
        most = max(most, len(tokens))
        return decode(tokens)

    stream = Stream(counted)
    text = "a longer answer with an € or two " * 20
    assert "".join(map(stream.feed, encode(text))) == text
    assert most <= 8
