"""An engine says what the model says to each prompt alone, whoever shares its steps and its memory."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.llm.decoder import Ask, Said
from stages.llm.family import network
from stages.llm.limits import NOWHERE, Limits
from stages.llm.preempt import Swap
from stages.llm.rooms import capacity
from stages.llm.sequence import Sequence
from tests.llm_engines import (
    ALL,
    FREE_SWAP,
    MOST,
    PROMPTS,
    Truth,
    Visit,
    asks,
    drive,
    engine,
    settled,
    thresholds,
    watched,
)
from tests.llm_models import END, one_thread, tiny

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


@pytest.fixture(scope="module")
def llama() -> Truth:
    return Truth("llama")


@pytest.fixture(scope="module")
def gemma() -> Truth:
    """Its layers look back 16 tokens only, in turns."""
    return Truth("gemma2")


TRAFFIC = st.lists(
    st.tuples(st.sampled_from(list(ALL)), st.integers(1, MOST), st.integers(0, 25), st.booleans()),
    min_size=1,
    max_size=10,
)
LIMITS = st.builds(
    Limits,
    tokens=st.sampled_from([144, 192, 208, 272, 400, 1 << 14]),
    rows=st.sampled_from([1, 2, 3, 8]),
    chunk=st.sampled_from([1, 5, 16, 64, 512]),
    drafts=st.sampled_from([0, 4]),
    expected=st.sampled_from([1, 4, 256]),
    swap=st.sampled_from([NOWHERE, FREE_SWAP, Swap(1 << 15, 1e15)]),
)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_traffic_of_any_kind_leaves_every_answer_as_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    truth: Truth = request.getfixturevalue(name)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(TRAFFIC, LIMITS, st.sampled_from([16, 32, 256]), st.sampled_from([16, 64]))
    def check(traffic: list[tuple[int, int, int, bool]], limits: Limits, shared: int, least: int) -> None:
        thresholds(monkeypatch, shared, least)
        one = watched(engine(truth.net, limits))
        visits = [
            Visit(Ask(PROMPTS[i], most, (i, n)), step, split)
            for n, (i, most, step, split) in enumerate(traffic)
        ]
        for visit, said in zip(visits, drive(one, visits), strict=True):
            if capacity(len(visit.ask.tokens) + visit.ask.most) > limits.tokens:
                assert (said.stop, said.tokens) == ("memory", ())
            else:
                right = truth.greedy(visit.ask.tokens, MOST)[: visit.ask.most]
                assert said.tokens == right
                assert said.stop == ("end" if END in right else "length")
        settled(one)

    check()


TINY = (400, 272, 208)


@pytest.mark.parametrize("swap", [NOWHERE, FREE_SWAP])
@pytest.mark.parametrize("drafts", [0, 4])
def test_who_must_make_room_goes_on_where_it_was(
    llama: Truth, swap: Swap, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds(monkeypatch, 32, 16)
    preempted, said = 0, []
    for tokens in TINY:
        one = watched(engine(llama.net, Limits(tokens, 8, 32, drafts, expected=1, swap=swap)))
        said.append(drive(one, [Visit(a, 2 * i, False) for i, a in enumerate(asks(ALL, 60))]))
        settled(one)
        preempted += one.counts.preempted
    right = [llama.greedy(p, 60) for p in PROMPTS]
    assert all([s.tokens for s in answers] == right for answers in said)
    assert preempted > 3


def test_caches_are_copied_out_where_that_is_cheaper(llama: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = []
    make_room = Sequence.make_room

    def noted(self: Sequence, swap: bool) -> None:
        swapped.append(swap)
        make_room(self, swap)

    monkeypatch.setattr(Sequence, "make_room", noted)
    for swap in (NOWHERE, FREE_SWAP):
        one = engine(llama.net, Limits(272, 8, 32, expected=1, swap=swap))
        one.answer(asks(ALL, 60))
        assert swapped
        assert any(swapped) == (swap is FREE_SWAP)
        swapped.clear()


@pytest.mark.parametrize("name", ["llama", "gemma"])
@pytest.mark.parametrize("drafts", [0, 4])
def test_prefilled_here_and_decoded_there_is_answered(
    name: str, drafts: int, request: pytest.FixtureRequest
) -> None:
    truth: Truth = request.getfixturevalue(name)
    first, second = engine(truth.net, Limits(4096, 3, 16)), engine(truth.net, Limits(600, 4, drafts=drafts))
    pasts = first.prefill(asks(ALL))
    assert [len(p) for p in pasts if p is not None] == [len(p) - 1 for p in PROMPTS]
    said = second.decode(asks(ALL), [p for p in pasts if p is not None])
    assert [s.tokens for s in said] == [truth.greedy(p, MOST) for p in PROMPTS]
    settled(first)
    settled(second)


def test_many_callers_share_an_engine(llama: Truth) -> None:
    one = engine(llama.net, Limits(600, 6, 32, drafts=4, expected=8))
    found: dict[int, list[Said]] = {}

    def call(n: int) -> None:
        found[n] = one.answer(asks([(n + 4 * i) % len(PROMPTS) for i in range(3)]))

    callers = [threading.Thread(target=call, args=(n,)) for n in range(len(PROMPTS))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for n in ALL:
        right = [llama.greedy(PROMPTS[(n + 4 * i) % len(PROMPTS)], MOST) for i in range(3)]
        assert [s.tokens for s in found[n]] == right
    settled(one)


def test_a_budget_that_is_too_small_for_the_batch_costs_steps_and_nothing_else(llama: Truth) -> None:
    ample, small = engine(llama.net), watched(engine(llama.net, Limits(208)))
    said = ample.answer(asks(ALL))
    assert [s.tokens for s in small.answer(asks(ALL))] == [s.tokens for s in said]
    assert small.counts.steps > 2 * ample.counts.steps
    assert small.counts.held <= 208 < ample.counts.held
    assert small.counts.new == ample.counts.new == sum(len(s.tokens) for s in said)


def test_rows_without_a_name_are_rows_of_one_question(llama: Truth) -> None:
    one = engine(llama.net)
    said = one.answer([Ask(p, 5) for p in PROMPTS])
    assert [s.tokens for s in said] == [llama.greedy(p, MOST)[:5] for p in PROMPTS]


def test_a_model_in_bfloat16_answers() -> None:
    import torch

    one = engine(network(tiny("llama").to(torch.bfloat16)), Limits(4096, drafts=4))
    said = one.answer(asks(ALL))
    assert {s.stop for s in said} <= {"end", "length"}
    assert one._cohort.space.rooms._slabs[64].keys[0].dtype == torch.bfloat16


def test_the_numbers_of_a_run_are_counted(llama: Truth) -> None:
    one = engine(llama.net)
    said = one.answer(asks(ALL, 6))
    counts = one.counts
    assert counts.prompt == sum(map(len, PROMPTS))
    assert counts.new == sum(len(s.tokens) for s in said)
    assert counts.reused == sum(s.reused for s in said)
    assert counts.steps >= 6
    assert counts.seconds > 0
    assert counts.preempted == 0
