"""Gates choose what is faster, and the numbers they give are those that made them choose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.gates import (
    Curve,
    Offload,
    crossing,
    crossover,
    duration,
    equal_split,
    knee,
    offload,
    recompute_or_transfer,
    size,
)
from pipeline.machine import Link

# offload


def decode(**change: float) -> Offload:
    """A batch of equal parts on the GPU, and a CPU with a tenth of its throughput at attention."""
    base = Offload("decode", ("cuda:0", "cpu:0"), fixed=0.01, items=0.01, fast=1000, slow=100, queued=8)
    return replace(base, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({}, "overlap"),
        ({"slow": 166}, "overlap"),
        ({"slow": 167}, "split"),
        ({"slow": 60, "items": 0.005}, "overlap"),
        ({"slow": 130, "items": 0.005}, "overlap"),
        ({"slow": 134, "items": 0.005}, "split"),
        ({"slow": 1, "fixed": 0.0}, "split"),
        ({"slow": 100, "window": 0.01}, "overlap"),
        ({"slow": 100, "window": 0.02}, "split"),
        ({"slow": 900, "queued": 0}, "device only"),
        ({"slow": 0}, "device only"),
        ({"slow": 900, "items": 0.0}, "device only"),
    ],
)
def test_the_gate_opens_at_the_throughput_that_pays_for_a_second_batch(
    change: dict[str, float], chosen: str
) -> None:
    assert offload(decode(**change)).chosen == chosen


@pytest.mark.parametrize(("items", "bound"), [(0.005, 7.5), (0.01, 6.0), (0.015, 5.8333)])
def test_the_bound_is_that_of_the_paper(items: float, bound: float) -> None:
    """2 T_gl/T_ga + 3 + T_ga/T_gl."""
    assert 1 / decode(items=items).need == pytest.approx(bound, abs=1e-4)


def test_the_gains_are_those_of_the_worked_case() -> None:
    """At N_C/N_G = 0.1 and equal parts overlap gives 1.20 and a split 0.87."""
    numbers = offload(decode()).numbers
    assert numbers["gain of overlap"] == pytest.approx(1.2)
    assert numbers["gain of split"] == pytest.approx(0.87, abs=0.005)


seconds = st.floats(1e-3, 10)
rates = st.floats(1, 1e4)
SIDES = ("cuda:0", "cpu:0")


def makespan(on: Offload, batches: int, rows: float) -> float:
    """Seconds for `rows`, cycle by cycle: `batches` (2: a split) each read the fixed part, the CPU works on.

    Prefill comes with the rows, and lengthens the cycle until the rows of the cycle have all had theirs.
    """
    per_row = on.window / (on.fast * on.items)
    base, slow = batches * on.fixed + on.items, on.slow if batches == 2 else 0.0
    cycle = base
    for _ in range(400):
        cycle = base + per_row * (on.fast * on.items + slow * cycle)
    return rows / (on.fast * on.items + slow * cycle) * cycle


@given(seconds, seconds, rates, rates, st.one_of(st.just(0.0), seconds))
def test_the_inequality_is_the_comparison_of_makespans(
    fixed: float, items: float, fast: float, slow: float, window: float
) -> None:
    on = Offload("decode", SIDES, fixed, items, fast, slow, 1, window)
    assume(slow * window < 0.9 * fast * items)  # else the CPU does all rows while the GPU prefills
    alone, split = makespan(on, 1, 100.0), makespan(on, 2, 100.0)
    assume(abs(alone / split - 1) > 1e-6)
    assert (offload(on).chosen == "split") == (split < alone)
    assert offload(on).numbers["gain of split"] == pytest.approx(alone / split)


@given(seconds, seconds, rates, rates)
def test_without_a_window_the_gate_is_equation_6(
    fixed: float, items: float, fast: float, slow: float
) -> None:
    bound = 2 * fixed / items + 3 + items / fixed
    assume(abs(fast / slow / bound - 1) > 1e-9)
    decision = offload(Offload("decode", SIDES, fixed, items, fast, slow, 1))
    assert (decision.chosen == "split") == (fast / slow < bound)
    assert decision.numbers["gain of overlap"] == pytest.approx(1 + slow / fast * (1 + fixed / items))


@given(seconds, seconds, rates, rates, st.one_of(st.just(0.0), seconds))
def test_what_is_chosen_is_never_slower_than_the_device_alone(
    fixed: float, items: float, fast: float, slow: float, window: float
) -> None:
    decision = offload(Offload("decode", SIDES, fixed, items, fast, slow, 1, window))
    assert decision.numbers[f"gain of {decision.chosen}"] >= 1 - 1e-9


@given(seconds, seconds, seconds, seconds)
def test_a_longer_window_makes_a_split_easier(fixed: float, items: float, a: float, b: float) -> None:
    short, long = sorted((a, b))
    needs = [Offload("decode", SIDES, fixed, items, 1, 1, 1, w).need for w in (0.0, short, long)]
    assert needs == sorted(needs, reverse=True)


def test_no_slow_device_hides_more_than_the_part_it_takes_over() -> None:
    """Prefill of a second per batch stays with the GPU: what can be won is the 20 ms of decode."""
    numbers = offload(decode(slow=1e6, window=1.0)).numbers
    assert (numbers["gain of overlap"], numbers["gain of split"]) == pytest.approx((1.02, 1.02))


def test_the_sentence_says_what_was_reached_and_what_was_needed() -> None:
    found = offload(decode(slow=60, items=0.005))
    assert found.why == (
        "decode stays whole on cuda:0, cpu:0 overlapped: "
        "cpu:0 reaches 6 % of its throughput, and 13.3 % would be needed to split it"
    )
    assert [name for name, _ in found.rejected] == ["device only", "split"]
    split = offload(decode(slow=200))
    assert split.why.endswith("cpu:0 reaches 20 % of its throughput, and 16.7 % are enough")
    assert split.rejected[1] == ("overlap", "rows on cpu:0 would lag behind")
    assert offload(decode(queued=0)).why == "decode runs on cuda:0 only: nothing waits for cpu:0"


@pytest.mark.parametrize("change", [{"fast": 0}, {"slow": -1}, {"window": -1.0}])
def test_an_offload_of_impossible_numbers_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="an offload needs a fast device and nothing below 0"):
        decode(**change)


# curves and where they cross


@st.composite
def curves(draw: st.DrawFn, device: str) -> Curve:
    """Straight between points whose distances are powers of two, so that all sums are exact."""
    rows, points = draw(st.integers(0, 3)), []
    taken = float(draw(st.integers(1, 40)))
    for _ in range(draw(st.integers(2, 4))):
        points.append((rows, taken))
        gap = draw(st.sampled_from([1, 2, 4, 8]))
        rows, taken = rows + gap, taken + gap * draw(st.integers(0, 8))
    return Curve(device, tuple(points))


MEMORY, COMPUTE = curves("fpga:0"), curves("cuda:0")


def test_a_curve_is_straight_between_its_points_and_on_beyond_them() -> None:
    curve = Curve("cpu:0", ((2, 1.0), (4, 3.0), (8, 5.0)))
    assert [curve.seconds(n) for n in (0, 1, 2, 3, 4, 6, 8, 10)] == [0, 1, 1, 2, 3, 4, 5, 6]
    assert Curve.affine("cpu:0", 0.5, 0.25).seconds(6) == 2.0


@pytest.mark.parametrize(
    "points", [((1, 1.0),), ((1, 1.0), (1, 2.0)), ((1, 2.0), (2, 1.0)), ((1, 0.0), (2, 1.0)), ()]
)
def test_a_curve_that_is_none_is_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(PlanError, match="that of cpu:0 has"):
        Curve("cpu:0", points)


@given(MEMORY, COMPUTE, st.integers(1, 60))
def test_the_device_chosen_is_the_fastest_at_every_batch(a: Curve, b: Curve, rows: int) -> None:
    decision = crossover("prepare", a, b, rows)
    times = {c.device: c.seconds(rows) for c in (a, b)}
    assert times[decision.chosen] == min(times.values())
    assert {name: decision.numbers[name] for name in times} == times


@given(MEMORY, COMPUTE)
def test_the_crossing_is_the_first_batch_at_which_the_choice_changes(a: Curve, b: Curve) -> None:
    chosen = [crossover("prepare", a, b, n).chosen for n in range(1, 500)]
    changed = next((n for n, c in enumerate(chosen, 1) if c != chosen[0]), None)
    assert crossing(a, b) == changed


def test_a_memory_side_device_loses_large_batches() -> None:
    """As the case of H2 that falls back: a gain at batch 4, 0.49 times the speed at batch 8."""
    fpga, gpu = Curve("fpga:0", ((1, 0.3), (4, 0.7), (8, 2.2))), Curve.affine("cuda:0", 1.0, 0.01)
    assert crossing(fpga, gpu) == 5
    assert crossover("prepare", fpga, gpu, 4).chosen == "fpga:0"
    large = crossover("prepare", fpga, gpu, 8)
    assert large.why == (
        "prepare runs on cuda:0 at batch 8: 1.08 s, 2.2 s on fpga:0; they change places at batch 5"
    )
    assert large.numbers["crossover"] == 5


def test_devices_that_never_change_places_say_so() -> None:
    slow, fast = Curve.affine("cpu:0", 1.0, 1.0), Curve.affine("cuda:0", 1.0, 0.5)
    assert crossing(slow, fast) is None
    decision = crossover("embed", slow, fast, 3)
    assert decision.why.endswith("no batch size changes that")
    assert "crossover" not in decision.numbers


# recompute or transfer


@given(st.floats(1e-4, 10), st.floats(1, 1e9), st.floats(0, 1e-2), st.sampled_from([0.99, 1.01]))
def test_the_choice_flips_at_the_bandwidth_that_is_given(
    recompute: float, nbytes: float, latency: float, near: float
) -> None:
    found = recompute_or_transfer("vectors", recompute, nbytes, Link(1.0, latency))
    flips = found.numbers["flips at bytes/s"]
    assume(flips < math.inf)
    at = recompute_or_transfer("vectors", recompute, nbytes, Link(flips * near, latency))
    assert at.chosen == ("recompute" if near < 1 else "transfer")


def test_what_is_faster_than_the_latency_is_always_made_again() -> None:
    found = recompute_or_transfer("ids", 1e-5, 100.0, Link(1e12, 1e-4))
    assert (found.chosen, found.numbers["flips at bytes/s"]) == ("recompute", math.inf)
    assert found.why == (
        "ids: recompute, for making it again takes 10 us and sending 100 bytes 100 us; no link is fast enough"
    )


def test_what_is_slow_to_make_is_sent() -> None:
    found = recompute_or_transfer("KV cache", 2.0, float(350 << 20), Link(float(1 << 30), 0.0))
    assert found.chosen == "transfer"
    assert found.why.endswith("2 s and sending 350.0 MiB 342 ms; sending is faster above 175.0 MiB/s")
    assert found.rejected == (("recompute", "1.66 s more"),)


# equal split


@given(MEMORY, COMPUTE, st.integers(0, 60))
def test_no_other_division_ends_earlier(a: Curve, b: Curve, rows: int) -> None:
    found = equal_split("embed", a, b, rows).numbers
    assert found["rows on fpga:0"] + found["rows on cuda:0"] == rows
    assert found["seconds"] == min(max(a.seconds(n), b.seconds(rows - n)) for n in range(rows + 1))


def test_rows_are_divided_by_speed() -> None:
    found = equal_split("embed", Curve.affine("cuda:0", 0.0, 0.1), Curve.affine("cpu:0", 0.0, 0.3), 32)
    assert (found.chosen, found.numbers["rows on cuda:0"], found.numbers["rows on cpu:0"]) == (
        "24 : 8",
        24,
        8,
    )
    assert found.why == "embed: 24 : 8 rows on cuda:0 and cpu:0 take 2.4 s and 2.4 s"
    assert found.rejected == (("cuda:0 alone", "3.2 s"), ("cpu:0 alone", "9.6 s"))


def test_a_device_whose_start_takes_longer_than_all_elsewhere_gets_nothing() -> None:
    found = equal_split("embed", Curve.affine("cuda:0", 0.1, 0.01), Curve.affine("cpu:0", 9.0, 0.3), 32)
    assert found.chosen == "32 : 0"
    assert found.rejected[0][0] == "cpu:0 alone"


# threads


@pytest.mark.parametrize(
    ("bandwidths", "threads"),
    [
        ({1: 10e9, 2: 11e9}, 1),
        ({1: 10e9, 2: 19e9, 4: 30e9, 8: 32e9, 16: 31e9}, 4),
        ({8: 32e9, 4: 30e9, 1: 10e9}, 4),
        ({1: 9.0, 2: 10.0}, 1),
        ({3: 1.0}, 3),
    ],
)
def test_the_knee_is_the_first_count_near_the_best(bandwidths: dict[int, float], threads: int) -> None:
    found = knee("cpu:0", bandwidths)
    assert (found.chosen, found.numbers["threads"]) == (str(threads), threads)


def test_the_knee_can_be_asked_for_the_best() -> None:
    assert knee("cpu:0", {1: 10.0, 2: 10.5, 4: 11.0}, share=1.0).chosen == "4"


# numbers for people


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "0 s"), (3600, "3600 s"), (1.2345, "1.23 s"), (0.03, "30 ms"), (2e-5, "20 us")],
)
def test_times_are_told_in_a_fitting_unit(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("nbytes", "told"), [(12, "12 bytes"), (1536, "1.5 KiB"), (4.5 * 2**20, "4.5 MiB"), (3 << 30, "3.0 GiB")]
)
def test_bytes_are_told_in_a_fitting_unit(nbytes: float, told: str) -> None:
    assert size(nbytes) == told
