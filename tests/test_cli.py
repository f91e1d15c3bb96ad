from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline import cli, perfetto, report
from pipeline.machine import Machine
from pipeline.records import read_lines
from tests.fakes import PIPELINE, write

ROOT = Path(__file__).parent.parent
ALLOW = ("--allow", "tests.fakes")

Call = Callable[..., int]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command line here, from the project's root; returns the exit code."""

    def run(*words: str | Path) -> int:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", ["ridgeway", *map(str, words)])
        old = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        finally:
            for number, handler in old:
                signal.signal(number, handler)
        return 0

    return run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a pipeline, documents and questions; the run folder will be `run`."""
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    write(tmp_path / "documents", doc="one\ntwo")
    (tmp_path / "questions.txt").write_text("two\none\n")
    return tmp_path


def words(place: Path, *more: str | Path) -> tuple[str | Path, ...]:
    return (
        "run", place / "pipeline.yaml", "-d", place / "documents", "--questions", place / "questions.txt",
        "--out", place / "run", *ALLOW, *more,
    )  # fmt: skip


def answers(place: Path) -> list[Any]:
    return [r["answer"] for r in read_lines(place / "run" / "answers.jsonl")]


def test_a_run_answers_in_order_and_shows_a_table(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words(place)) == 0
    assert answers(place) == ["page 2", "page 1"]
    said = capsys.readouterr().out
    assert "doc.txt, page 2" in said
    assert "documents: 1 read = 1 indexed + 0 empty + 0 failed" in said


def test_some_failed_rows_give_exit_code_1(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place / "documents", bad="x")
    assert call(*words(place)) == 1
    assert "unreadable: bad.txt: cannot be read" in capsys.readouterr().out
    assert answers(place) == ["page 2", "page 1"]


def test_json_is_one_strict_document(call: Call, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words(place, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["answered"] == 2


def test_quiet_says_nothing_where_nothing_went_wrong(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words(place, "-q")) == 0
    assert capsys.readouterr() == ("", "")


def test_quiet_says_on_stderr_what_went_wrong(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place / "documents", bad="x")
    assert call(*words(place, "-q")) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("unreadable: bad.txt: cannot be read\n1 rows failed: see ")


def test_progress_is_no_result(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "PLAIN_SECONDS", 0.0)
    assert call(*words(place)) == 0
    said = capsys.readouterr()
    assert "pages 2 · texts 2 · words 2 · corpus 1" in said.err
    assert "pages 2 ·" not in said.out


def test_parquet_holds_the_same_answers(call: Call, place: Path) -> None:
    import pyarrow.parquet

    assert call(*words(place, "--parquet", "-q")) == 0
    table = pyarrow.parquet.read_table(place / "run" / "answers.parquet")
    assert table.column("answer").to_pylist() == answers(place)


def test_index_then_ask(call: Call, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ("index", place / "pipeline.yaml", "-d", place / "documents", "--out", place / "run", *ALLOW)
    assert call(*made) == 0
    assert "2 chunks indexed" in capsys.readouterr().out
    assert call("ask", "two", "--index", place / "run", *ALLOW, "--json") == 0
    assert json.loads(capsys.readouterr().out)["citations"][0]["page"] == 2


def test_questions_can_be_asked_of_an_index_elsewhere(call: Call, place: Path) -> None:
    call("index", place / "pipeline.yaml", "-d", place / "documents", "--out", place / "index", *ALLOW, "-q")
    (place / "documents" / "doc.txt").unlink()
    asked = ("--questions", place / "questions.txt", "--index", place / "index", "--out", place / "run")
    assert call("run", place / "pipeline.yaml", *asked, *ALLOW, "-q") == 0
    assert answers(place) == ["page 2", "page 1"]


def test_a_run_folder_can_be_moved(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*words(place, "-q")) == 0
    (place / "run").rename(place / "moved")
    assert call("ask", "two", "--index", place / "moved", *ALLOW, "--json") == 0
    assert json.loads(capsys.readouterr().out)["answer"] == "page 2"
    assert str(place) not in (place / "moved" / "pipeline.yaml").read_text()


def test_asking_where_no_index_was_finished_says_so(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "run").mkdir()
    (place / "run" / "pipeline.yaml").write_text(PIPELINE)  # as a run leaves it that was stopped
    assert call("ask", "two", "--index", place / "run", *ALLOW) == 2
    assert "no finished index in" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_no_traceback(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("draw", "configs/document_qa.yaml", "--svg", place / "nowhere" / "a.svg") == 2
    assert capsys.readouterr().err.startswith("error: [Errno 2] No such file or directory: ")


def test_scores_need_to_know_what_is_right(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words(place, "-q")) == 0
    assert call("eval", place / "run", "--questions", place / "questions.txt") == 0
    said = capsys.readouterr().out
    assert said.startswith("questions: 2 = 2 answered + 0 unanswered + 0 failed\n")
    assert "no question says what is right" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--set", "stages.answers.batsh=2"), "did you mean 'batch'?"),
        (("--set", "stages.answers.device=cuda:9"), "no device 'cuda:9' on this machine"),
        (("--questions", "nowhere.txt"), "nowhere.txt"),
        (("-d", "no-such-folder"), "no-such-folder"),
        (("--scheduler", "nonsense"), "no Dask scheduler answers at 'nonsense'"),
        (("--out", "/dev/null/run"), "Not a directory: '/dev/null/run'"),
    ],
)
def test_mistakes_of_the_user_end_with_2_and_one_line(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, ...], message: str
) -> None:
    assert call(*words(place, *change)) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert said.startswith("error: ")
    assert "\n" not in said


def test_modules_that_were_not_allowed_are_not_imported(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("check", place / "pipeline.yaml") == 2
    assert f"{place / 'pipeline.yaml'}:5" in capsys.readouterr().err


def test_check_and_draw_and_stages_and_schema_say_what_they_should(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("configs/document_qa.yaml", "configs/multi_step_qa.yaml"):
        assert call("check", file) == 0
        assert "well formed" in capsys.readouterr().out
        assert call("draw", file) == 0
        assert "flowchart" in capsys.readouterr().out
        assert call("draw", file, "--svg", tmp_path / "picture.svg") == 0
        assert (tmp_path / "picture.svg").read_text().startswith("<svg")
    assert call("stages", "--json") == 0
    assert {"Search", "Generate"} <= {s["name"] for s in json.loads(capsys.readouterr().out)}
    assert call("schema") == 0
    assert "$schema" in json.loads(capsys.readouterr().out)


def test_checking_a_file_loads_neither_torch_nor_dask(place: Path) -> None:
    code = (
        "import sys; sys.argv = ['ridgeway', 'check', 'configs/document_qa.yaml']\n"
        "from pipeline.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'distributed', 'transformers', 'faiss'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"


# plans and simulations

MACHINES = ("--machine", "cpu-gpu")


def looked(place: Path, command: str, *more: str | Path) -> tuple[str | Path, ...]:
    return (command, place / "pipeline.yaml", *ALLOW, *more)


def test_a_plan_says_where_each_stage_would_run_and_why(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*looked(place, "plan", *MACHINES, "--deadline", "1000")) == 0
    said = capsys.readouterr().out
    assert "answers" in said
    assert "on cpu-gpu\n" in said
    assert "nothing is known of pages, texts" in said
    assert "deadline: kept: the run needs " in said
    assert not (ROOT / "run" / "run.json").exists(), "nothing ran"


def test_a_plan_in_json_is_one_document(call: Call, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("-d", place / "documents", "--questions", place / "questions.txt")
    assert call(*looked(place, "plan", *given, "--json", "--policy", "steal+guided")) == 0
    told = json.loads(capsys.readouterr().out)
    assert {s["step"]: s["rows"] for s in told["steps"]}["answers"] == 2
    assert told["policies"] == ["steal", "guided"]


def test_the_plan_of_the_shipped_pipeline_says_whether_to_cut_the_language_model(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("plan", "configs/document_qa.yaml", *MACHINES, "--rows", "20") == 0
    said = capsys.readouterr().out
    assert "said is not cut: all phases on cuda:0 take " in said
    assert " cross from cuda:0 to cpu:0 in " in said
    assert not [line for line in said.partition("predicted:")[0].splitlines() if len(line) > 80]


def test_a_simulation_compares_policies(call: Call, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*looked(place, "simulate", *MACHINES, "--policy", "none", "--policy", "steal", "--json")) == 0
    assert [s["policies"] for s in json.loads(capsys.readouterr().out)] == ["none", "steal"]


def test_a_simulation_may_lose_a_lane_and_keep_its_timeline(call: Call, place: Path) -> None:
    lost = ("--lose", "cuda:0@1", "--trace", place / "trace.json", "--rows", "20")
    assert call(*looked(place, "simulate", *MACHINES, *lost)) == 0
    assert {s.step for s in perfetto.read(place / "trace.json").spans} >= {"pages", "answers"}


@pytest.mark.parametrize(
    ("command", "change", "message"),
    [
        ("plan", ("--machine", "cpu-gp"), "no machine 'cpu-gp', and no such file; did you mean 'cpu-gpu'"),
        ("plan", ("--policy", "stael"), "no policy named 'stael'; did you mean 'steal'?"),
        ("plan", ("--deadline", "0"), "a deadline is above 0 s and finite"),
        ("plan", ("--set", "stages.answers.device=cuda:9"), "pinned to device 'cuda:9'"),
        ("simulate", ("--policy", "steal", "--policy", "stael"), "did you mean 'steal'?"),
        ("simulate", (*MACHINES, "--lose", "cuda:9@1"), "no device 'cuda:9'; did you mean 'cuda:0'?"),
        ("simulate", (*MACHINES, "--lose", "cuda:0@soon"), "'soon' is no number of seconds"),
        (
            "simulate",
            ("--trace", "t.json", "--policy", "steal", "--policy", "none"),
            "--trace keeps one timeline",
        ),
        ("draw", ("--machine", "nowhere"), "no machine 'nowhere'"),
    ],
)
def test_mistakes_in_looking_ahead_end_with_2_and_one_line(
    call: Call,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    change: tuple[str, ...],
    message: str,
) -> None:
    assert call(*looked(place, command, *change)) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert said.startswith("error: ")
    assert "\n" not in said


def test_check_refuses_a_policy_that_is_not_there(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "pipeline.yaml").write_text(f"{PIPELINE}policies: [stael]\n")
    assert call(*looked(place, "check")) == 2
    said = capsys.readouterr().err
    assert f"{place / 'pipeline.yaml'}:11: policies.0: no policy named 'stael'; did you mean 'steal'?" in said


def test_a_picture_can_say_where_stages_would_run(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*looked(place, "draw", "--plan")) == 0
    assert "cpu:0" in capsys.readouterr().out
    assert call("draw", "configs/document_qa.yaml", "--machine", "h200", "--rows", "5") == 0
    assert "said<br/>Generate<br/>cuda:0 " in capsys.readouterr().out
    assert call(*looked(place, "draw")) == 0
    assert "cpu:0" not in capsys.readouterr().out


def test_calibrating_prints_and_keeps_what_was_measured(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline import machine_file, planning

    asked: list[bool] = []
    machine = machine_file.load("cpu-gpu")

    def measured(again: bool = False) -> Machine:
        asked.append(again)
        return machine

    monkeypatch.setattr(planning, "measured", measured)
    assert call("calibrate", "--out", place / "machine.yaml") == 0
    assert "from the end of a batch to the next: 6.0 ms" in capsys.readouterr().out
    assert machine_file.load(place / "machine.yaml") == machine
    assert call("calibrate", "--json") == 0
    assert [d["device"] for d in json.loads(capsys.readouterr().out)] == list(machine.names)
    assert asked == [True, True]


def test_a_run_that_would_miss_its_deadline_does_not_begin(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words(place, "-q")) == 0
    before = answers(place)
    capsys.readouterr()
    assert call(*words(place, "--reindex", "--deadline", "1e-6")) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: the deadline may be missed: the run needs ")
    assert "segment '" in said
    assert "\n" not in said
    assert answers(place) == before
    assert call(*words(place, "-q", "--reindex", "--deadline", "1e6")) == 0


def test_a_run_follows_the_policies_that_are_named(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words(place, "-q", "--policy", "steal+guided")) == 0
    assert answers(place) == ["page 2", "page 1"]
    assert call(*words(place, "--policy", "stael")) == 2
    assert "did you mean 'steal'?" in capsys.readouterr().err


def test_a_run_tells_what_was_predicted_and_where_time_went(
    call: Call, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words(place)) == 0
    said = capsys.readouterr().out
    assert "predicted " in said
    assert " s, measured " in said
    assert "cpu:0 " in said


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_ends_at_once_keeps_answers_and_leaves_no_child(
    place: Path, stop: signal.Signals
) -> None:
    blocking = PIPELINE.replace("tests.fakes:Reply", "tests.fakes:Block").replace(
        "batch: 1", 'batch: 1, mark: "${MARK}"'
    )
    (place / "pipeline.yaml").write_text(blocking)
    (place / "questions.txt").write_text("one\nwait\n")
    environment = {**os.environ, "MARK": str(place / "mark")}
    command = [sys.executable, "-m", "pipeline.cli", *map(str, words(place))]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while not ((place / "mark").exists() and answers(place)):
            assert process.poll() is None, process.stderr and process.stderr.read()
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop)
        _, said = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "stopped" in said
    psutil.wait_procs(children, timeout=10)
    assert not any(c.is_running() for c in children)
    assert answers(place) == ["page 1"]
