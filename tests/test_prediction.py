"""The pure parts of `benchmarks.prediction`: what its cases are, and what makes its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.cases import CASES, Case, Settings, chain, files, rounds, synthetic, turns
from benchmarks.prediction import COLUMNS, Outcome, middle, spread, verdict
from benchmarks.synthetic import Sort, Turns
from benchmarks.undisturbed import share
from pipeline.compare import compare
from pipeline.estimate import Estimates
from pipeline.learned import Learned, Point, fit
from pipeline.local import run_local
from pipeline.machine import Device, Machine
from pipeline.program import flatten
from pipeline.roofline import Flow
from pipeline.timeline import Span, Timeline
from tests import costed
from tests.costed import Busy, lanes

HERE = Settings(Path("nowhere"), Path("nowhere"), 5, 20)
SYNTHETIC = ("products", "streams", "parts", "loop", "two lanes", "skewed", "tiny", "no cost")


def timeline(seconds: float, heavy: str = "b") -> Timeline:
    ends = {"a": 0.2, "b": 0.2, heavy: 0.8}
    return Timeline(seconds, tuple(Span(step, "cpu:0", 0.0, end * seconds, 1) for step, end in ends.items()))


def outcome(predicted: float, measured: float, heavy: str = "b") -> Outcome:
    return Outcome("case", compare(timeline(predicted), timeline(measured, heavy)), 1.0, 0.1, 0.0)


# the verdict


def test_it_holds_where_the_median_error_is_small_and_bottlenecks_are_right() -> None:
    line, good = verdict([outcome(1.2, 1.0), outcome(0.9, 1.0), outcome(5.0, 1.0)])
    assert good
    assert line == "median error 20.0% (at most 20%), bottleneck right in 3 of 3: holds"


def test_it_does_not_hold_where_the_median_error_is_large() -> None:
    line, good = verdict([outcome(1.3, 1.0), outcome(0.7, 1.0), outcome(1.0, 1.0)])
    assert not good
    assert line.endswith("does not hold")


@pytest.mark.parametrize(("wrong", "good"), [(0, True), (1, True), (2, False)])
def test_one_bottleneck_of_ten_may_be_wrong(wrong: int, good: bool) -> None:
    found = [outcome(1, 1, "a" if i < wrong else "b") for i in range(10)]
    assert verdict(found)[1] == good


def test_without_cases_nothing_is_shown() -> None:
    assert verdict([]) == ("no case was run: nothing is shown", False)


def test_a_wrong_bottleneck_is_named_with_the_right_one() -> None:
    cells = dict(zip(COLUMNS, outcome(1.5, 1.0, "a").cells(), strict=True))
    assert (cells["bottleneck"], cells["error"]) == ("b, not a", "50%")
    assert outcome(1, 1).cells()[-1] == "b"


def test_the_median_run_counts() -> None:
    runs = [timeline(3.0), timeline(1.0), timeline(2.0)]
    assert middle(runs).seconds == 2.0
    assert spread(runs) == 1.0


# the cases


def test_there_are_ten_cases_or_more() -> None:
    assert len(CASES) >= 10
    assert set(SYNTHETIC) < set(CASES)


@pytest.mark.parametrize("name", [*SYNTHETIC, "demo", "multi-step"])
def test_a_sample_is_small_and_of_other_questions_or_rows(name: str, tmp_path: Path) -> None:
    case = CASES[name](HERE)
    assert isinstance(case, Case)
    graph = case.graph(tmp_path)
    assert set(graph.inputs) == set(case.rows) == set(case.sample)
    for port in set(case.rows) - {"documents"}:
        rows, sample = case.rows[port], case.sample[port]
        assert len(sample) <= len(rows) / 3
        assert not set(sample.ids) & set(rows.ids)


def test_the_sample_is_a_fifth_of_the_other_rows() -> None:
    case = synthetic(chain(("sort", Sort(1), 8)), range(60))
    rows, sample = case.rows["given"], case.sample["given"]
    assert (len(rows), len(sample)) == (50, 10)
    assert rows.lengths == tuple(range(50))


def test_a_case_without_its_material_says_so() -> None:
    found = CASES["hotpotqa"](HERE)
    assert isinstance(found, str)
    assert "--material" in found


def test_passages_become_documents_of_ten(tmp_path: Path) -> None:
    found = files([f'{{"text": "{i}"}}\n' for i in range(25)], tmp_path)
    assert found.ids == (("0000.jsonl",), ("0010.jsonl",), ("0020.jsonl",))
    assert [len(Path(p).read_text().splitlines()) for p in found.paths] == [10, 10, 5]


def test_the_loop_makes_as_many_rounds_as_each_row_has_left() -> None:
    case = rounds()
    found = run_local(case.graph(Path()), {"given": turns("row", [1, 3])}).results
    assert [r.rows.left for r in found if isinstance(r.rows, Turns)] == [(0,), (0,)]


# what a sample teaches

LANE = Device("cpu:0")


def spans(*seconds: float, rows: int = 4, opening: float = 0.0) -> list[Span]:
    """Batches one after another; the first of them opens the stage."""
    found, now = [], 0.0
    for i, s in enumerate(seconds):
        end = now + s + (0.0 if i else opening)
        found.append(Span("s0", "cpu:0", now, end, rows, opening=0.0 if i else opening))
        now = end
    return found


def shown(stage: Any, found: list[Span]) -> Learned:
    return Learned().with_run({"s0": stage}, {"cpu:0": LANE}, found, {}, {})


@dataclass(frozen=True, slots=True)
class Kept:
    path: Path


@dataclass(frozen=True, slots=True)
class Opens(Busy):
    shares: ClassVar[tuple[str, ...]] = ("opening",)

    def open(self, device: Device) -> None:
        """Its class tells states apart."""


def test_what_was_shown_in_one_run_folder_holds_in_another() -> None:
    learned = shown(Kept(Path("monday/index")), spans(1.0))
    assert learned.of(Kept(Path("tuesday/index")), LANE)
    assert not learned.of(Kept(Path("tuesday/words")), LANE)


@pytest.mark.parametrize("length", [0.0, 80.0])
def test_batches_that_are_alike_are_all_growth(length: float) -> None:
    fixed, per_row, per_length = fit([Point(8, length, s) for s in (0.9, 1.1, 1.0)])
    assert fixed == 0
    assert per_row * 16 + per_length * 2 * length == pytest.approx(2.0)


def test_all_batches_together_take_as_long_as_they_did() -> None:
    found = [Point(n, 0.0, s) for n, s in ((1, 1.0), (4, 3.0), (8, 30.0), (16, 9.0))]
    fixed, per_row, _ = fit(found)
    assert sum(fixed + per_row * p.rows for p in found) == pytest.approx(43)


def test_what_only_the_first_batch_takes_counts_as_opening() -> None:
    learned = shown(Busy(), spans(5.0, 1.0, 1.0, 1.0, 1.0))
    assert learned.opening(Busy(), LANE) == pytest.approx(4)
    assert [p.seconds for p in learned.of(Busy(), LANE)] == pytest.approx([1] * 5)


def test_from_two_batches_nobody_can_tell_what_is_special_about_the_first() -> None:
    learned = shown(Busy(), spans(5.0, 1.0))
    assert learned.opening(Busy(), LANE) is None
    assert [p.seconds for p in learned.of(Busy(), LANE)] == [5, 1]


def test_stages_that_share_a_state_share_what_opening_it_took() -> None:
    one, other = Opens(opening=2.0), Opens(work=3.0, opening=2.0)
    learned = shown(one, spans(1.0, opening=7.0))
    program = flatten(costed.chain(one, other))
    found = Estimates(program, Machine((LANE,)), {"given": Flow(4)}, learned)
    assert found.opening("s1", LANE) == 7


def test_one_thread_tells_of_one_batch_after_another() -> None:
    # Four lanes end at once; half of what tells of them, 0.5 s each, there is only one of.
    case = costed.Case(costed.chain(Busy()), Machine(lanes(4), handoff=0.5), 4)
    assert case.simulate().timeline.seconds == 1 + 0.25 + 4 * 0.25


# undisturbed runs


def test_what_this_process_does_is_not_put_down_to_others() -> None:
    # Of 10 s of the cores, 2 s were in use, 1 s of that by this process and what it started.
    assert share((10.0, 100.0, 4.0), (12.0, 110.0, 5.0)) == pytest.approx(0.1)


def test_clocks_that_stand_still_show_nobody() -> None:
    assert share((1.0, 2.0, 1.0), (1.0, 2.0, 1.0)) == 0.0
