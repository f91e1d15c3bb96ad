"""What runs have shown: fitted, kept, and found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.learned import KEPT, Learned, Point, fit, lane_key, read, stage_key, write
from pipeline.machine import Device
from pipeline.timeline import Span
from pipeline.yields import Yield
from tests.costed import Busy

ONE, TWO, FOUR = (Device("cpu:0", n) for n in (1, 2, 4))
CARD = Device("cuda:0", 1)
STAGE = Busy(3.0)


def points(fixed: float, per_row: float, per_length: float) -> list[Point]:
    shapes = [(1, 5.0), (2, 30.0), (8, 16.0), (8, 90.0), (64, 200.0), (33, 700.0)]
    return [Point(n, length, fixed + per_row * n + per_length * length) for n, length in shapes]


# fits

parts = st.one_of(st.just(0.0), st.floats(1e-5, 10))
times = st.one_of(st.just(0.0), st.floats(1e-7, 1e4))


@given(parts, parts, parts)
@settings(deadline=None)  # the first call imports scipy
def test_a_fit_finds_what_batches_were_made_of(fixed: float, per_row: float, per_length: float) -> None:
    found = fit(points(fixed, per_row, per_length))
    for p in points(fixed, per_row, per_length):
        told = found[0] + found[1] * p.rows + found[2] * p.length
        assert told == pytest.approx(p.seconds, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("made", [(0.5, 0.25, 0.125), (0.0, 2.0, 0.0), (1e-3, 0.0, 1e-4), (3.0, 0.0, 0.0)])
def test_its_parts_are_found_apart(made: tuple[float, float, float]) -> None:
    assert fit(points(*made)) == pytest.approx(made, abs=1e-9)


@given(st.lists(st.builds(Point, st.integers(0, 99), st.floats(0, 1e5), times), max_size=8))
def test_no_part_is_below_nothing(found: list[Point]) -> None:
    assert min(fit(found)) >= 0


def test_small_batches_count_as_much_as_large_ones() -> None:
    # A large batch that is 1 s off its line, of 1000 s, does not spoil what one row is said to take.
    fixed, per_row, _ = fit([Point(1, 0, 1.5), Point(2, 0, 2.5), Point(1000, 0, 1001.5)])
    assert fixed + per_row == pytest.approx(1.5, rel=0.01)


def test_batches_that_took_no_time_say_nothing() -> None:
    assert fit([]) == fit([Point(3, 3, 0.0)]) == (0, 0, 0)


# keys


def test_equal_parameters_are_one_key_and_others_another() -> None:
    assert stage_key(Busy(3.0)) == stage_key(STAGE) != stage_key(Busy(4.0))
    assert lane_key(STAGE, ONE) == lane_key(STAGE, Device("cpu:7", 1))
    assert len({lane_key(STAGE, d) for d in (ONE, TWO, CARD)}) == 3


def test_a_key_is_the_same_in_every_process() -> None:
    @dataclass(frozen=True)
    class Local:
        path: Path

    assert stage_key(Busy(1.0)) == "tests.costed.Busy-918ffbf4df0c"
    assert stage_key(Local(Path("a"))) != stage_key(Local(Path("b")))


# lanes


def known(**by_lane: tuple[Point, ...]) -> Learned:
    devices = {"one": ONE, "two": TWO, "four": FOUR, "card": CARD}
    return Learned({lane_key(STAGE, devices[k]): v for k, v in by_lane.items()})


P1, P4 = Point(1, 0, 1.0), Point(1, 0, 4.0)


def test_batches_are_those_of_such_lanes_only() -> None:
    found = known(one=(P1,), card=(P4,))
    assert (found.of(STAGE, ONE), found.of(STAGE, TWO), found.of(Busy(4.0), ONE)) == ((P1,), (), ())


def test_the_nearest_width_of_a_kind_stands_for_one_that_never_ran() -> None:
    found = known(one=(P1,), four=(P4,), card=(P1, P1))
    assert found.nearest(STAGE, Device("cpu:0", 8)) == (4, (P4,))
    assert found.nearest(STAGE, FOUR) == (4, (P4,))
    assert found.nearest(STAGE, TWO) == (1, (P1,))
    assert known(one=(P1,)).nearest(STAGE, CARD) == (0, ())


def test_the_smaller_of_two_widths_as_near_is_taken() -> None:
    assert known(two=(P1,), four=(P4,)).nearest(STAGE, Device("cpu:0", 3)) == (2, (P1,))


def test_opening_is_that_of_such_a_lane_else_the_slowest_of_its_kind() -> None:
    found = Learned(openings={lane_key(STAGE, ONE): 1.0, lane_key(STAGE, FOUR): 4.0})
    told = [found.opening(STAGE, d) for d in (ONE, TWO, CARD)]
    assert told == [1.0, 4.0, None]


# runs


def spans(*found: tuple[int, float, int]) -> list[Span]:
    """Batches of 2 s, of so many rows, sum of lengths, and rows made of 10 bytes each."""
    return [Span("s", "cpu:0", 0, 2.0, r, n, m, 10.0 * m) for r, n, m in found]


def after(learned: Learned, *found: tuple[int, float, int]) -> Learned:
    return learned.with_run({"s": STAGE}, {"cpu:0": ONE}, spans(*found), {"s": 5.0}, {})


def test_a_run_adds_its_batches_and_what_came_of_them() -> None:
    found = after(Learned(), (3, 30, 6), (1, 9, 2))
    assert found.of(STAGE, ONE) == (Point(3, 30, 2), Point(1, 9, 2))
    made = found.yielded(STAGE)
    assert made is not None
    assert (made.rows, made.made, made.nbytes, made.length, made.read, made.off_rows) == (4, 8, 80, 40, 39, 0)
    assert made.off_read == pytest.approx(2 * (30 * 8 / 39 - 6))
    assert found.yielded(Busy(4.0)) is None


def test_opening_is_told_apart_from_the_batch() -> None:
    span = Span("s", "cpu:0", 1.0, 9.0, 4, opening=5.0)
    found = Learned().with_run({"s": STAGE}, {"cpu:0": ONE}, [span], {}, {})
    assert (found.of(STAGE, ONE), found.opening(STAGE, ONE)) == ((Point(4, 0, 3),), 5)


def test_a_new_run_counts_twice_as_much_as_the_one_before() -> None:
    found = after(after(Learned(), (4, 0, 8)), (4, 0, 4))
    assert found.yielded(STAGE) == Yield(2 + 4, 4 + 4, 40 + 40, 20 + 20)


def test_the_latest_batches_are_kept() -> None:
    found = after(Learned(), *((n, 0, 0) for n in range(KEPT + 10)))
    assert [p.rows for p in found.of(STAGE, ONE)] == list(range(10, KEPT + 10))


def test_rounds_of_the_last_run_stand() -> None:
    found = Learned(rounds={"a": 2.0, "b": 3.0}).with_run({}, {}, [], {}, {"a": 1.5})
    assert found.rounds == {"a": 1.5, "b": 3.0}


# files

keys, numbers = st.text(max_size=8), st.floats(0, 1e9)
learneds = st.builds(
    Learned,
    st.dictionaries(keys, st.lists(st.builds(Point, st.integers(0, 99), numbers, numbers)).map(tuple)),
    st.dictionaries(keys, numbers),
    st.dictionaries(keys, st.builds(Yield, numbers, numbers, numbers, numbers)),
    st.dictionaries(keys, numbers),
)


@given(learneds)
def test_a_file_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, found: Learned) -> None:
    path = tmp_path_factory.mktemp("learned") / "deep" / "here.json"
    write(found, path)
    assert read(path) == found
    assert [p.name for p in path.parent.iterdir()] == ["here.json"], "no part is left"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '"points"', "{}", '{"points": 3}', "\x00",
     '{"points": {"a": [[1]]}, "openings": {}, "yields": {}, "rounds": {}}',
     '{"points": {}, "openings": [1], "yields": {}, "rounds": {}}',
     '{"points": {}, "openings": {}, "yields": {"a": {"other": 1}}, "rounds": {}}',
     '{"points": {}, "openings": {}, "yields": {"a": 3}, "rounds": {}}',
     '{"points": {"a": [["1", 2, "x"]]}, "openings": {}, "yields": {}, "rounds": {}}',
     '{"points": {"a": []}, "openings": {"b": "x"}, "yields": {}, "rounds": {}}',
     '{"points": {}, "openings": {}, "yields": {}, "rounds": {"l": null}}'],
)  # fmt: skip
def test_a_damaged_file_holds_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "learned.json"
    path.write_text(text)
    assert read(path) == Learned()


def test_a_file_that_is_no_text_or_is_not_there_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "learned.json").write_bytes(b"\xff\xfe\x00")
    assert read(tmp_path / "learned.json") == read(tmp_path / "none.json") == read(tmp_path) == Learned()


def test_half_a_file_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    write(after(Learned(), (3, 30, 6)), path)
    whole = path.read_text()
    for end in range(len(whole)):
        path.write_text(whole[:end])
        assert read(path) == Learned()
