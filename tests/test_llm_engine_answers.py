"""How an engine's answers are chosen, what ends them, and how they are shown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stages.llm.constrain import Constraint, Words, compile  # noqa: A004
from stages.llm.decoder import Ask
from stages.llm.engine import Engine
from stages.llm.family import network
from stages.llm.limits import Limits
from stages.llm.sampling import Sampling
from tests.llm_engines import (
    ALL,
    AMPLE,
    MOST,
    PROMPTS,
    Truth,
    asks,
    engine,
    sampled,
    settled,
)
from tests.llm_models import END, VOCABULARY, numbers, one_thread, random_tokens, tiny

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


@pytest.fixture(scope="module")
def llama() -> Truth:
    return Truth("llama")


# how answers are chosen, and what ends them


def test_drawn_answers_are_the_same_whoever_shares_their_steps(llama: Truth) -> None:
    alone = [engine(llama.net).answer(sampled(1, [i]))[0].tokens for i in ALL]
    assert len(set(alone)) >= len(alone) - 1  # two of the prompts are alike
    for limits in (AMPLE, Limits(272, 4, 16, expected=2), Limits(1 << 14, drafts=4)):
        one = engine(llama.net, limits)
        assert [s.tokens for s in one.answer(sampled(1, list(ALL)))] == alone
        mixed = [*asks(ALL), *sampled(1, list(ALL))]
        assert [s.tokens for s in one.answer(mixed)][len(PROMPTS) :] == alone
        settled(one)


def test_seeds_make_other_answers(llama: Truth) -> None:
    one = engine(llama.net)
    first, second = (one.answer(sampled(seed, [0, 3, 7])) for seed in (1, 2))
    assert all(a.tokens != b.tokens for a, b in zip(first, second, strict=True))


def test_drafts_are_taken_and_change_nothing() -> None:
    """A model that sees no further than the last token soon repeats itself."""
    import torch

    model = tiny("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    net = network(model)
    plain, drafting = engine(net), engine(net, Limits(1 << 12, drafts=4))
    a, b = (one.answer([Ask(PROMPTS[7], 100)])[0] for one in (plain, drafting))
    assert a.tokens == b.tokens
    assert (a.drafted, a.accepted) == (0, 0)
    assert 0 < b.accepted <= b.drafted
    assert drafting.counts.steps == plain.counts.steps - b.accepted
    assert (drafting.counts.drafted, drafting.counts.accepted) == (b.drafted, b.accepted)


@pytest.mark.parametrize("drafts", [0, 4])
def test_stop_texts_end_an_answer(llama: Truth, drafts: int) -> None:
    right = llama.greedy(PROMPTS[0], MOST)
    for at in (0, 3, 9):
        stop = f" {right[at]} {right[at + 1]}"
        text = numbers(right).split(stop, maxsplit=1)[0]
        ask = Ask(PROMPTS[0], MOST, (), Sampling(stop=(stop, "no such text")))
        said = engine(llama.net, Limits(4096, drafts=drafts)).answer([ask])[0]
        assert (said.text, said.stop) == (text.strip(), "end")
        assert numbers(said.tokens) == text + stop


@pytest.mark.parametrize("drafts", [0, 4])
def test_end_tokens_end_an_answer_and_length_cuts_it_off(llama: Truth, drafts: int) -> None:
    right = llama.greedy(PROMPTS[1], MOST)
    at = next(i for i in range(4, MOST) if right[i] not in right[:i])
    one = Engine(llama.net, frozenset([right[at], 1]), numbers, Limits(4096, drafts=drafts))
    ended, cut, last = (one.answer([Ask(PROMPTS[1], n)])[0] for n in (MOST, at, at + 1))
    assert (ended.tokens, ended.stop) == (right[: at + 1], "end")
    assert (cut.tokens, cut.stop) == (right[:at], "length")
    assert (last.tokens, last.stop) == (right[: at + 1], "end")


def test_what_never_fits_fails_alone(llama: Truth) -> None:
    one = engine(llama.net, Limits(192))
    long = Ask(random_tokens(150, 9), 60)
    said = one.answer([*asks([0]), long, *asks([7])])
    assert [s.stop for s in said] == ["length", "memory", "length"]
    assert (said[1].tokens, said[1].text) == ((), "")
    assert [said[0].tokens, said[2].tokens] == [llama.greedy(PROMPTS[i], MOST) for i in (0, 7)]
    assert one.prefill([long]) == [None]
    settled(one)


# answers of a given form


@pytest.fixture(scope="module")
def words() -> Words:
    """Digits and letters as tokens, one of which is the end."""
    llguidance = pytest.importorskip("llguidance")

    class Letters:
        eos_token_id = END
        bos_token_id = 1

        def __init__(self) -> None:
            self.special_token_ids = [0, 1, 2]
            special = [b"\xff<%d>" % i for i in self.special_token_ids]
            self.tokens = [*special, *(bytes([32 + i]) for i in range(3, VOCABULARY))]

        def __call__(self, text: bytes) -> list[int]:
            return [b - 32 for b in text if b > 34]

    tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Letters()))
    return Words(tokens, VOCABULARY, frozenset([END]))


def letters(tokens: Any) -> str:
    return "".join(chr(32 + t) for t in tokens if t > 2)


@pytest.mark.parametrize("limits", [AMPLE, Limits(4096, 3, 16, drafts=4), Limits(272, 8, 16, 4, 1)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_keep_to_their_form(llama: Truth, words: Words, limits: Limits, temperature: float) -> None:
    grammar = compile(Constraint("regex", "(ab|cd){6,20}[0-9]"), words)
    how = Sampling(temperature=temperature)
    constrained = [Ask(PROMPTS[i], 60, (f"c{i}",), how, grammar) for i in ALL]
    free = asks(ALL)
    one = Engine(llama.net, frozenset([END]), letters, limits)
    said = one.answer([a for pair in zip(constrained, free, strict=True) for a in pair])
    for answer in said[::2]:
        assert answer.stop == "end"
        assert re.fullmatch("(ab|cd){6,20}[0-9]", answer.text)
    assert [s.tokens for s in said[1::2]] == [llama.greedy(p, MOST) for p in PROMPTS]
    alone = Engine(llama.net, frozenset([END]), letters, AMPLE)
    assert [s.tokens for s in said[::2]] == [alone.answer([a])[0].tokens for a in constrained]
    settled(one)


# streams


@pytest.mark.parametrize("drafts", [0, 4])
def test_pieces_of_a_stream_are_the_answer(llama: Truth, drafts: int) -> None:
    one = engine(llama.net, Limits(4096, drafts=drafts))
    stop = f" {llama.greedy(PROMPTS[0], MOST)[12]}"
    for ask in (*asks([0, 7]), *sampled(3, [1]), Ask(PROMPTS[0], MOST, (), Sampling(stop=(stop,)))):
        pieces = list(one.stream(ask))
        assert "".join(pieces).strip() == one.answer([ask])[0].text
        assert all(pieces)
        assert len(pieces) > 5 or stop in ask.sampling.stop
    settled(one)


def test_a_stream_comes_while_others_are_answered(llama: Truth) -> None:
    one = engine(llama.net)
    stream = one.stream(asks([0])[0])
    first = next(stream)
    assert [s.tokens for s in one.answer(asks([7, 8]))] == [llama.greedy(PROMPTS[i], MOST) for i in (7, 8)]
    assert (first + "".join(stream)).strip() == numbers(llama.greedy(PROMPTS[0], MOST)).strip()
    settled(one)
