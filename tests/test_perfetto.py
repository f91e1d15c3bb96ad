import json
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RidgewayError
from pipeline.perfetto import FIRST_THREAD, read, write
from pipeline.timeline import REASONS, Span, Stall, Timeline

LANES = ("cpu:0", "cpu:1", "cuda:0")
RUN = Timeline(
    10.5,
    (
        Span("parse", "cpu:0", 0.0, 2.1, 3, 90.0, 12, 4096.0, 0.5, 0.25, 0.125),
        Span("embed", "cuda:0", 2.125, 4.0, 12),
    ),
    (Stall("cuda:0", 0.0, 2.125, "starved", "parse"), Stall("cpu:0", 2.1, 10.5, "done")),
)

times = st.tuples(*[st.floats(0, 1e5, allow_subnormal=True)] * 2).map(sorted)
words = st.text(st.characters(), max_size=5)


@st.composite
def spans(draw: Any) -> Span:
    (start, end), sizes = draw(times), st.floats(0, 1e300)
    lane, rows = draw(st.sampled_from(LANES)), draw(st.integers(0, 2**70))
    return Span(draw(words), lane, start, end, rows, draw(sizes), draw(st.integers(0, 9)), draw(sizes))


@st.composite
def stalls(draw: Any) -> Stall:
    start, end = draw(times)
    return Stall(draw(st.sampled_from(LANES)), start, end, draw(st.sampled_from(REASONS)), draw(words))


@st.composite
def timelines(draw: Any) -> Timeline:
    found = (draw(st.lists(kind, max_size=8).map(tuple)) for kind in (spans(), stalls()))
    return Timeline(draw(st.floats(0, 1e6)), *found)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path to write to, again and again."""
    return tmp_path_factory.mktemp("traces") / "timeline.json"


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a file, as a strict reader of the whole of it sees them."""
    data = json.loads(path.read_text("ascii"))
    assert data["displayTimeUnit"] == "ms"
    return list(data["traceEvents"])


@given(timelines(), st.none() | timelines())
def test_what_is_written_is_read_back_exactly(file: Path, run: Timeline, predicted: Timeline | None) -> None:
    write(run, file, predicted)
    assert read(file) == run


@given(timelines(), timelines())
def test_on_a_thread_no_two_events_overlap(file: Path, run: Timeline, predicted: Timeline) -> None:
    write(run, file, predicted)
    ends: dict[int, float] = defaultdict(float)
    for e in sorted((e for e in events(file) if e["ph"] == "X"), key=lambda e: (e["ts"], e["dur"])):
        assert e["ts"] >= ends[e["tid"]]
        ends[e["tid"]] = round(e["ts"] + e["dur"], 3)


def test_a_batch_is_a_complete_event_in_microseconds(file: Path) -> None:
    write(RUN, file)
    batch = next(e for e in events(file) if e["name"] == "parse")
    assert {k: v for k, v in batch.items() if k != "args"} == {
        "name": "parse", "cat": "batch", "ph": "X", "ts": 0.0, "dur": 2.1e6, "pid": 1, "tid": FIRST_THREAD,
    }  # fmt: skip
    assert batch["args"] == {
        "step": "parse", "device": "cpu:0", "start": 0.0, "end": 2.1,
        "rows": 3, "length": 90.0, "made": 12, "bytes": 4096.0, "opening": 0.5,
        "preparing": 0.25, "handing": 0.125,
    }  # fmt: skip


def test_a_stall_says_why_on_a_thread_of_its_own(file: Path) -> None:
    write(RUN, file)
    batch = next(e for e in events(file) if e["name"] == "embed")
    stall = next(e for e in events(file) if e["name"] == "starved parse")
    assert (stall["cat"], stall["ts"], stall["dur"]) == ("stall", 0.0, 2.125e6)
    assert (stall["args"]["reason"], stall["args"]["step"]) == ("starved", "parse")
    assert stall["tid"] != batch["tid"]


def names(path: Path, kind: str) -> list[tuple[int, str]]:
    return [(e["pid"], e["args"]["name"]) for e in events(path) if e["name"] == kind]


def test_a_run_is_a_process_and_a_lane_its_threads(file: Path) -> None:
    write(RUN, file, Timeline(1.0, (Span("parse", "cpu:0", 0.0, 1.0, 1),)))
    assert names(file, "process_name") == [(1, "measured"), (2, "predicted")]
    assert names(file, "thread_name") == [
        (1, "cpu:0"), (1, "cpu:0 waits"), (1, "cuda:0"), (1, "cuda:0 waits"), (2, "cpu:0"),
    ]  # fmt: skip


def test_batches_of_a_lane_that_overlap_are_drawn_side_by_side(file: Path) -> None:
    engine = [Span("decode", "cuda:0", start, start + 2.0, 1) for start in (0.0, 1.0, 2.0)]
    write(Timeline(4.0, tuple(engine)), file)
    assert names(file, "thread_name") == [(1, "cuda:0"), (1, "cuda:0 (2)")]
    first, second, third = (e["tid"] for e in events(file) if e["ph"] == "X")
    assert first == third != second


def test_a_number_that_is_not_finite_leaves_the_old_file(file: Path) -> None:
    write(RUN, file)
    with pytest.raises(ValueError, match="JSON"):
        write(Timeline(1.0, (Span("parse", "cpu:0", 0.0, float("nan"), 1),)), file)
    assert read(file) == RUN


@given(st.data())
def test_a_file_that_is_cut_off_is_refused(file: Path, data: Any) -> None:
    write(RUN, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    with pytest.raises(RidgewayError, match=r"timeline\.json"):
        read(file)


@given(st.data())
def test_whatever_the_damage_no_error_is_but_ours(file: Path, data: Any) -> None:
    write(RUN, file)
    bent = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(bent)
    with suppress(RidgewayError):
        assert isinstance(read(file), Timeline)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"rows":3', '"rows":"3"', "rows must be of type int, found '3'"),
        ('"rows":3,', "", "rows must be of type int, found 'None'"),
        ('"end":2.1', '"end":NaN', "end must be of type float, found 'nan'"),
        ('"end":2.1', f'"end":1{"0" * 400}', "end must be of type float"),
        ('"start":0.0,"end":2.1,', '"start":3.0,"end":2.1,', "it ends at 2.1 and starts at 3.0"),
        ('"reason":"starved"', '"reason":"starve"', "did you mean 'starved'"),
        ('"cat":"batch"', '"cat":"bath"', "neither 'batch' nor 'stall'"),
        ('"seconds":10.5', '"seconds":true', "json:1: .* seconds must be of type float"),
        ('"spans":2', '"spans":3', "2 spans instead of 3"),
        ('{"name":"parse"', "[" * 100_000, "too deeply"),
        ('{"name":"parse"', "7", "json:10: no line of a timeline: Extra data at column 2"),
    ],
)
def test_damage_is_named(file: Path, old: str, new: str, said: str) -> None:
    write(Timeline(RUN.seconds, RUN.spans, RUN.stalls[:1]), file)
    text = file.read_text("ascii")
    file.write_text(text.replace(old, new, 1), "ascii")
    assert old in text
    with pytest.raises(RidgewayError, match=said):
        read(file)


def test_a_trace_of_another_program_is_refused(file: Path) -> None:
    file.write_text('[{"name": "x", "ph": "B", "ts": 1}]')
    with pytest.raises(RidgewayError, match="json:1: no line of a timeline"):
        read(file)
