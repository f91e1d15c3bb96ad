"""Draft models change how many steps an answer takes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.llm.decoder import Ask
from stages.llm.drafter import Drafter, Wanted
from stages.llm.engine import Engine
from stages.llm.family import with_twin
from stages.llm.limits import Limits
from stages.llm.network import Network
from stages.llm.small_model import SmallModel
from stages.llm.twin import Twin
from tests.llm_drafters import ENDS, LIMITS, Bounded, broken, clear, drafting, other
from tests.llm_engines import (
    ALL,
    MOST,
    PROMPTS,
    Truth,
    Visit,
    asks,
    drive,
    sampled,
    settled,
    thresholds,
    watched,
)
from tests.llm_models import VOCABULARY, numbers, one_thread, tiny

own_threads = pytest.fixture(autouse=True, scope="module")(one_thread)


@pytest.fixture(scope="module")
def llama() -> Truth:
    return Truth("llama")


@pytest.fixture(scope="module")
def small() -> Network:
    return other()


@pytest.fixture(scope="module")
def twins() -> tuple[Network, Network]:
    return with_twin(tiny("llama"))


def test_a_model_that_drafts_for_itself_is_always_right(llama: Truth) -> None:
    drafter = SmallModel(llama.net, ENDS, LIMITS)
    one = drafting(llama.net, LIMITS, drafter)
    said = one.answer(asks(ALL))
    assert [s.tokens for s in said] == [llama.greedy(p, MOST) for p in PROMPTS]
    assert one.counts.drafted > 100
    assert one.counts.accepted > 0.95 * one.counts.drafted
    steps = Engine(llama.net, ENDS, numbers, LIMITS)
    steps.answer(asks(ALL))
    assert one.counts.steps < 0.6 * steps.counts.steps
    settled(one)
    clear(drafter)


def test_a_model_that_is_wrong_changes_nothing(llama: Truth, small: Network) -> None:
    one = drafting(llama.net, LIMITS, drafter := SmallModel(small, ENDS, LIMITS))
    said = one.answer(asks(ALL))
    assert [s.tokens for s in said] == [llama.greedy(p, MOST) for p in PROMPTS]
    assert one.counts.drafted == sum(s.drafted for s in said) > 100
    assert one.counts.accepted == sum(s.accepted for s in said) < 0.2 * one.counts.drafted
    clear(drafter)


def test_a_copy_in_eight_bits_is_mostly_right(llama: Truth, twins: tuple[Network, Network]) -> None:
    net, copy = twins
    one = drafting(net, LIMITS, Twin(copy, ENDS))
    said = one.answer(asks(ALL))
    assert [s.tokens for s in said] == [llama.greedy(p, MOST) for p in PROMPTS]
    assert one.counts.drafted > 100
    assert one.counts.accepted > 0.6 * one.counts.drafted
    settled(one)


@pytest.mark.parametrize("kind", ["self", "other", "twin"])
def test_traffic_of_any_kind_leaves_every_answer_as_it_is(
    kind: str, llama: Truth, small: Network, twins: tuple[Network, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds(monkeypatch, 32, 16)
    net = twins[0] if kind == "twin" else llama.net
    traffic = st.lists(
        st.tuples(st.sampled_from(list(ALL)), st.integers(1, MOST), st.integers(0, 25), st.booleans()),
        min_size=1,
        max_size=8,
    )
    limits_ = st.builds(
        Limits,
        tokens=st.sampled_from([192, 208, 272, 400, 1 << 14]),
        rows=st.sampled_from([1, 3, 8]),
        chunk=st.sampled_from([1, 16, 512]),
        drafts=st.integers(1, 5),
        expected=st.sampled_from([1, 4, 256]),
    )

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(traffic, limits_, st.sampled_from([64, 128, 256, 1 << 14]), st.booleans(), st.integers(1, 5))
    def check(
        visits_: list[tuple[int, int, int, bool]], limits: Limits, budget: int, looks_up: bool, most: int
    ) -> None:
        own = Limits(budget, limits.rows, limits.chunk, expected=limits.expected)
        drafters: dict[str, Drafter] = {
            "self": Bounded(llama.net, ENDS, own),
            "other": Bounded(small, ENDS, own),
            "twin": Twin(twins[1], ENDS),
        }
        drafter = drafters[kind]
        one = watched(drafting(net, limits, drafter, looks_up, most))
        visits = [Visit(asks([i], n)[0], step, split) for i, n, step, split in visits_]
        for visit, said in zip(visits, drive(one, visits), strict=True):
            if said.stop != "memory":
                assert said.tokens == llama.greedy(visit.ask.tokens, MOST)[: visit.ask.most]
        settled(one)
        trust = one._cohort._proposals._trust
        assert kind != "self" or trust.stood == trust.tried
        clear(drafter)

    check()


def test_what_is_drawn_by_chance_is_the_same_text(
    llama: Truth, small: Network, twins: tuple[Network, Network]
) -> None:
    right = [s.tokens for s in Engine(llama.net, ENDS, numbers, LIMITS).answer(sampled(3, [*ALL]))]
    for net, drafter in (
        (llama.net, SmallModel(llama.net, ENDS, LIMITS)),
        (llama.net, SmallModel(small, ENDS, LIMITS)),
        (twins[0], Twin(twins[1], ENDS)),
    ):
        one = drafting(net, LIMITS, drafter)
        assert [s.tokens for s in one.answer(sampled(3, [*ALL]))] == right
        assert 0 < one.counts.accepted < one.counts.drafted


class Odd:
    """A grammar that lets odd tokens come, and the end."""

    finished = False

    def start(self) -> Odd:
        return self

    def masks(self, drafts: Sequence[int]) -> NDArray[np.bool_]:
        good = next((i for i, t in enumerate(drafts) if t % 2 == 0), len(drafts))
        return np.tile(np.arange(VOCABULARY) % 2 == 1, (good + 1, 1))

    def advance(self, token: int) -> None:
        assert token % 2


@pytest.mark.parametrize("kind", ["self", "twin"])
def test_a_grammar_holds_for_drafts_and_refuses_what_it_does_not_know(
    kind: str, llama: Truth, twins: tuple[Network, Network]
) -> None:
    wanted = [Ask(p, 8, (i,), grammar=Odd()) for i, p in enumerate(PROMPTS)]
    right = [s.tokens for s in Engine(llama.net, ENDS, numbers, LIMITS).answer(wanted)]
    assert {t % 2 for tokens in right for t in tokens} == {1}
    drafter = Twin(twins[1], ENDS) if kind == "twin" else SmallModel(llama.net, ENDS, LIMITS)
    one = drafting(twins[0] if kind == "twin" else llama.net, LIMITS, drafter)
    assert [s.tokens for s in one.answer(wanted)] == right
    trust = one._cohort._proposals._trust
    assert trust.tried - trust.stood > 10
    assert one.counts.drafted < trust.tried


class Failing(SmallModel):
    """Its third draft fails, when caches are full of what is not certain."""

    calls = 0

    def draft(self, wanted: Wanted) -> list[list[int]]:
        found = super().draft(wanted)
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("gone")
        return found


def test_a_step_that_fails_leaves_nothing_behind(llama: Truth) -> None:
    drafter = Failing(llama.net, ENDS, LIMITS)
    one = drafting(llama.net, LIMITS, drafter)
    with pytest.raises(RuntimeError, match="gone"):
        one.answer(asks(ALL))
    settled(one)
    clear(drafter)
    assert [s.tokens for s in one.answer(asks(ALL))] == [llama.greedy(p, MOST) for p in PROMPTS]
    assert one.counts.accepted > 0.95 * one.counts.drafted > 0


@pytest.mark.parametrize("kind", ["small", "twin"])
def test_numbers_that_are_not_finite_draft_nothing_and_spoil_nothing(kind: str, llama: Truth) -> None:
    net = broken(llama.net)
    drafter = Twin(net, ENDS) if kind == "twin" else SmallModel(net, ENDS, LIMITS)
    one = drafting(llama.net, LIMITS, drafter)
    for _ in range(2):
        assert [s.tokens for s in one.answer(asks(ALL))] == [llama.greedy(p, MOST) for p in PROMPTS]
    assert one.counts.drafted == one.counts.accepted
    clear(drafter)


def test_a_row_beyond_the_window_of_the_draft_model_goes_on_without(llama: Truth) -> None:
    drafter = SmallModel(other(max_position_embeddings=64), ENDS, LIMITS)
    one = drafting(llama.net, LIMITS, drafter)
    assert [s.tokens for s in one.answer(asks(ALL))] == [llama.greedy(p, MOST) for p in PROMPTS]
    short = [s for s, p in zip(one.answer(asks(ALL)), PROMPTS, strict=True) if s.drafted]
    assert 0 < len(short) < len(PROMPTS)
