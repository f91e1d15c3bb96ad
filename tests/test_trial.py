"""Stages of which nothing is known, tried on a few rows before a run, by a clock that the stages move."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from pipeline.estimate import ASSUMED_SECONDS, Estimates
from pipeline.graph import Graph, Loop, node
from pipeline.learned import Learned, Point, lane_key, stage_key
from pipeline.machine import Device, Machine
from pipeline.program import flatten
from pipeline.roofline import Cost, Flow, Work
from pipeline.trial import ROWS, SECONDS, Trial, tried
from pipeline.values import Rows
from pipeline.yields import Yield
from tests.costed import lanes
from tests.toys import Collatz, Join, Numbers, Strip, Total, Whole, numbers

LANE = lanes(1)[0]
MANY = numbers(**{f"n{i}": i for i in range(20)})


@dataclass(eq=False)
class Clock:
    """Stands still but for what stages say they take; `batches`: the rows that each was given."""

    now: float = 100.0
    batches: list[tuple[int, ...]] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def __repr__(self) -> str:
        return "clock"


@dataclass(frozen=True)
class Own:
    """A user's stage: a batch takes `fixed + per_row * rows`, the first one `first` more."""

    clock: Clock
    fixed: float = 0.0
    per_row: float = 0.0
    first: float = 0.0
    bad: int = -1

    def run(self, state: Any, a: Numbers) -> Numbers:
        self.clock.now += self.fixed + self.per_row * len(a) + (0 if self.clock.batches else self.first)
        self.clock.batches.append(a.x)
        if self.bad in a.x:
            raise ValueError("bad")
        return a


@dataclass(frozen=True)
class Tripled(Own):
    """Three rows of each."""

    expands: ClassVar[bool] = True

    def run(self, state: Any, a: Numbers) -> Numbers:
        super().run(state, a)
        ids = tuple((*i, k) for i in a.ids for k in range(3))
        return Numbers(ids, (0,) * len(ids))


@dataclass(frozen=True)
class Opens(Own):
    """Opens something."""

    def open(self, device: Device) -> None:
        self.clock.opened.append(device)


@dataclass(frozen=True)
class Model(Opens):
    """Reads `weights` bytes to open; its formula says that a row takes `takes` seconds."""

    weights: float = 0.0
    takes: float = 0.0

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(work.rows), self.takes * work.rows, opening=self.weights)


def estimates(*nodes: Any, learned: Learned | None = None, **inputs: Rows) -> Estimates:
    graph = Graph({n: type(r) for n, r in inputs.items()}, nodes, {"out": nodes[-1].name})
    sources = {n: Flow(len(r)) for n, r in inputs.items()}
    return Estimates(flatten(graph), Machine((LANE,)), sources, learned)


def trial(
    clock: Clock, *nodes: Any, learned: Learned | None = None, rows: Numbers = MANY
) -> tuple[Trial, Estimates]:
    """Tried, and the estimates that follow."""
    found = tried(estimates(*nodes, learned=learned, rows=rows), {"rows": rows}, clock)
    return found, estimates(*nodes, learned=found.learned, rows=rows)


def source(found: Estimates, step: str = "own") -> str:
    return found.guess(step, LANE, 3).source


# what is seen


def test_an_unknown_stage_is_fitted_to_batches_of_several_sizes() -> None:
    clock = Clock()
    found, then = trial(clock, node("own", Own(clock, 0.02, 0.01), a="rows"))
    assert [len(b) for b in clock.batches] == [1, 1, 2, 4]
    assert then.seconds("own", LANE, 64) == pytest.approx(0.02 + 0.64)
    assert (source(then), found.untried) == ("sampled", {})


def test_what_the_first_batch_takes_beyond_the_others_does_not_count() -> None:
    clock = Clock()
    _, then = trial(clock, node("own", Own(clock, 0.02, 0.01, first=0.9), a="rows"))
    assert then.seconds("own", LANE, 64) == pytest.approx(0.02 + 0.64)


def test_one_row_is_better_than_an_assumption() -> None:
    clock = Clock()
    _, then = trial(clock, node("own", Own(clock, 0.0, 0.3), a="rows"), rows=numbers(a=1))
    assert source(then) == "sampled"
    assert then.seconds("own", LANE, 10) == pytest.approx(3)


def test_no_row_is_seen_twice() -> None:
    clock = Clock()
    trial(clock, node("own", Own(clock), a="rows"))
    assert sorted(x for b in clock.batches for x in b) == list(range(ROWS))


def test_what_comes_of_its_rows_is_seen_too() -> None:
    clock = Clock()
    found, then = trial(clock, node("own", Tripled(clock), a="rows"))
    made = found.learned.yielded(Tripled(clock))
    assert made is not None
    assert (made.rows, made.made) == (8, 24)
    assert then.flows.made("own").rows == 60


def test_rows_go_through_the_steps_before_it_and_meet_as_in_a_run() -> None:
    """Rows of the whole corpus join; of three children of each row only as many go on as are allowed."""
    clock, before = Clock(), Clock()
    nodes = (
        node("many", Tripled(before), a="rows"), node("join", Join(), a="many", b="all"),
        node("own", Own(clock), a="join"),
    )  # fmt: skip
    corpus = Whole(((),), (1000,))
    found = tried(estimates(*nodes, rows=MANY, all=corpus), {"rows": MANY, "all": corpus}, clock)
    assert [len(b) for b in clock.batches] == [1, 1, 2, 4]
    assert {x for b in clock.batches for x in b} == {1000}
    assert found.learned.sampled == {stage_key(n.stage) for n in nodes}


# what is left alone


def test_a_stage_that_is_known_is_not_tried() -> None:
    clock = Clock()
    shown = Learned({lane_key(Own(clock), Device("cpu:0", 16)): (Point(1, 0, 2.0),)})
    for stage, known in ((Model(clock), None), (Own(clock), shown)):
        found, _ = trial(clock, node("own", stage, a="rows"), learned=known)
        assert (clock.batches, found.untried, found.learned) == ([], {}, known or Learned())


def test_what_earlier_runs_showed_that_it_gives_stands() -> None:
    clock = Clock()
    known = Learned(yields={stage_key(Tripled(clock)): Yield(1000, 9000)})
    _, then = trial(clock, node("own", Tripled(clock), a="rows"), learned=known)
    assert then.flows.made("own").rows == 180


def before(stage: Any, clock: Clock, learned: Learned | None = None) -> Trial:
    """A stage before an unknown one, which is tried or not."""
    found, then = trial(clock, node("x", stage, a="rows"), node("own", Own(clock), a="x"), learned=learned)
    assert source(then) == ("assumed" if "own" in found.untried else "sampled")
    return found


@pytest.mark.parametrize(
    ("stage", "seen", "why"),
    [
        (Model(Clock(), weights=1.0), None, "x opens first"),
        (Model(Clock(), weights=1.0), 0.6, "x opens first"),
        (Model(Clock(), weights=1.0), 0.4, None),
        (Model(Clock(), weights=0.0), None, None),
        (Opens(Clock()), None, "x opens first"),
        (Opens(Clock()), 0.1, None),
        (Model(Clock(), takes=SECONDS + 1), None, "x takes too long"),
        (Total(0), None, "x gathers its rows"),
    ],
)
def test_a_stage_behind_what_takes_long_or_needs_all_rows_is_not_tried(
    stage: Any, seen: float | None, why: str | None
) -> None:
    known = Learned(openings={lane_key(stage, LANE): seen} if seen else {})
    found = before(stage, Clock(), known)
    assert found.untried.get("own") == why
    assert not why or not isinstance(stage, Opens) or not stage.clock.opened


def test_an_unknown_stage_whose_opening_nobody_knows_is_not_opened() -> None:
    clock = Clock()
    found, then = trial(clock, node("own", Opens(clock), a="rows"))
    assert (found.untried, clock.opened, source(then)) == ({"own": "own opens first"}, [], "assumed")


def test_a_stage_in_a_loop_is_not_tried() -> None:
    body = Graph(
        {"n": Numbers}, (node("go", Collatz(), a="n"), node("bare", Strip(), a="go")),
        {"next": "bare", "flags": "go"},
    )  # fmt: skip
    found, _ = trial(Clock(), node("l", Loop(body, {"n": "next"}, "flags", 9), n="rows"),
                     node("own", Own(Clock()), a="l.next"))  # fmt: skip
    assert set(found.untried) == {"l/go", "l/bare", "own"}
    assert set(found.untried.values()) == {"l/go is in a loop"}


def test_inputs_that_are_not_at_hand_are_told() -> None:
    nodes = (node("one", Own(Clock()), a="rows"), node("two", Join(), a="one", b="all"))
    known = estimates(*nodes, rows=MANY, all=Whole(((),), (1,)))
    assert tried(known, {"rows": MANY}, Clock()).untried == {"two": "no rows of all are at hand"}
    assert tried(known, {}, Clock()).untried == {}, "nothing was asked for"


# what goes wrong


def test_a_batch_that_fails_says_nothing_and_the_others_do() -> None:
    clock = Clock()
    found, then = trial(clock, node("own", Own(clock, 0.0, 0.1, bad=5), a="rows"))
    assert (source(then), found.untried) == ("sampled", {})
    assert [p.rows for p in found.learned.of(Own(clock, 0.0, 0.1, bad=5), LANE)] == [1, 2]


def test_a_stage_that_always_fails_stays_assumed_and_what_is_behind_it_too() -> None:
    clock = Clock()
    found, then = trial(
        clock, node("own", Own(clock, bad=3), a="rows"), node("next", Own(clock, 1.0), a="own"),
        rows=numbers(a=3),
    )  # fmt: skip
    assert then.seconds("own", LANE, 10) == pytest.approx(10 * ASSUMED_SECONDS)
    assert found.untried == dict.fromkeys(("own", "next"), "none of its rows came through own")
    assert found.learned == Learned()


def test_a_stage_that_does_not_open_stays_assumed() -> None:
    @dataclass(frozen=True)
    class Broken(Own):
        def open(self, device: Device) -> None:
            raise OSError("no")

    stage = Broken(Clock())
    found, then = trial(
        Clock(), node("own", stage, a="rows"), learned=Learned(openings={lane_key(stage, LANE): 0.1})
    )
    assert (source(then), found.untried) == ("assumed", {"own": "own cannot be opened (RidgewayError)"})


# how long it may take


def test_a_slow_stage_is_left_as_soon_as_the_next_batch_would_be_too_long() -> None:
    clock = Clock()
    _, then = trial(clock, node("own", Own(clock, 0.0, 1.0), a="rows"))
    assert [len(b) for b in clock.batches] == [1, 1]
    assert then.seconds("own", LANE, 4) == pytest.approx(4)


def test_all_stages_share_the_time() -> None:
    clock = Clock()
    nodes = [node(f"s{i}", Own(clock, 0.0, 0.1 * (i + 1)), a=f"s{i - 1}" if i else "rows") for i in range(9)]
    found, _ = trial(clock, *nodes)
    assert clock.now - 100 <= SECONDS + 1
    assert set(found.untried.values()) == {"the stages before took all the time"}
    assert list(found.untried) == ["s3", "s4", "s5", "s6", "s7", "s8"]
