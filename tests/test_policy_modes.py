from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.machine import Device
from pipeline.policies import POLICIES
from pipeline.policies.modes import BAND, Layouts, Modes, calibrate, drain
from pipeline.policy import Job, Lane, build
from tests.fake_view import FakeView
from tests.minisim import MiniSim

WIDE = Lane(Device("cpu:0", 4, cores=(0, 1, 2, 3)), 0.1, 0.4)
NARROW = tuple(Lane(Device(f"cpu:{i + 1}", 1, cores=(i,)), 0.1, 1.0) for i in range(4))
"""A row takes 0.5 s on all four threads and 1.1 s on one; 8 rows 3.3 s in one batch and 2.1 s in four."""
NAMES = tuple(lane.name for lane in NARROW)


def job(wide: Lane = WIDE, narrow: tuple[Lane, ...] = NARROW, planned: tuple[str, ...] = ("cpu:0",)) -> Job:
    return Job("ocr", 8, planned, {lane.name: lane for lane in (wide, *narrow)})


def waits(rows: int, **busy: int) -> FakeView:
    return FakeView({"ocr": rows}, at_work={name.replace("_", ":"): n for name, n in busy.items()})


def reference(rows: int, batch: int, lanes: list[Lane]) -> float:
    """Rows dealt out one by one, each lane then working through its own."""
    dealt = [len(range(i, rows, len(lanes))) for i in range(len(lanes))]
    cuts = [[min(batch, n - a) for a in range(0, n, batch)] for n in dealt]
    return max(sum(lane.seconds(c) for c in cut) for lane, cut in zip(lanes, cuts, strict=True))


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 5), st.sampled_from([0.0, 0.5]))
def test_equal_shares_take_as_long_as_rows_that_are_dealt_out(
    rows: int, batch: int, k: int, fixed: float
) -> None:
    lanes = [Lane(Device(f"cpu:{i}"), fixed, 0.25) for i in range(k)]
    assert drain(rows, batch, lanes) == pytest.approx(reference(rows, batch, lanes))


def test_the_crossing_is_where_the_lines_meet() -> None:
    # 0.1 + 0.4 n against 0.1 + ceil(n / 4): 5 rows take 2.1 s either way, 6 rows 2.5 and 2.1
    assert calibrate(WIDE, NARROW, 8) == Layouts("cpu:0", NAMES, 6, below=False, above=True)


@given(st.floats(0, 2), st.floats(0.01, 2), st.floats(0, 2), st.floats(0.01, 2), st.integers(1, 12))
def test_at_both_ends_the_layout_is_the_faster_one(
    f: float, p: float, g: float, q: float, batch: int
) -> None:
    wide = dataclasses.replace(WIDE, fixed=f, per_row=p)
    narrow = [dataclasses.replace(lane, fixed=g, per_row=q) for lane in NARROW]
    found = calibrate(wide, narrow, batch)
    for rows in (1, 4 * batch):
        faster = reference(rows, batch, narrow) < reference(rows, batch, [wide]) - 1e-9
        slower = reference(rows, batch, narrow) > reference(rows, batch, [wide]) + 1e-9
        chosen = found.lanes(found.switch(rows, None))
        assert chosen != (("cpu:0",) if faster else NAMES if slower else ())


@given(st.floats(0.3, 0.9), st.floats(0, 1))
def test_where_only_rows_cost_the_crossing_is_the_first_row_at_which_narrow_wins(p: float, f: float) -> None:
    wide = dataclasses.replace(WIDE, fixed=f, per_row=p)
    narrow = [dataclasses.replace(lane, fixed=f) for lane in NARROW]
    first = next(n for n in range(1, 99) if f + p * n > f + math.ceil(n / 4))
    found = calibrate(wide, narrow, 99)
    assert reference(found.rows, 99, narrow) < reference(found.rows, 99, [wide])
    assert reference(found.rows - 1, 99, narrow) >= reference(found.rows - 1, 99, [wide])
    assert found.rows >= first


def test_a_short_backlog_runs_wide_and_a_long_one_narrow() -> None:
    assert Modes([job()]).lanes("ocr", waits(1)) == ("cpu:0",)
    assert Modes([job()]).lanes("ocr", waits(32)) == NAMES


def test_it_changes_past_the_band_and_back() -> None:
    modes = Modes([job()])
    seen = [len(modes.lanes("ocr", waits(n))) for n in (1, 6, 7, 8, 6, 5, 4, 5, 7, 8)]
    assert seen == [1, 1, 1, 4, 4, 4, 1, 1, 1, 4]  # up at 7.5 rows, down below 4.5


@given(st.integers(2, 200), st.booleans(), st.lists(st.floats(-0.999, 0.999), min_size=1, max_size=30))
def test_a_backlog_that_wobbles_within_the_band_changes_nothing(
    rows: int, up: bool, wobbles: list[float]
) -> None:
    found = Layouts("wide", ("a", "b"), rows, below=False, above=True)
    for w in wobbles:
        assert found.switch(math.ceil(rows * (1 - BAND)) if w < 0 else int(rows * (1 + BAND * w)), up) is up


def test_an_empty_queue_is_no_short_backlog() -> None:
    modes = Modes([job()])
    modes.lanes("ocr", waits(32))
    modes.lanes("ocr", waits(0))
    assert modes.lanes("ocr", waits(5)) == NAMES


def test_steps_have_modes_of_their_own() -> None:
    modes = Modes([job(), dataclasses.replace(job(), name="rank")])
    assert modes.lanes("ocr", waits(32)) == NAMES
    assert modes.lanes("rank", FakeView({"rank": 1})) == ("cpu:0",)


def test_lanes_on_other_cores_stay_as_planned() -> None:
    gpu = Lane(Device("cuda:0"), 0.1, 0.1)
    one = job(narrow=(*NARROW, gpu), planned=("cuda:0", "cpu:1", "cpu:2", "cpu:3", "cpu:4"))
    assert Modes([one]).lanes("ocr", waits(1)) == ("cuda:0", "cpu:0")


@pytest.mark.parametrize(
    "one",
    [
        job(narrow=NARROW[:1]),
        job(narrow=tuple(dataclasses.replace(n, device=Device(n.name)) for n in NARROW)),
        job(narrow=tuple(dataclasses.replace(n, fixed=0, per_row=0) for n in NARROW)),
        job(narrow=(*NARROW, Lane(Device("cpu:9", cores=(0, 1)), 0.1, 0.7))),
        job(
            narrow=tuple(
                dataclasses.replace(n, device=dataclasses.replace(n.device, share=n.name)) for n in NARROW
            )
        ),
        job(narrow=(*NARROW, Lane(Device("cuda:0"), 0, 0.01)), planned=("cuda:0",)),
    ],
    ids=["one part", "no cores", "unknown", "overlapping parts", "other memory", "planned elsewhere"],
)
def test_without_two_layouts_of_the_same_cores_lanes_stay_as_planned(one: Job) -> None:
    modes = Modes([one])
    assert modes.lanes("ocr", waits(1)) == one.planned
    assert modes.lanes("ocr", waits(1000)) == one.planned
    assert modes.size("ocr", "cpu:1", 8, waits(3)) == 8


@pytest.mark.parametrize(("per_row", "names"), [(0.01, ("cpu:0",)), (9.0, NAMES)])
def test_a_layout_that_is_always_better_stays(per_row: float, names: tuple[str, ...]) -> None:
    modes = Modes([job(wide=dataclasses.replace(WIDE, per_row=per_row))])
    assert {modes.lanes("ocr", waits(n)) for n in (0, 1, 1000)} == {names}


def test_free_narrow_lanes_share_what_waits() -> None:
    modes = Modes([job()])
    assert modes.size("ocr", "cpu:1", 8, waits(10)) == 3
    assert modes.size("ocr", "cpu:2", 8, waits(7, cpu_1=1)) == 3
    assert modes.size("ocr", "cpu:4", 8, waits(2, cpu_1=1, cpu_2=1, cpu_3=1)) == 2
    assert modes.size("ocr", "cpu:1", 8, waits(100)) == 8
    assert modes.size("ocr", "cpu:0", 8, waits(2)) == 8


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70))
def test_a_backlog_takes_hardly_longer_than_in_the_better_of_both_layouts(rows: int) -> None:
    one, routes = job(), dict.fromkeys(range(rows), ("ocr",))
    best = min(reference(rows, 8, list(NARROW)), reference(rows, 8, [WIDE]))
    timeline = MiniSim([one], routes).run(Modes([one]))
    assert timeline.seconds <= best + NARROW[0].seconds(1) + 0.1 * rows
    if rows > 8:
        assert timeline.seconds < MiniSim([one], routes).run().seconds


def test_it_is_built_by_name() -> None:
    (made,) = build(["modes"], POLICIES, [job()])
    assert isinstance(made, Modes)
