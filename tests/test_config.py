"""A pipeline file says the same as Python, and every error says where (B70, B73, B74)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import dump, load, loads
from pipeline.errors import ConfigError, GraphError, RidgewayError
from pipeline.graph import Graph, Loop, node
from pipeline.values import Queries
from tests.graphs import graphs
from tests.toys import Collatz, Fan, Join, Numbers, Plus, Strip, Total

TABLE = {name: f"tests.toys:{name}" for name in ("Plus", "Picky", "Join", "Fan", "Total", "Collatz", "Strip")}
TABLE |= {
    "Typed": "tests.test_config:Typed",
    "Ask": "tests.test_config:Ask",
    "Number": "tests.test_config:NUMBER",
}
ALLOW = ("tests.toys",)
NUMBER = 5


@dataclass(frozen=True, slots=True)
class Typed:
    """One parameter of each type."""

    must: str
    n: int = 1
    x: float = 0.5
    on: bool = False
    path: Path = Path("there")
    maybe: int | None = None
    words: tuple[str, ...] = ()
    pair: tuple[int, str] = (0, "")
    mode: Literal["fast", "good", 1] = "fast"

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"n must not be negative, found {self.n}")

    def run(self, state: Any, a: Numbers) -> Numbers:
        return a


@dataclass(frozen=True, slots=True)
class Ask:
    def run(self, state: Any, queries: Queries) -> Queries:
        return queries


HEAD = "ridgeway: 1\ninputs: {docs: tests.toys:Numbers}\n"


def read(text: str, *settings: str, allow: tuple[str, ...] = ALLOW, **variables: str) -> Graph:
    return loads(text, "p.yaml", TABLE, variables, settings, allow)


def typed(text: str, *settings: str) -> Typed:
    """The stage with these parameters."""
    made = read(f"{HEAD}stages: {{t: {{stage: Typed, a: docs, {text}}}}}\noutputs: {{o: t}}", *settings)
    found = made["t"].stage
    assert isinstance(found, Typed)
    return found


def error(text: str, *settings: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, *settings, **options)
    return str(caught.value)


# a file says the same as Python


def test_a_file_is_a_graph() -> None:
    made = read(
        f"""{HEAD}
stages:
  more: {{stage: Plus, a: docs, n: 3, device: cpu:0, batch: 5}}
  all_: {{stage: Total, a: more}}
outputs: {{total: all_}}
"""
    )
    nodes = (node("more", Plus(3), device="cpu:0", batch=5, a="docs"), node("all_", Total(), a="more"))
    assert made == Graph({"docs": Numbers}, nodes, {"total": "all_"})


LOOPED = f"""{HEAD}
stages:
  turn:
    n: docs
    loop:
      inputs: {{n: tests.toys:Numbers}}
      stages:
        go: {{stage: Collatz, a: n}}
        bare: {{stage: Strip, a: go}}
      outputs: {{next: bare, flags: go}}
    carry: {{n: next}}
    until: flags
    max_rounds: 3
outputs: {{out: turn.next}}
"""


def test_a_file_has_loops() -> None:
    nodes = (node("go", Collatz(), a="n"), node("bare", Strip(), a="go"))
    body = Graph({"n": Numbers}, nodes, {"next": "bare", "flags": "go"})
    turn = node("turn", Loop(body, {"n": "next"}, "flags", 3), n="docs")
    assert read(LOOPED) == Graph({"docs": Numbers}, (turn,), {"out": "turn.next"})


def test_our_own_types_need_no_module() -> None:
    made = read("ridgeway: 1\ninputs: {q: Queries}\nstages: {s: {stage: Ask, queries: q}}\noutputs: {o: s}")
    assert made.inputs == {"q": Queries}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(graphs())
def test_a_graph_survives_the_round_trip(graph: Graph) -> None:
    assert loads(dump(graph, TABLE), "p.yaml", TABLE, allow=ALLOW) == graph
    assert loads(dump(graph, {}), "p.yaml", {}, allow=ALLOW) == graph


texts = st.text(max_size=12)


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        Typed,
        must=texts
        | st.sampled_from(["no", "012", "1e3", "~", "${HOME}", "$${X}", "${", "a: b", "2024-01-01"]),
        n=st.integers(0),
        x=st.floats(allow_nan=False),
        on=st.booleans(),
        path=texts.map(Path),
        maybe=st.none() | st.integers(),
        words=st.lists(texts, max_size=3).map(tuple),
        pair=st.tuples(st.integers(), texts),
        mode=st.sampled_from(["fast", "good", 1]),
    )
)
def test_parameters_survive_the_round_trip(stage: Typed) -> None:
    graph = Graph({"docs": Numbers}, (node("t", stage, a="docs"),), {"o": "t"})
    assert read(dump(graph, TABLE))["t"].stage == stage


def test_a_stage_in_a_function_cannot_be_written() -> None:
    @dataclass(frozen=True)
    class Local:
        def run(self, state: Any, a: Numbers) -> Numbers:
            return a

    graph = Graph({"docs": Numbers}, (node("t", Local(), a="docs"),), {"o": "t"})
    with pytest.raises(GraphError, match=r"Local is defined in a function: a pipeline file cannot name it"):
        dump(graph, TABLE)


def test_a_file_is_read_from_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(LOOPED, encoding="utf-8")
    assert load(path, TABLE, allow=ALLOW) == read(LOOPED)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "p.yaml").write_bytes(content)
    with pytest.raises(RidgewayError, match=r"cannot read pipeline file '.*p\.yaml'"):
        load(tmp_path / "p.yaml", TABLE)


# parameters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("must: no", Typed("no")),
        ("must: x, n: 012", Typed("x", n=12)),
        ("must: x, n: 0o14", Typed("x", n=12)),
        ("must: x, x: 1e3", Typed("x", x=1000.0)),
        ("must: x, x: 2", Typed("x", x=2.0)),
        ("must: x, on: true", Typed("x", on=True)),
        ("must: x, path: a/b", Typed("x", path=Path("a/b"))),
        ("must: x, maybe: null", Typed("x")),
        ("must: x, maybe: 3", Typed("x", maybe=3)),
        ("must: x, words: [a, no]", Typed("x", words=("a", "no"))),
        ("must: x, words: []", Typed("x")),
        ("must: x, pair: [1, b]", Typed("x", pair=(1, "b"))),
        ("must: x, mode: 1", Typed("x", mode=1)),
    ],
)
def test_parameters_have_the_types_of_the_constructor(text: str, expected: Typed) -> None:
    assert typed(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("must: 5", "must: expected a text, found 5"),
        ("must: null", "must: expected a text, found None"),
        ("must: x, n: '5'", "n: expected an int, found '5'"),
        ("must: x, n: 1e3", "n: expected an int, found 1000.0"),
        ("must: x, n: true", "n: expected an int, found True"),
        ("must: x, x: half", "x: expected a float, found 'half'"),
        ("must: x, x: true", "x: expected a float, found True"),
        ("must: x, on: no", "on: expected true or false, found 'no'"),
        ("must: x, on: 1", "on: expected true or false, found 1"),
        ("must: x, path: 7", "path: expected a path, found 7"),
        ("must: x, maybe: x", "maybe: expected an int or null, found 'x'"),
        ("must: x, words: a", "words: expected a list of a text, found 'a'"),
        ("must: x, words: [a, 1]", "words: expected a list of a text, found ['a', 1]"),
        ("must: x, pair: [1]", "pair: expected a list of an int and a text, found [1]"),
        ("must: x, pair: [1, b, c]", "pair: expected a list of an int and a text, found [1, 'b', 'c']"),
        ("must: x, mode: best", "mode: expected 'fast' or 'good' or 1, found 'best'"),
        ("must: x, mode: true", "mode: expected 'fast' or 'good' or 1, found True"),
        ("must: x, device: 1", "device: expected a text or null, found 1"),
        ("must: x, batch: many", "batch: expected an int or null, found 'many'"),
        ("must: x, batch: 0", "batch: node 't': batch must be 1 or more, found 0"),
        ("n: 1", "Typed needs the parameter 'must'"),
        ("must: x, n: -1", ".n: n must not be negative, found -1"),
        ("must: x, nn: 1", "nn: Typed has no port or parameter 'nn'; did you mean 'n'?"),
        (
            "must: x, devise: cuda:0",
            "devise: Typed has no port or parameter 'devise'; did you mean 'device'?",
        ),
    ],
)
def test_a_parameter_that_does_not_fit_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        typed(text)
    assert str(caught.value).startswith("p.yaml:3: stages.t")
    assert str(caught.value).endswith(message)


# every error says where


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml:1: expected keys and values, found None"),
        ("- a", "p.yaml:1: expected keys and values, found ['a']"),
        ("ridgeway: 2\nstages: {}", "p.yaml:1: ridgeway: expected `ridgeway: 1`, found 2"),
        ("stages: {}", "p.yaml:1: ridgeway: expected `ridgeway: 1`, found None"),
        ("ridgeway: 1\nstagse: {}", "p.yaml:2: stagse: unknown key 'stagse'; did you mean 'stages'?"),
        ("ridgeway: 1\ninputs: {}\nstages: {}", "p.yaml:1: the key 'outputs' is missing"),
        (
            f"{HEAD}stages:\n  a: {{stage: Plsu, a: docs}}\noutputs: {{o: a}}",
            "p.yaml:4: stages.a.stage: no stage named 'Plsu'; did you mean 'Plus'?",
        ),
        (
            f"{HEAD}stages:\n  a:\n    stage: Plus\n    a: dosc\noutputs: {{o: a}}",
            "p.yaml:6: stages.a.a: node 'a', port 'a': no node or input 'dosc'; did you mean 'docs'?",
        ),
        (
            f"{HEAD}stages:\n  a:\n    stage: Plus\n    a: [docs]\noutputs: {{o: a}}",
            "p.yaml:6: stages.a.a: expected a name, found ['docs']",
        ),
        (
            f"{HEAD}stages:\n  a: {{stage: Plus}}\noutputs: {{o: a}}",
            "p.yaml:4: stages.a: node 'a': port 'a' (Numbers) is not connected: add `a: NODE`",
        ),
        (
            f"{HEAD}stages:\n  a: {{stage: Plus, a: docs}}\n  b: {{stage: Plus, a: docs}}\noutputs: {{o: a}}",
            "p.yaml:5: stages.b: nothing uses node 'b'",
        ),
        (
            f"{HEAD}stages:\n  a: {{stage: Plus, a: docs}}\noutputs:\n  o: b",
            "p.yaml:6: outputs.o: output 'o': no node or input 'b'",
        ),
        (
            f"{HEAD}stages:\n  a: {{stage: Plus, a: b}}\n  b: {{stage: Plus, a: a}}\noutputs: {{o: a}}",
            "p.yaml:4: stages.a: the graph goes in a circle: ",
        ),
        (
            f"{HEAD}stages:\n  a: {{stage: Plus, a: a}}\noutputs: {{o: a}}",
            "p.yaml:4: stages.a: the graph goes in a circle: a -> a; use a loop",
        ),
        (
            f"{HEAD}stages:\n  a: {{stage: Plus, a: docs}}\n  a: {{stage: Plus, a: docs}}\noutputs: {{o: a}}",
            "p.yaml:5: stages.a: this key stands twice, first in line 4; remove one",
        ),
        (
            f"{HEAD}stages:\n  f: {{stage: Fan, a: docs}}\n  g: {{stage: Fan, a: docs}}\n"
            f"  j:\n    stage: Join\n    a: f\n    b: g\noutputs: {{o: j}}",
            "p.yaml:9: stages.j.b: node 'j': rows of port 'b' (per docs / g)",
        ),
        (
            f"{HEAD}stages:\n  a: {{a: docs}}\noutputs: {{o: a}}",
            "p.yaml:4: stages.a: a node has either `stage",
        ),
        (
            f"{HEAD}stages:\n  a: Plus\noutputs: {{o: a}}",
            "p.yaml:4: stages.a: expected keys and values, found 'Plus'",
        ),
        (
            f"{HEAD}stages:\n  a b: {{stage: Plus, a: docs}}\noutputs: {{o: a}}",
            "p.yaml:4: stages.a b: a name is",
        ),
        (
            f"{HEAD}stages:\n  a: {{stage: Number}}\noutputs: {{o: a}}",
            "p.yaml:4: stages.a.stage: 'Number' is no stage",
        ),
        (
            "ridgeway: 1\ninputs:\n  q: Querys\nstages: {}\noutputs: {}",
            "p.yaml:3: inputs.q: no type of rows named 'Querys'; did you mean 'Queries'?",
        ),
        (
            "ridgeway: 1\ninputs:\n  q: tests.toys:Plus\nstages: {}\noutputs: {}",
            "p.yaml:3: inputs.q: 'tests.toys:Plus' is no type of rows",
        ),
        (
            "ridgeway: 1\ninputs:\n  q: Passage\nstages: {}\noutputs: {}",
            "p.yaml:3: inputs.q: 'Passage' is no type",
        ),
    ],
)
def test_an_error_begins_with_file_and_line(text: str, message: str) -> None:
    assert error(text).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "until: flags",
            "until: flgas",
            "p.yaml:14: stages.turn.until: until: the body has no output 'flgas'",
        ),
        (
            "until: flags",
            "until: next",
            "p.yaml:14: stages.turn.until: until: the rows of 'next' have no column",
        ),
        ("max_rounds: 3", "max_rounds: 0", "p.yaml:15: stages.turn.max_rounds: max_rounds must be 1 or more"),
        ("max_rounds: 3", "max_rounds: x", "p.yaml:15: stages.turn.max_rounds: expected an int, found 'x'"),
        ("    max_rounds: 3\n", "", "p.yaml:5: stages.turn: a loop needs the key 'max_rounds'"),
        (
            "carry: {n: next}",
            "carry: {m: next}",
            "p.yaml:13: stages.turn.carry.m: carry: the body has no input 'm'",
        ),
        (
            "{stage: Collatz, a: n}",
            "{stage: Colatz, a: n}",
            "p.yaml:10: stages.turn.loop.stages.go.stage: no stage",
        ),
        ("a: go}", "a: gone}", "p.yaml:11: stages.turn.loop.stages.bare.a: node 'bare', port 'a': no node"),
        ("    n: docs\n", "    m: docs\n", "p.yaml:6: stages.turn.m: the loop has no input 'm'"),
        (
            "    until: flags",
            "    device: cpu:0\n    until: flags",
            "p.yaml:5: stages.turn: device and batch belong",
        ),
        ("inputs: {n: tests", "inptus: {n: tests", "p.yaml:8: stages.turn.loop.inptus: unknown key 'inptus'"),
    ],
)
def test_an_error_in_a_loop_begins_with_file_and_line(old: str, new: str, message: str) -> None:
    assert LOOPED.count(old) == 1
    assert error(LOOPED.replace(old, new)).startswith(message)


# settings and variables

SMALL = HEAD + "stages: {more: {stage: Plus, a: docs, n: 3}}\noutputs: {o: more}\n"


def test_a_setting_overrides_the_file() -> None:
    assert read(SMALL, "stages.more.n=12")["more"].stage == Plus(12)
    assert read(SMALL, "stages.more.bad=4")["more"].stage == Plus(3, 4)


def test_a_value_that_the_stage_refuses_is_told_with_the_setting_that_gave_it() -> None:
    text = HEAD + "stages: {t: {stage: Typed, a: docs, must: x}}\noutputs: {o: t}\n"
    assert error(text, "stages.t.n=-1") == "--set stages.t.n=-1: stages.t.n: n must not be negative, found -1"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stages.mroe.n=12", "--set stages.mroe.n=12: no 'stages.mroe' in p.yaml; did you mean 'more'?"),
        ("stages.more.nn=12", "--set stages.more.nn=12: stages.more.nn: Plus has no port or parameter 'nn'"),
        ("stages.more.n=x", "--set stages.more.n=x: stages.more.n: expected an int, found 'x'"),
        (
            "stages.more.a=x",
            "--set stages.more.a=x: stages.more.a: node 'more', port 'a': no node or input 'x'",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_named(setting: str, message: str) -> None:
    assert error(SMALL, setting).startswith(message)


VARIABLE = HEAD + "stages:\n  more:\n    stage: Plus\n    a: docs\n    n: ${N}\noutputs: {o: more}\n"


def test_a_variable_is_typed_as_what_it_stands_for() -> None:
    assert read(VARIABLE, N="7")["more"].stage == Plus(7)
    assert read(VARIABLE.replace("${N}", "${N:-9}"))["more"].stage == Plus(9)


def test_a_variable_that_is_not_set_is_told_with_its_key() -> None:
    assert error(VARIABLE).startswith("p.yaml:7: stages.more.n: variable 'N' is not set")


def test_a_variable_in_braces_is_no_yaml_and_the_error_says_what_to_do() -> None:
    assert error(SMALL.replace("n: 3", "n: ${N}")).endswith(
        "a plain ${...} cannot stand between { and }: give the key a line of its own, or quote a text"
    )


# only what is allowed is imported


def test_a_module_that_is_not_allowed_is_not_imported() -> None:
    text = HEAD.replace("tests.toys:Numbers", "antigravity:Rows") + "stages: {}\noutputs: {}"
    assert error(text) == (
        "p.yaml:2: inputs.docs: module 'antigravity' may not be imported from a pipeline file; "
        "if you trust it: --allow antigravity"
    )


def test_what_is_allowed_is_the_module_and_what_lies_in_it() -> None:
    assert read(SMALL, allow=("tests",)) == read(SMALL)
    assert "may not be imported" in error(SMALL, allow=("tests.toy",))
    assert "may not be imported" in error(SMALL, allow=("test",))


def test_a_stage_may_be_named_by_module_where_it_is_allowed() -> None:
    assert read(SMALL.replace("stage: Plus", "stage: tests.toys:Plus")) == read(SMALL)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.toys:Plsu", "cannot import 'tests.toys:Plsu': module 'tests.toys' has no attribute 'Plsu'"),
        ("tests.toys.no:Plus", "cannot import 'tests.toys.no:Plus': No module named"),
        ("tests.toys:numbers", "'tests.toys:numbers' is no stage"),
        ("tests.toys:Any", "stage Any must be a frozen dataclass"),
        ("os:system", "module 'os' may not be imported"),
        (":Plus", "module '' may not be imported"),
    ],
)
def test_what_is_no_stage_is_told_with_its_line(name: str, message: str) -> None:
    found = error(SMALL.replace("stage: Plus", f"stage: '{name}'"))
    assert found.startswith("p.yaml:3: stages.more")
    assert message in found


def test_a_module_that_breaks_while_it_is_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_stage.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    found = error(SMALL.replace("stage: Plus", "stage: broken_stage:X"), allow=(*ALLOW, "broken_stage"))
    assert found.endswith("cannot import 'broken_stage:X': division by zero")


def test_the_order_of_a_dump_is_that_of_the_graph() -> None:
    graph = Graph(
        {"docs": Numbers}, (node("f", Fan(3), a="docs"), node("j", Join(), a="f", b="docs")), {"o": "j"}
    )
    assert dump(graph, TABLE).splitlines() == [
        "ridgeway: 1",
        "inputs:",
        "  docs: tests.toys:Numbers",
        "stages:",
        "  f:",
        "    stage: Fan",
        "    most: 3",
        "    a: docs",
        "  j:",
        "    stage: Join",
        "    a: f",
        "    b: docs",
        "outputs:",
        "  o: j",
    ]


# policies

PLAIN = f"{HEAD}stages:\n  a: {{stage: Plus, a: docs}}\noutputs: {{o: a}}\n"


def test_policies_are_read_and_survive_the_round_trip() -> None:
    made = read(f"{PLAIN}policies: [lengths, steal]\n")
    assert made.policies == ("lengths", "steal")
    assert read(dump(made, TABLE)) == made
    assert read(PLAIN).policies == ()
    assert "policies" not in dump(read(PLAIN), TABLE)


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ("[lengths, stael]", "p.yaml:6: policies.1: no policy named 'stael'; did you mean 'steal'?"),
        ("[{steal: 1}]", "p.yaml:6: policies.0: no policy named "),
        ("[1]", "p.yaml:6: policies.0: no policy named 1"),
        ("steal", "p.yaml:6: policies: expected a list of policies, found 'steal'"),
    ],
)
def test_a_policy_that_is_not_there_is_told_with_file_and_line(policies: str, message: str) -> None:
    assert error(f"{PLAIN}policies: {policies}\n").startswith(message)


def test_a_loop_has_no_policies_of_its_own() -> None:
    assert "unknown key 'policies'" in error(
        LOOPED.replace("outputs: {next", "policies: [steal]\n      outputs: {next")
    )
