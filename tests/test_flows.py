"""How many rows pass each step, how long and heavy: from the sources down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from pipeline.flows import FAN_OUT, Flows, makers, usual
from pipeline.graph import Graph, Loop, node
from pipeline.learned import Learned, stage_key
from pipeline.program import Step, flatten
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Chunks, Documents
from pipeline.yields import Yield
from tests.costed import Busy, Many, One, Round
from tests.toys import Collatz, Fan, Join, Numbers, Plus, Strip, Total, Whole


@dataclass(frozen=True, slots=True)
class Half(Busy):
    """Rows half as long."""

    def cost(self, work: Work) -> Cost:
        return Cost(Flow(work.rows, work.port("a").length / 2))


def flows(*nodes: Any, learned: Learned | None = None, **sources: Flow) -> tuple[Flows, dict[str, Step]]:
    kinds = {n: Whole if n == "all" else Numbers for n in sources}
    program = flatten(Graph(kinds, nodes, {"out": nodes[-1].name}))
    return Flows(program, sources, learned), {s.name: s for s in program.steps}


def test_what_a_stage_says_it_gives_goes_down_the_chain() -> None:
    found, steps = flows(
        node("many", Many(fan=3.0, nbytes=7.0), a="rows"),
        node("busy", Busy(nbytes=5.0), a="many"),
        node("one", One(nbytes=2.0), a="busy"),
        rows=Flow(10, 40.0, 100.0),
    )
    assert [found.rows(s) for s in steps.values()] == [10, 30, 1]
    made = [found.made(n) for n in ("rows", "many", "busy", "one")]
    assert made == [Flow(10, 40, 100), Flow(30, 1, 7), Flow(30, 1, 5), Flow(1, 0, 2)]


def test_groups_are_the_rows_of_the_ancestor_they_share() -> None:
    found, steps = flows(
        node("pages", Many(fan=3.0), a="rows"),
        node("words", Many(fan=2.0, name="w"), a="pages"),
        node("page", One(gathers=2), a="words"),
        node("document", One(gathers=1), a="page"),
        rows=Flow(10),
    )
    assert [found.rows(s) for s in steps.values()] == [10, 30, 30, 10]


def test_an_unknown_stage_passes_its_rows_on_and_fans_out_by_the_documented_number() -> None:
    found, _ = flows(node("plus", Plus(), a="rows"), node("fan", Fan(), a="plus"), rows=Flow(10, 4.0, 8.0))
    assert found.made("plus") == Flow(10, 4, 8)
    assert found.made("fan") == Flow(10 * FAN_OUT, 4, 8)


def test_an_unknown_stage_of_the_whole_corpus_gives_one_row() -> None:
    found, steps = flows(node("plus", Plus(), a="all"), all=Flow(1, 1000.0, 240.0))
    assert (found.made("plus"), found.length(steps["plus"])) == (Flow(1, 1000, 240), 0)


def test_what_runs_have_shown_goes_before_what_a_stage_says() -> None:
    shown = Learned(yields={stage_key(Many(fan=3.0)): Yield(10, 50, 1000, 200)})
    found, _ = flows(node("many", Many(fan=3.0), a="rows"), learned=shown, rows=Flow(4))
    assert found.made("many") == Flow(20, 4, 20)


def test_a_stage_that_gave_nothing_is_expected_to_give_nothing() -> None:
    shown = Learned(yields={stage_key(Fan()): Yield(10, 0, 0, 0)})
    found, _ = flows(node("fan", Fan(), a="rows"), learned=shown, rows=Flow(4))
    assert found.made("fan") == Flow(0, 0, 0)


# units of length


@dataclass(frozen=True, slots=True)
class Cut:
    """A user's reader: chunks of a file."""

    expands: ClassVar[bool] = True

    def run(self, state: Any, documents: Documents) -> Chunks:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Trim:
    """Chunks stay chunks."""

    def run(self, state: Any, chunks: Chunks) -> Chunks:
        return chunks


FILES = Flow(10, 500.0, 230.0)


def read(learned: Learned | None = None, documents: Flow = FILES) -> Flows:
    nodes = (node("cut", Cut(), documents="documents"), node("trim", Trim(), chunks="cut"))
    program = flatten(Graph({"documents": Documents}, nodes, {"out": "trim"}))
    return Flows(program, usual(program, {"documents": documents}, learned or Learned()), learned)


def known(*, off_rows: float, off_read: float) -> Learned:
    """10 chunks, of 40 characters each, of a document of 100 thousand bytes."""
    return Learned(yields={stage_key(Cut()): Yield(5, 50, 0, 2000, 500, off_rows, off_read)})


def test_bytes_of_a_file_do_not_become_characters_of_a_text() -> None:
    assert (read().made("cut").length, read().made("trim").length) == (0, 0)


def test_characters_go_on_where_rows_stay_of_a_kind() -> None:
    found = read(known(off_rows=0, off_read=0))
    assert (found.made("cut").length, found.made("trim").length) == (40, 40)


def test_a_longer_file_makes_more_rows_where_that_has_predicted_better() -> None:
    assert read(known(off_rows=9, off_read=1)).made("cut").rows == 500
    assert read(known(off_rows=1, off_read=9)).made("cut").rows == 100


def test_files_of_unknown_size_are_as_large_as_those_before() -> None:
    found = read(known(off_rows=9, off_read=1), Flow(10, 0.0, 230.0))
    assert (found.made("documents").length, found.made("cut").rows) == (100, 100)
    assert read(None, Flow(10)).made("documents").length == 0


def test_rows_that_never_have_a_length_get_none() -> None:
    program = flatten(Graph({"rows": Numbers}, (node("plus", Plus(), a="rows"),), {"out": "plus"}))
    shown = Learned(yields={stage_key(Plus()): Yield(5, 5, 0, 0, 500)})
    assert usual(program, {"rows": Flow(3)}, shown) == {"rows": Flow(3)}


def test_the_maker_of_what_a_loop_gives_is_the_step_inside_it() -> None:
    body = (node("go", Collatz(), a="n"), node("bare", Strip(), a="go"))
    loop = Loop(Graph({"n": Numbers}, body, {"next": "bare", "flags": "go"}), {"n": "next"}, "flags", 2)
    nodes = (node("l", loop, n="rows"), node("after", Plus(), a="l.next"))
    program = flatten(Graph({"rows": Numbers}, nodes, {"out": "after"}))
    after = next(s for s in program.steps if s.name == "after")
    assert makers(program)[after.edges[0].producer] == ("l/bare",)
    assert makers(program)["rows"] == ()


# joins


def test_a_shared_row_comes_whole_to_every_batch() -> None:
    found, steps = flows(
        node("many", Many(fan=4.0), a="rows"),
        node("join", Join(), a="many", b="rows"),
        node("with", Join(), a="join", b="all"),
        rows=Flow(10, 0.0, 3.0), all=Flow(1, 1000.0, 240.0),
    )  # fmt: skip
    assert (found.rows(steps["join"]), found.rows(steps["with"])) == (40, 40)
    assert found.work(steps["join"], 8).ports == {"a": Flow(8, 1, 0), "b": Flow(2, 0, 3)}
    assert found.work(steps["join"], 1).ports["b"].rows == 1
    assert found.work(steps["with"], 8).ports["b"] == Flow(1, 1000, 240)


def test_the_length_of_a_batch_moves_its_own_rows_each_in_proportion() -> None:
    found, steps = flows(
        node("long", Busy(), a="rows"),
        node("short", Half(), a="rows"),
        node("both", Join(), a="long", b="short"),
        node("with", Join(), a="both", b="all"),
        rows=Flow(10, 8.0), all=Flow(1, 1000.0),
    )  # fmt: skip
    assert (found.length(steps["both"]), found.length(steps["with"])) == (8, 8)
    ports = found.work(steps["both"], 5, length=16.0).ports
    assert (ports["a"].length, ports["b"].length) == (16, 8)
    assert found.work(steps["with"], 5, length=16.0).port("b").length == 1000


def test_a_batch_of_the_usual_length_is_as_the_flows_say() -> None:
    found, steps = flows(node("one", One(), a="rows"), rows=Flow(10, 8.0))
    one = steps["one"]
    assert found.length(one) == 80, "of a group: the sum of its rows"
    assert found.work(one, 1, length=80.0) == found.work(one, 1)
    assert found.work(one, 1, length=40.0).port("a") == Flow(10, 4)


def test_dtype_is_handed_on() -> None:
    found, steps = flows(node("plus", Plus(), a="rows"), rows=Flow(10))
    assert found.work(steps["plus"], 2, "bfloat16").dtype == "bfloat16"


# loops


def looped(stage: Any, most: int, **known: float) -> tuple[Flows, dict[str, Step]]:
    nodes = (node("go", stage, a="n"), node("bare", Strip(), a="go"))
    loop = Loop(Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"}), {"n": "next"}, "flags", most)
    ends = (node("before", Busy(), a="rows"), node("l", loop, n="before"), node("after", Plus(), a="l.next"))
    return flows(*ends, learned=Learned(rounds=known), rows=Flow(10))


@pytest.mark.parametrize(
    ("known", "expected"), [({}, 4), ({"l": 1.5}, 1.5), ({"l": 9.0}, 4), ({"l": 0.2}, 1), ({"other": 2.0}, 4)]
)
def test_rows_pass_a_loop_once_a_round(known: dict[str, float], expected: float) -> None:
    found, steps = looped(Round(), 4, **known)
    assert found.rounds("l") == expected
    assert (found.rows(steps["l/go"]), found.rows(steps["l/bare"])) == (10 * expected, 10 * expected)
    assert found.rows(steps["after"]) == pytest.approx(10), "and leave it once"


def test_loops_in_loops_multiply() -> None:
    inner = Loop(
        Graph(
            {"n": Numbers}, (node("go", Collatz(), a="n"), node("bare", Strip(), a="go")),
            {"next": "bare", "flags": "go"},
        ), {"n": "next"}, "flags", 3,
    )  # fmt: skip
    nodes = (node("in", inner, n="n"), node("go", Round(), a="in.next"), node("bare", Strip(), a="go"))
    outer = Loop(Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"}), {"n": "next"}, "flags", 2)
    found, steps = flows(node("out", outer, n="rows"), node("end", Total(), a="out.next"), rows=Flow(10))
    assert {n: found.rows(s) for n, s in steps.items()} == {
        "out/in/go": 60, "out/in/bare": 60, "out/go": 20, "out/bare": 20, "end": 1,
    }  # fmt: skip


def test_no_rows_are_no_rows_all_the_way_down() -> None:
    found, steps = flows(
        node("many", Many(), a="rows"), node("busy", Busy(), a="many"),
        node("each", One(gathers=1), a="busy"),
        rows=Flow(0),
    )  # fmt: skip
    assert [found.rows(s) for s in steps.values()] == [0, 0, 0]
    assert found.work(steps["busy"], 0).port("a").rows == 0
    assert found.length(steps["each"]) == 0
