"""How long a pin lives: the formula against brute force, and what pins do as questions come and go."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.pins import ENOUGH, Pins, Returns, Turns, first_come, live_seconds

TIMES = st.lists(st.integers(1, 40).map(lambda n: n / 4), max_size=30)


def objective(times: list[float], benefit: float, tau: float) -> float:
    """P(time <= τ) * benefit - τ, as the paper writes it."""
    return sum(t <= tau for t in times) / max(len(times), 1) * benefit - tau


@given(TIMES, st.integers(-20, 400).map(lambda n: n / 8))
def test_the_time_to_live_is_the_best_of_all(times: list[float], benefit: float) -> None:
    found = live_seconds(times, benefit)
    grid = [0.0, *(n / 16 for n in range(1, 200))]  # what was seen, and times between
    best = max(objective(times, benefit, tau) for tau in grid)
    assert objective(times, benefit, found) == pytest.approx(best)
    assert all(objective(times, benefit, tau) < best for tau in grid if tau < found - 1e-9)


def test_of_fast_and_slow_returns_only_the_fast_ones_are_waited_for() -> None:
    times = [0.1, 0.2, 0.15, 0.12] * 10 + [60.0] * 40
    assert live_seconds(times, 2.0) == 0.2
    assert live_seconds(times, 0.1) == 0.0
    assert live_seconds(times, 500.0) == 60.0


@given(st.lists(st.integers(1, 9), max_size=12))
def test_memory_is_the_correlation_of_done_and_left(lengths: list[int]) -> None:
    turns = Turns()
    pairs = []
    for n in lengths:
        turns.done(n)
        pairs += [(k, n - k) for k in range(1, n + 1)]
    if len(set(pairs)) > 1:
        done, left = np.array(pairs, dtype=float).T
        wanted = 0.0 if not (done.std() and left.std()) else -np.corrcoef(done, left)[0, 1]
        assert turns.memory == pytest.approx(wanted, abs=1e-9)
    else:
        assert turns.memory == 0.0


def test_memory_is_one_for_fixed_lengths_and_nothing_for_geometric_ones() -> None:
    fixed, memoryless = Turns(), Turns()
    for _ in range(3):
        fixed.done(4)
    for n in range(1, 14):
        for _ in range(2 ** (14 - n)):
            memoryless.done(n)
    assert fixed.memory == pytest.approx(1.0)
    assert abs(memoryless.memory) < 0.02


@given(st.integers(0, 80).map(lambda n: n / 4), st.integers(0, 40).map(lambda n: n / 4))
def test_before_enough_was_seen_times_are_taken_to_be_exponential(reload: float, delay: float) -> None:
    returns = Returns()
    returns.queued(delay)
    found = returns.live_seconds("search", reload)

    def gain(tau: float) -> float:
        return (1 - exp(-tau)) * (reload + delay) - tau

    assert gain(found) >= max(gain(n / 100) for n in range(500)) - 1e-12


def test_times_of_a_kind_count_once_there_are_enough_and_those_of_all_before() -> None:
    returns = Returns()
    for _ in range(ENOUGH + 1):
        returns.away("search", 0.5)
    assert returns.live_seconds("search", 2.0) == 0.5
    for _ in range(ENOUGH):
        returns.away("rerank", 0.25)
    assert returns.live_seconds("rerank", 2.0) == 0.5
    returns.away("rerank", 0.25)
    assert returns.live_seconds("rerank", 2.0) == 0.25
    assert returns.live_seconds("search", 2.0) == 0.5


def test_the_delay_counts_as_far_as_rounds_done_tell_of_rounds_left() -> None:
    returns = Returns()
    for _ in range(ENOUGH + 1):
        returns.away("search", 3.0)
    returns.queued(10.0)
    assert returns.live_seconds("search", 1.0) == 0.0
    for _ in range(2):
        returns.turns.done(3)
    assert returns.live_seconds("search", 1.0) == 3.0


def pins_of(*names: str, reload_seconds: float = 20.0) -> Pins[str, str]:
    """Questions that left at 0, the first arrived first; cold, so each is pinned for ln 20 = 3.0 seconds."""
    pins: Pins[str, str] = Pins(Returns())
    for arrived, name in enumerate(names):
        pins.leave(name, f"kv of {name}", "search", float(arrived), 0.0, reload_seconds)
    return pins


def test_a_pin_ends_when_its_time_is_over_unless_the_question_is_back() -> None:
    pins = pins_of("a", "b")
    assert pins.expired(2.9) == []
    pins.back("b", 2.0)
    assert pins.expired(3.1) == ["kv of a"]
    assert pins.expired(3.1) == []
    assert pins.start("b") == "kv of b"
    assert pins.start("b") is None
    assert pins.start("a") is None


def test_what_is_not_worth_it_is_not_pinned_but_learned_from() -> None:
    returns = Returns()
    pins: Pins[str, str] = Pins(returns)
    for i in range(ENOUGH + 1):
        assert pins.leave(str(i), "kv", "search", 0.0, 1.0, 0.5) == 0.0
        assert str(i) not in pins
        pins.back(str(i), 1.25)
    assert returns.live_seconds("search", 0.5) == 0.25


def test_under_pressure_the_question_that_came_last_gives_up_its_pin() -> None:
    pins = pins_of("a", "b", "c")
    pins.back("c", 1.0)
    assert [pins.give_up() for _ in range(4)] == ["kv of c", "kv of b", "kv of a", None]


def test_a_question_that_is_over_has_no_pin_and_tells_how_many_requests_it_took() -> None:
    returns, wanted = Returns(), Turns()
    pins: Pins[str, str] = Pins(returns)
    for name, rounds in (("a", 1), ("b", 3)):
        for now in range(rounds):
            pins.leave(name, name, "search", 0.0, float(now), 20.0)
            pins.back(name, now + 0.5)
        assert pins.done(name) == name
        assert name not in pins
        wanted.done(rounds + 1)
    pins.leave("c", "c", "search", 0.0, 0.0, 20.0)
    assert pins.done("c") == "c"  # given up while it was away: its second request never came
    wanted.done(1)
    assert returns.turns.memory == pytest.approx(wanted.memory)


def test_a_question_cannot_leave_twice() -> None:
    pins = pins_of("a")
    with pytest.raises(ValueError, match="away already"):
        pins.leave("a", "kv", "search", 0.0, 1.0, 20.0)


def test_preempted_then_pinned_then_the_question_that_came_first() -> None:
    requests = [(False, False, 0.0), (False, True, 9.0), (True, False, 5.0), (False, True, 2.0)]
    assert sorted(requests, key=lambda r: first_come(*r)) == [requests[i] for i in (2, 3, 1, 0)]


@settings(deadline=None, max_examples=25)
@given(st.permutations([0.1, 0.2, 0.3, 30.0] * 75), st.integers(1, 6))
def test_a_replay_costs_less_than_to_pin_never_or_always(times: list[float], reload: int) -> None:
    """Seconds: of memory held for questions that are out, and of prefill for those whose KV was gone."""
    pins: Pins[int, int] = Pins(Returns())
    held, reloads, now = 0.0, 0, 0.0
    for i, time in enumerate(times):
        seconds = pins.leave(i, i, "search", now, now, float(reload))
        held += min(time, seconds)
        pins.expired(now + time)
        pins.back(i, now + time)
        reloads += pins.start(i) is None
        now += time + 1.0
    assert reloads < len(times)
    assert held < sum(times)
    cold = ENOUGH * reload  # at most: what is pinned then is pinned for less than a reload
    assert held + reloads * reload <= min(sum(times), len(times) * reload) + cold
