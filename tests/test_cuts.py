"""Bytes that cross a cut are those of the tensors, and a cut is made only where it pays."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cuts import CACHE, MODALITY, NONE, Phases, Shapes, ratio, where_to_cut
from pipeline.errors import PlanError
from pipeline.machine import Link

LLAVA = Shapes(layers=32, kv_heads=32, head=128, width=4096, patches=576, context=700)
PCIE = Link(16e9, 20e-6)
MIB = 1 << 20

small = st.integers(1, 8)


@st.composite
def shapes(draw: st.DrawFn) -> Shapes:
    """Models of all proportions, their heads shared or not."""
    patches = draw(small)
    context = patches + draw(st.integers(0, 8))
    heads, head = draw(small), draw(small)
    width = heads * head * draw(st.integers(1, 4))
    return Shapes(draw(small), heads, head, width, patches, context, draw(st.sampled_from([1, 2, 4])))


times = st.tuples(*[st.integers(0, 9).map(float)] * 2)
phases = st.builds(Phases, st.just(("cuda:0", "cuda:1")), times, times, times)


def test_llava_hands_on_megabytes_at_the_modality_edge_and_hundreds_behind_the_prefill() -> None:
    assert LLAVA.bytes == {NONE: 0, MODALITY: 4.5 * MIB, CACHE: 350 * MIB}
    assert ratio(LLAVA) == pytest.approx(350 / 4.5)


@given(shapes())
def test_the_bytes_are_those_of_the_tensors(model: Shapes) -> None:
    dtype = {1: np.int8, 2: np.float16, 4: np.float32}[model.nbytes]
    features = np.zeros((model.patches, model.width), dtype)
    cache = np.zeros((model.layers, 2, model.kv_heads, model.context, model.head), dtype)
    assert model.bytes == {NONE: 0, MODALITY: features.nbytes, CACHE: cache.nbytes}
    assert ratio(model) == pytest.approx(cache.nbytes / features.nbytes)


def test_a_model_of_text_alone_has_no_modality_edge() -> None:
    text = replace(LLAVA, patches=0)
    assert text.bytes == {NONE: 0, CACHE: 350 * MIB}


@given(st.integers(2, 80), st.integers(1, 2000), st.integers(0, 4000), st.integers(1, 64))
def test_the_modality_edge_moves_the_fewest_bytes_by_the_ratio(
    layers: int, patches: int, text: int, heads: int
) -> None:
    model = Shapes(layers, heads, 64, 64 * heads, patches, patches + text)
    assert model.bytes[CACHE] == pytest.approx(model.bytes[MODALITY] * ratio(model))
    assert model.bytes[MODALITY] < model.bytes[CACHE]


# whether to cut

APART = Phases(("rtx:0", "a100:0"), vision=(0.02, 0.05), prefill=(0.2, 0.1), decode=(2.0, 0.8))
"""Vision is faster on the cheap device, all else on the large one."""


def test_a_cut_that_saves_more_than_its_link_takes_is_made() -> None:
    decision = where_to_cut("llava", LLAVA, APART, PCIE)
    assert decision.chosen == MODALITY
    assert decision.why == (
        "llava is cut at the modality edge: that saves 30 ms, "
        "and 4.5 MiB cross from rtx:0 to a100:0 in 315 us"
    )
    assert decision.numbers[f"seconds of {NONE}"] == pytest.approx(0.95)
    assert decision.numbers[f"seconds of {MODALITY}"] == pytest.approx(0.92 + 4.5 * MIB / 16e9 + 20e-6)


@pytest.mark.parametrize(("nbytes_a_second", "chosen"), [(1.6e8, MODALITY), (1.5e8, NONE)])
def test_the_link_decides_where_it_takes_what_is_saved(nbytes_a_second: float, chosen: str) -> None:
    """30 ms are saved, and 4.5 MiB in 30 ms are 157 MB/s."""
    assert where_to_cut("llava", LLAVA, APART, Link(nbytes_a_second, 0.0)).chosen == chosen


def test_a_cut_that_saves_nothing_is_not_made_and_says_so() -> None:
    alike = Phases(("a100:0", "a100:1"), (0.05, 0.05), (0.1, 0.1), (0.8, 0.8))
    decision = where_to_cut("llava", LLAVA, alike, PCIE)
    assert (decision.chosen, decision.why) == (
        NONE,
        "llava is not cut: all phases on a100:0 take 950 ms",
    )
    assert [name for name, _ in decision.rejected] == [MODALITY, CACHE]
    assert decision.rejected[0][1].startswith("that saves nothing, and 4.5 MiB cross")


def test_the_cache_is_moved_where_that_saves_more() -> None:
    prefill = Phases(("gpu:0", "pim:0"), vision=(0.1, 9.0), prefill=(1.0, 9.0), decode=(5.0, 1.0))
    assert where_to_cut("llava", LLAVA, prefill, PCIE).chosen == CACHE


def test_a_phase_that_one_device_cannot_run_makes_the_cut() -> None:
    only = Phases(("npu:0", "gpu:0"), (0.1, math.inf), (math.inf, 0.1), (math.inf, 1.0))
    decision = where_to_cut("llava", LLAVA, only, PCIE)
    assert decision.chosen == MODALITY
    assert "no device can run all of it" in decision.why
    assert decision.rejected[1][1].startswith("a part can run on no device")


def test_a_phase_that_no_device_can_run_is_an_error() -> None:
    none = replace(APART, decode=(math.inf, math.inf))
    with pytest.raises(PlanError, match="llava can run on neither rtx:0 nor a100:0, whole or cut in two"):
        where_to_cut("llava", LLAVA, none, PCIE)


@given(shapes(), phases, st.integers(1, 64).map(float), st.integers(0, 3).map(float))
def test_the_way_chosen_is_the_fastest_of_all(
    model: Shapes, of: Phases, bandwidth: float, latency: float
) -> None:
    ways = {}
    for here, there in ((0, 1), (1, 0)):
        each = (of.vision, of.prefill, of.decode)
        features, cache = (latency + model.bytes[c] / bandwidth for c in (MODALITY, CACHE))
        ways[NONE, here] = sum(p[here] for p in each)
        ways[MODALITY, here] = each[0][here] + each[1][there] + each[2][there] + features
        ways[CACHE, here] = each[0][here] + each[1][here] + each[2][there] + cache
    decision = where_to_cut("vlm", model, of, Link(bandwidth, latency))
    assert decision.numbers[f"seconds of {decision.chosen}"] == pytest.approx(min(ways.values()))


@pytest.mark.parametrize("change", [{"layers": 0}, {"patches": -1}, {"patches": 701}, {"nbytes": 0}])
def test_shapes_that_no_model_has_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="shapes need sizes of 1 or more, and the patches in the context"):
        replace(LLAVA, **change)
