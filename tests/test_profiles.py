"""Scaled profiles: what grows, what stays, and that the source always says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.profiles import PROVENANCE, Profile, between, provenance, scaled, source

WHOLE = Profile(
    peaks={"float32": 1e12, "bfloat16": 4e12},
    bandwidth=1e11,
    copy=5e10,
    memory=64e9,
    scalar=3e7,
    idle_watts=100,
    price=2.0,
    sources={"float32": "measured: here", "bfloat16": "measured: here", "bandwidth": "measured: here"},
)


def test_a_share_has_its_part_of_all_that_grows_and_the_same_of_all_else() -> None:
    part = scaled(WHOLE, 0.25, "a slice")
    assert part.peaks == {"float32": 2.5e11, "bfloat16": 1e12}
    assert (part.bandwidth, part.copy, part.memory) == (2.5e10, 1.25e10, 16e9)
    assert (part.idle_watts, part.price) == (25, 0.5)
    assert (part.scalar, part.overhead, part.together) == (WHOLE.scalar, WHOLE.overhead, WHOLE.together)


def test_what_is_fixed_stays_and_keeps_its_source() -> None:
    part = scaled(WHOLE, 0.5, "half the threads", ("memory",))
    assert part.memory == WHOLE.memory
    assert "memory" not in part.sources


def test_a_scaled_number_is_never_taken_for_a_measured_one() -> None:
    part = scaled(WHOLE, 1.0, "7 nm to 5 nm")
    assert source(part, "float32") == "scaled: by 1 (7 nm to 5 nm) from measured: here"
    assert (provenance(WHOLE), provenance(part)) == ("measured", "scaled")


def test_the_least_sure_number_decides_where_a_profile_comes_from() -> None:
    for least in PROVENANCE:
        assert provenance(replace(WHOLE, sources={**WHOLE.sources, "bandwidth": f"{least}: x"})) == least
    assert provenance(replace(WHOLE, sources={})) == "assumed"


def test_a_star_is_the_source_of_all_that_have_none() -> None:
    told = replace(WHOLE, sources={"*": "data sheet: all of it", "float32": "measured: here"})
    assert source(told, "copy") == "data sheet: all of it"
    assert source(told, "float32") == "measured: here"


@pytest.mark.parametrize("factor", [0, -1.0])
def test_nothing_is_scaled_to_nothing(factor: float) -> None:
    with pytest.raises(PlanError, match="above 0"):
        scaled(WHOLE, factor, "nothing")


@given(st.floats(0, 1))
def test_between_two_profiles_every_number_lies_between_theirs(share: float) -> None:
    high = scaled(WHOLE, 3, "three of them")
    found = between(WHOLE, high, share, "in between")
    assert found.bandwidth == pytest.approx(1e11 * (1 + 2 * share))
    assert found.peaks["bfloat16"] == pytest.approx(4e12 * (1 + 2 * share))
    assert source(found, "bandwidth") == "scaled: in between"
