"""Pictures of graphs: every node, edge and loop is there, as text, and nothing overlaps."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from pipeline.canvas import Canvas, Rect
from pipeline.draw import mermaid, picture
from pipeline.errors import GraphError
from pipeline.graph import Graph, Loop, node
from pipeline.layers import Link
from pipeline.layout import GAP_X, lay_out
from pipeline.svg import svg
from tests.graphs import graphs
from tests.toys import Collatz, Join, Numbers, Plus, Strip, Total

NS = "{http://www.w3.org/2000/svg}"


def line() -> Graph:
    return Graph(
        {"a": Numbers}, (node("plus", Plus(), a="a"), node("all", Total(), a="plus")), {"sum": "all"}
    )


def looping() -> Graph:
    nodes = (node("go", Collatz(), a="n"), node("bare", Strip(), a="go"))
    body = Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"})
    loop = node("steps", Loop(body, {"n": "next"}, "flags", 3), n="a")
    return Graph({"a": Numbers}, (loop, node("end", Plus(), a="steps.next")), {"end": "end"})


def test_mermaid_of_a_line_is_exactly_this() -> None:
    assert mermaid(line()) == (
        "flowchart TD\n"
        '    input_a(["a<br/>Numbers"])\n'
        '    stage_plus["plus<br/>Plus"]\n'
        '    stage_all["all<br/>Total"]\n'
        '    output_sum(["sum<br/>Numbers"])\n'
        '    input_a -- "Numbers" --> stage_plus\n'
        '    stage_plus -- "Numbers" --> stage_all\n'
        '    stage_all -- "Numbers" --> output_sum\n'
    )


def test_mermaid_puts_a_loop_in_a_frame_and_its_carried_edge_back_in_dots() -> None:
    text = mermaid(looping())
    frame = text.index('subgraph loop_steps["steps: at most 3 rounds, until flags.done"]')
    assert frame < text.index('stage_steps_go["go<br/>Collatz"]') < text.index("    end\n")
    assert '    input_a -- "Numbers" --> input_steps_n\n' in text
    assert '    output_steps_next -. "Numbers, next round" .-> input_steps_n\n' in text
    assert '    output_steps_next -- "Numbers" --> stage_end\n' in text


def test_an_arrow_names_its_port_where_the_type_does_not_tell_it() -> None:
    graph = Graph({"x": Numbers, "y": Numbers}, (node("sum", Join(), a="x", b="y"),), {"sum": "sum"})
    assert [a.label for a in picture(graph).arrows] == ["a: Numbers", "b: Numbers", "Numbers"]


def test_things_of_the_same_name_have_ids_of_their_own() -> None:
    nodes = (node("b", Collatz(), a="n"), node("bare", Strip(), a="b"))
    loop = Loop(Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "b"}), {"n": "next"}, "flags", 2)
    drawn = picture(
        Graph({"x": Numbers}, (node("a_b", Plus(), a="x"), node("a", loop, n="a_b")), {"a_b": "a.next"})
    )
    ids = [b.id for b in drawn.boxes] + [f.id for f in drawn.frames]
    assert {"stage_a_b", "stage_a_b_2", "output_a_b"} <= set(ids)
    assert len(set(ids)) == len(ids)


def test_notes_are_a_further_line_also_inside_loops_and_on_them() -> None:
    text = mermaid(looping(), {"end": "cpu:0", "steps/go": "cuda:1", "steps": "slow"})
    assert "end<br/>Plus<br/>cpu:0" in text
    assert "go<br/>Collatz<br/>cuda:1" in text
    assert "until flags.done, slow" in text


def test_a_note_for_a_node_that_is_not_there_is_refused_with_the_near_miss() -> None:
    with pytest.raises(GraphError, match=r"'plsu', which is not there; did you mean 'plus'"):
        mermaid(line(), {"plsu": "cpu:0"})


NASTY = '</text><script>"]&#; `--> %%{x}'


def test_mermaid_text_cannot_become_structure() -> None:
    made = mermaid(line(), {"plus": NASTY})
    label = made.splitlines()[2].removeprefix('    stage_plus["plus<br/>Plus<br/>').removesuffix('"]')
    assert not set(label) & set('<>"]`%{}&')
    assert label.startswith("#60;/text#62;#60;script#62;#34;#93;#38;#35;#59;")


def test_svg_text_cannot_become_structure() -> None:
    root = ElementTree.fromstring(svg(line(), {"plus": NASTY + "\x00\ud800"}))
    assert f"{NASTY}\ufffd\ufffd" in [t.text for t in root.iter(f"{NS}text")]
    assert {e.tag.removeprefix(NS) for e in root.iter()} <= {
        "svg", "title", "defs", "marker", "path", "rect", "text",
    }  # fmt: skip


def test_svg_refers_to_nothing_outside() -> None:
    text = svg(looping())
    assert "href" not in text
    assert text.count("http") == 1  # the namespace
    assert text.count("url(") == text.count("url(#head)")


def test_svg_says_everything_that_the_picture_does() -> None:
    drawn = picture(looping())
    said = [t.text for t in ElementTree.fromstring(svg(looping())).iter(f"{NS}text")]
    wanted = [line for b in drawn.boxes for line in b.lines]
    wanted += [f.title for f in drawn.frames] + [a.label for a in drawn.arrows]
    assert sorted(map(str, said)) == sorted(wanted)
    assert svg(looping()).count("stroke-dasharray") == 1


def test_equal_graphs_are_drawn_equally() -> None:
    assert (svg(looping()), mermaid(looping())) == (svg(looping()), mermaid(looping()))


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_boxes_stand_apart_below_what_feeds_them_and_inside_their_loop(graph: Graph) -> None:
    drawn = picture(graph)
    canvas = Canvas(drawn, 24)
    for a, b in combinations(drawn.boxes, 2):
        assert not canvas.at[a.id].meets(canvas.at[b.id]), (a.id, b.id)
    for arrow in drawn.arrows:
        assert arrow.back or canvas.at[arrow.source].bottom < canvas.at[arrow.target].y
    for id, frame in canvas.frame_of.items():
        at, around = canvas.at[id], canvas.at.get(frame)
        left, top = (around.x, around.y) if around else (0.0, 0.0)
        right = around.x + around.width if around else canvas.width
        assert left < at.x
        assert top < at.y
        assert at.x + at.width < right
        assert at.bottom < (around.bottom if around else canvas.height)


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_long_arrows_pass_beside_the_boxes(graph: Graph) -> None:
    drawn = picture(graph)
    canvas = Canvas(drawn, 24)
    for route in canvas.routes.values():
        for x, top, bottom in route.via:
            strip = Rect(x - 1, top, 2, bottom - top)
            assert not any(canvas.at[b.id].meets(strip) for b in drawn.boxes)


def test_an_input_stands_just_above_its_first_reader() -> None:
    sizes = dict.fromkeys(("a", "b", "c", "late"), (100.0, 40.0))
    made = lay_out(sizes, [Link("a", "b"), Link("b", "c"), Link("late", "c")])
    assert made.places["late"][1] == made.places["b"][1]


def test_a_long_link_is_straight_beside_the_boxes_that_it_passes() -> None:
    names = ["a", "b", "c", "d", "e"]
    links = [*(Link(x, y) for x, y in pairwise(names)), Link("a", "e")]
    made = lay_out(dict.fromkeys(names, (100.0, 40.0)), links)
    (x,) = {round(x, 6) for x, _, _ in made.routes[-1].via}
    left = made.places["b"][0]
    assert x <= left - GAP_X / 2 or x >= left + 100 + GAP_X / 2


def test_an_empty_page_has_no_size() -> None:
    assert lay_out({}, []).height == 0


def test_drawing_needs_no_heavy_library() -> None:
    code = "import sys, pipeline.svg; sys.exit(bool({'torch', 'dask', 'PIL'} & set(sys.modules)))"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_a_note_of_a_plan_is_text_in_both_pictures() -> None:
    """Its middle dot and comma are no syntax."""
    notes = {"plus": "cpu:0-3, cuda:0 · 64 rows · 1.2 ms"}
    assert "cpu:0-3, cuda:0 #183; 64 rows #183; 1.2 ms" in mermaid(line(), notes)
    assert notes["plus"] in svg(line(), notes)
