"""Machine files: what is shipped, what is refused and how it is told, and the way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline import machine_file
from pipeline.errors import ConfigError, PlanError
from pipeline.machine import BYTES, HOST, NOMINAL, Device, Link, Machine, Profile, detect, layouts
from pipeline.machine_file import COLUMNS, describe, dump, dumps, load, loads, shipped
from pipeline.profile_file import DEVICES, UNITS
from pipeline.profiles import PROVENANCE, source

SOURCES = '{float32: "measured: on a bench", bandwidth_gbs: "measured: on a bench", ' + (
    'copy_gbs: "measured: on a bench", memory_gib: "data sheet: of the card"}'
)
CARD = f"peak_tflops: {{float32: 10}}, bandwidth_gbs: 500, copy_gbs: 250, memory_gib: 16, sources: {SOURCES}"


def one(text: str, links: str = "") -> Machine:
    return loads(f"devices:\n  - {{name: cuda, {text}}}\n{links}", "m.yaml")


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as told:
        loads(text, "m.yaml")
    return str(told.value)


# what is shipped


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_machine_loads_under_its_own_name(name: str) -> None:
    machine = load(name)
    assert machine.name == name
    assert len(layouts(machine)) >= 1


def devices() -> list[str]:
    return sorted(p.stem for p in DEVICES.glob("*.yaml"))


def profile_of(name: str) -> Profile:
    return loads(f"devices: [{{name: x, profile: {name}}}]", name).devices[0].profile


@pytest.mark.parametrize("name", devices())
def test_every_number_of_a_shipped_profile_says_where_it_comes_from(name: str) -> None:
    profile = profile_of(name)
    for key in (*profile.peaks, *(field for field, _ in UNITS.values())):
        told = profile.sources[key]
        assert told.startswith(PROVENANCE), f"{key}: {told}"
        assert "default" not in told, f"{key} is left out"


@pytest.mark.parametrize("name", devices())
def test_a_shipped_device_draws_no_more_than_cards_do(name: str) -> None:
    p = profile_of(name)
    peak = p.peaks.get("bfloat16") or p.peaks.get("float16") or p.peaks["float32"]
    watts = p.idle_watts + peak * p.joules_per_flop + p.bandwidth * p.joules_per_byte
    assert 5 < watts < 750


def test_all_that_papers_and_scenarios_need_is_shipped() -> None:
    wanted = "cpu-2 cpu-16 cpu-gpu big-small cheap-large slow-link h200 grace-hopper pim dimm-pim fpga mig"
    assert set(wanted.split()) <= set(shipped())
    wanted = "sapphire-rapids-2 desktop-8 h200 h100 a100 l40s rtx-4090 rtx-3060 t4 grace pim-ai dimm-pim u55c"
    assert {*wanted.split(), "mi210"} <= set(devices())


def test_names_are_used_once() -> None:
    machines = [load(name) for name in shipped()]
    assert len({m.name for m in machines}) == len(machines)
    for machine in machines:
        assert len(set(machine.names)) == len(machine.devices)


def test_an_unknown_name_is_told_with_the_near_miss_and_all_names() -> None:
    with pytest.raises(
        PlanError, match=r"no machine 'cpu-22', and no such file; did you mean 'cpu-2'\?.*h200"
    ):
        load("cpu-22")
    with pytest.raises(PlanError, match=r"no such file; give a file, or one of: big-small"):
        load("./nowhere/at-all.yaml")


def test_a_file_goes_before_a_shipped_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h200").write_text(f"devices: [{{name: cuda, {CARD}}}]")
    monkeypatch.chdir(tmp_path)
    assert load("h200").device("cuda:0").profile.memory == 16 * 2**30


# what a file says


def test_units_of_a_file_become_si() -> None:
    card = CARD.replace("memory_gib: 16,", "memory_gib: 16, overhead_ms: 2, pj_per_byte: 48,").replace(
        "sources: {",
        'sources: {overhead_ms: "assumed: for this test", pj_per_byte: "assumed: for this test", ',
    )
    p = one(card).device("cuda:0").profile
    assert (p.peaks["float32"], p.bandwidth, p.copy, p.memory) == (1e13, 5e11, 2.5e11, 16 * 2**30)
    assert (p.overhead, p.joules_per_byte) == (2e-3, 48e-12)


def test_what_is_left_out_is_our_default_and_says_so() -> None:
    p = one(CARD).device("cuda:0").profile
    assert p.scalar == NOMINAL.scalar
    assert source(p, "scalar") == "assumed: Ridgeway's default"


def test_own_numbers_go_before_those_of_the_named_profile() -> None:
    p = one('profile: t4, memory_gib: 8, sources: {memory_gib: "measured: half of it"}').devices[0].profile
    named = profile_of("t4")
    assert (p.memory, source(p, "memory")) == (8 * 2**30, "measured: half of it")
    assert (p.peaks, p.sources["bandwidth"]) == (named.peaks, named.sources["bandwidth"])


def test_equal_devices_are_numbered_on_across_entries() -> None:
    machine = loads(f"devices:\n- {{name: cuda, count: 2, {CARD}}}\n- {{name: cuda, {CARD}}}", "m.yaml")
    assert machine.names == ("cuda:0", "cuda:1", "cuda:2")


def test_lanes_divide_threads_cores_and_what_they_deliver_but_not_the_memory() -> None:
    text = "devices: [{name: cpu, threads: 4, lanes: 2, cores: [4, 5, 6, 7], profile: sapphire-rapids-2}]"
    whole = profile_of("sapphire-rapids-2")
    a, b = loads(text, "m").devices
    assert (a.name, a.threads, a.cores, b.cores) == ("cpu:0", 2, (4, 5), (6, 7))
    assert a.profile.peaks == whole.peaks
    assert a.profile.memory == 2 * whole.memory
    assert source(a.profile, "bandwidth").startswith("scaled")


def test_a_slice_has_its_share_of_the_device() -> None:
    p = one("profile: h100, scale: {by: 0.125, because: one of eight parts}").devices[0].profile
    assert p.bandwidth == pytest.approx(profile_of("h100").bandwidth / 8)
    assert "one of eight parts" in source(p, "bandwidth")


def test_a_link_to_a_kind_goes_to_each_of_them_and_between_them_to_each_pair() -> None:
    def links(ends: str) -> set[tuple[str, ...]]:
        numbers = 'bandwidth_gbs: 20, latency_us: 5, source: "measured: on a bench"'
        text = f"links: [{{between: [{ends}], {numbers}}}]"
        found = one(f"count: 3, {CARD}", text).links
        assert set(found.values()) == {Link(2e10, 5e-6)}
        return {tuple(sorted(pair)) for pair in found}

    assert links("host, cuda") == {("cuda:0", HOST), ("cuda:1", HOST), ("cuda:2", HOST)}
    assert links("cuda, cuda") == {("cuda:0", "cuda:1"), ("cuda:0", "cuda:2"), ("cuda:1", "cuda:2")}
    assert links('"cuda:0", "cuda:2"') == {("cuda:0", "cuda:2")}


# what is refused

LINK = 'links:\n- {between: [host, cuda], bandwidth_gbs: 20, latency_us: 5, source: "measured: on a bench"}'


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("memory_gib: 16", "memory_gb: 16", "m.yaml:2: devices.0.memory_gb: unknown key; did you mean 'mem"),
        ("bandwidth_gbs: 500, ", "", "m.yaml:2: devices.0.sources.bandwidth_gbs: unknown key"),
        ('float32: "measured: on a bench", ', "", ":2: devices.0.peak_tflops.float32: it has no source"),
        ('"data sheet: of the card"', "folklore", "sources.memory_gib: a source begins with one of"),
        ('"data sheet: of the card"', "measured", "says more; found 'measured'"),
        ("memory_gib: 16", "memory_gib: lots", "0.memory_gib: expected a number of 0 or more, found 'lots'"),
        ("memory_gib: 16", "memory_gib: -1", "expected a number of 0 or more, found -1"),
        ("memory_gib: 16", "memory_gib: 0", "memory of a device must be above 0"),
        ("float32: 10", "float23: 10", "peak_tflops.float23: unknown key; did you mean 'float32'"),
        ("name: cuda", "name: cuda, count: 0", "devices.0.count: expected a whole number above 0, found 0"),
        ("name: cuda", "name: cuda, threads: 3, lanes: 2", "3 threads cannot be divided into 2 equal lanes"),
        ("name: cuda", "name: cuda, cores: [1, 2]", "expected 1 cores, one for each thread, found [1, 2]"),
        ("name: cuda, ", "", "devices.0: the key 'name' is missing"),
        ("name: cuda", 'name: "cuda:1", count: 2', "distinct names"),
        ("devices:", "device:", "m.yaml:1: device: unknown key; did you mean 'devices'"),
        ("[host, cuda]", "[host, cdua]", ":4: links.0.between: no device has 'cdua'; did you mean 'cuda'"),
        ("[host, cuda]", "[host]", "expected two ends"),
        ("bandwidth_gbs: 20", "bandwidth_gbs: 0", "links.0.bandwidth_gbs: expected a number above 0"),
        ('source: "measured: on a bench"', "source: guess", "links.0.source: expected where it comes from"),
        ("latency_us: 5, ", "", "links.0: the key 'latency_us' is missing"),
        ("links:", "devices:", "this key stands twice, first in line 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place_and_the_near_miss(before: str, after: str, told: str) -> None:
    text = f"devices:\n- {{name: cuda, {CARD}}}\n{LINK}"
    assert before in text
    assert told in refused(text.replace(before, after, 1))


def test_a_device_that_gives_too_little_is_told_what_it_needs() -> None:
    assert "a device needs peak_tflops, bandwidth_gbs" in refused("devices: [{name: cuda}]")


def test_an_unknown_profile_is_told_with_the_near_miss() -> None:
    assert "no device profile 'h2000'; did you mean 'h200'" in refused("devices: [{name: a, profile: h2000}]")


def test_a_profile_cannot_name_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("profile: b")
    (tmp_path / "b.yaml").write_text("profile: a")
    monkeypatch.setattr("pipeline.profile_file.DEVICES", tmp_path)
    assert "names itself" in refused("devices: [{name: cuda, profile: a}]")


@pytest.mark.parametrize(
    "text", ["", "[]", "devices: {}", "devices: [1]", "devices: []", "by_threads: {x: {}}"]
)
def test_what_is_no_machine_at_all_is_refused(text: str) -> None:
    assert refused(text).startswith("m.yaml")


# the way back


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_machine_survives_the_round_trip(name: str, tmp_path: Path) -> None:
    machine = replace(load(name), name="mine")
    dump(machine, tmp_path / "new" / "m.yaml")
    again = load(tmp_path / "new" / "m.yaml")
    assert again == machine
    assert [d.profile for d in again.devices] == [d.profile for d in machine.devices]
    assert [k.source for k in again.links.values()] == [k.source for k in machine.links.values()]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["m.yaml"]


NUMBERS = st.floats(1e-9, 1e15).map(lambda v: float(f"{v:.12g}"))
PROFILES = st.builds(
    Profile,
    peaks=st.dictionaries(st.sampled_from(sorted(BYTES)), NUMBERS, min_size=1),
    bandwidth=NUMBERS,
    copy=NUMBERS,
    memory=NUMBERS,
    scalar=st.just(0.0) | NUMBERS,
    overhead=NUMBERS,
    together=st.floats(0.01, 1).map(lambda v: round(v, 4)),
    price=NUMBERS,
    sources=st.dictionaries(st.sampled_from(["copy", "price", "*"]), st.text()),
)


def numbers(profile: Profile) -> list[Any]:
    return [profile.peaks, *(getattr(profile, field) for field, _ in UNITS.values())]


@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(PROFILES, st.dictionaries(st.integers(1, 9), PROFILES, max_size=2), NUMBERS, st.text())
def test_any_machine_survives_the_round_trip(
    profile: Profile, curve: dict[int, Profile], number: float, text: str
) -> None:
    devices = (Device("cpu:0", 2, profile, (3, 1)), Device("cuda:0", 1, profile), Device("pim:3", share="x"))
    machine = Machine(devices, {(HOST, "cuda:0"): Link(number, number, text)}, "a: ${B} #c", curve)
    again = loads(dumps(machine), "m")
    assert again == machine
    assert [numbers(d.profile) for d in again.devices] == [numbers(d.profile) for d in devices]
    assert {n: numbers(p) for n, p in again.by_threads.items()} == {n: numbers(p) for n, p in curve.items()}


def test_this_machine_unmeasured_survives_the_round_trip() -> None:
    again = loads(dumps(detect()), "m")
    assert again == detect()
    assert source(again.devices[0].profile, "bandwidth").startswith("assumed: nobody has measured")


# for people


def test_the_table_has_a_row_for_each_device_and_sets_measured_ones_apart() -> None:
    sure = replace(NOMINAL, sources={"*": "measured: on this machine"})
    machine = Machine((Device("cuda:0", 1, NOMINAL), Device("cpu:0", 4, sure)))
    rows = describe(machine)
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert rows[0] == ("cpu:0", "4", "8 GiB", "float32 50 GFLOP/s, bfloat16 50 GFLOP/s", "10 GB/s",
                       "5 FLOP/B in float32", "measured")  # fmt: skip
    assert (rows[1][0], rows[1][-1]) == ("cuda:0", "assumed")


def test_shipped_machines_are_found_wherever_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert machine_file.load("cpu-2").devices[0].threads == 2
