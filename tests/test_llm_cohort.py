"""Who enters when, what is read once, and what gives way."""

from __future__ import annotations

import numpy as np
import pytest

from stages.llm.decoder import Ask
from stages.llm.limits import Limits
from tests.llm_engines import (
    PROMPTS,
    Truth,
    Visit,
    admit,
    asks,
    drive,
    engine,
    settled,
    thresholds,
    watched,
)
from tests.llm_models import one_thread, random_tokens

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


@pytest.fixture(scope="module")
def llama() -> Truth:
    return Truth("llama")


# what is read once


def test_what_prompts_share_is_read_once(llama: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds(monkeypatch, 256, 64)
    one = engine(llama.net)
    said = one.answer(asks([0, 1, 3, 5]))
    assert [s.reused for s in said].count(0) == 1
    assert sorted(s.reused for s in said)[1:] == [80, 80, 80]
    assert one.counts.reused == 240


def test_prompts_on_what_is_cached_are_read_together(llama: Truth) -> None:
    """They wait for one another only where that saves anything."""
    one = engine(llama.net)
    one.answer(asks([0]))
    for ask in asks([1, 3, 5]):
        one._enter(ask)
    admit(one)
    assert len(one._cohort.running) == 3


def test_three_rounds_over_the_same_passages_prefill_under_half(llama: Truth) -> None:
    one = engine(llama.net, Limits(1 << 14, chunk=64))
    questions = [random_tokens(70, 20 + q) for q in range(4)]
    fresh = 0
    for round_ in range(3):
        rounds = [np.concatenate([p, random_tokens(4 + 8 * round_, q)]) for q, p in enumerate(questions)]
        said = one.answer([Ask(p, 6, (q, round_)) for q, p in enumerate(rounds)])
        assert [s.tokens for s in said] == [llama.greedy(p, 6) for p in rounds]
        fresh += sum(map(len, rounds))
    assert one.counts.prompt == fresh
    assert 0 < one.counts.prompt - one.counts.reused < fresh / 2


def test_prefixes_give_way_to_who_is_under_way_and_only_then(llama: Truth) -> None:
    one = watched(engine(llama.net, Limits(272)))
    one.answer(asks([0]))
    assert one._cohort._prefixes.used == 80
    one.answer(asks([7]))
    assert one._cohort._prefixes.cached(PROMPTS[0]) == 80
    one.answer([Ask(random_tokens(200, 3), 40)])
    assert one._cohort._prefixes.cached(PROMPTS[0]) < 80


def test_a_prompt_that_waits_costs_no_prefix(llama: Truth) -> None:
    """What gives way would not be enough, so it stays."""
    one = watched(engine(llama.net, Limits(272)))
    one.answer(asks([0]))
    one._enter(Ask(PROMPTS[7], 40))
    admit(one)
    one._enter(Ask(random_tokens(200, 3), 40))
    admit(one)
    assert len(one._cohort.running) == 1
    assert one._cohort._prefixes.cached(PROMPTS[0]) == 80


def test_one_that_is_alone_does_without_a_prefix_that_leaves_it_no_room(
    llama: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds(monkeypatch, 16, 16)
    for n in range(16, 80, 16):
        one = watched(engine(llama.net, Limits(128)))
        drive(one, [Visit(Ask(random_tokens(n + 1), 2), 0, False)])
        ask = Ask(np.concatenate([random_tokens(n + 1)[:n], random_tokens(96 - n, 5)]), 32)
        assert drive(one, [Visit(ask, 0, False)])[0].tokens == llama.greedy(ask.tokens, 32)
        settled(one)
