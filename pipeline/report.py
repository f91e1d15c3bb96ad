"""What a person sees: progress while a job runs, and tables of answers, counts and scores after it."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import RidgewayError
from pipeline.gates import size

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.evaluate import Scores
    from pipeline.executor import Run
    from pipeline.job import Listen
    from pipeline.run_folder import Summary

PLAIN_SECONDS = 10.0
"""How often progress is printed where there is no terminal to redraw."""
BESIDE_SECONDS = 0.1
"""What takes less beside all batches together is not worth a line."""


@contextmanager
def mistakes_told() -> Iterator[None]:
    """What the user can mend ends with exit code 2 and one line; so does a disk that does not take it."""
    try:
        yield
    except (RidgewayError, OSError) as error:
        if isinstance(error, OSError):
            logging.getLogger("ridgeway").debug("where:", exc_info=True)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def progress(console: Console, quiet: bool) -> Iterator[Listen]:
    """A listener that shows how far the run is: a line, redrawn on a terminal, else printed now and then."""
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with console.status("starting") as status:
            yield lambda run: status.update(_progress(run))
    else:
        yield _Plain(console)


class _Plain:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = time.monotonic()

    def __call__(self, run: Run) -> None:
        if time.monotonic() - self.last >= PLAIN_SECONDS:
            self.last = time.monotonic()
            self.console.print(_progress(run), highlight=False, markup=False, soft_wrap=True)


def _progress(run: Run) -> str:
    """Rows made by each step that has made any, in the order of the steps."""
    steps = [s for s in (run.plan.placements if run.plan else ()) if s in run.tallies]
    made = [f"{step} {run.tallies[step].rows}" for step in steps]
    failed = [f"failed {len(run.failures)}"] if run.failures else []
    return " · ".join([*made, *failed])


def answers_table(console: Console, run_folder: Path, limit: int = 50) -> None:
    """Print the first `limit` answers with their citations."""
    from rich.markup import escape

    from pipeline.records import printable, read_lines

    rows = []
    records = read_lines(run_folder / "answers.jsonl")
    for record, _ in zip(records, range(limit), strict=False):
        answer = record["answer"] if record["status"] == "answered" else f"({record['reason']})"
        cited = "\n".join(_cited(c) for c in record["citations"])
        rows.append([escape(printable(text)) for text in (record["question"], answer, cited)])
    table(console, ("question", "answer", "from"), rows, lines=True)


def _cited(citation: Mapping[str, Any]) -> str:
    quote = " ".join(str(citation["quote"]).split())
    return f"{citation['document']}, page {citation['page']}: “{quote[:80]}{'…' if len(quote) > 80 else ''}”"


def table(
    console: Console,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    lines: bool = False,
    numbers: Iterable[str] | None = None,
) -> None:
    """Print a table; the cells may hold rich's markup.

    `numbers`: columns that stand at the right, in a table without lines that saves columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(show_lines=lines)
    if numbers is not None:
        made = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for name in head:
        made.add_column(name, overflow="fold", justify="right" if name in (numbers or ()) else "left")
    for row in rows:
        made.add_row(*row)
    console.print(made)


def summary_lines(summary: Summary, out: Path) -> list[str]:
    """What became of a job, in a few lines."""
    lines = []
    if summary.reused:
        lines.append(f"index in place: {summary.documents['indexed']} documents, {summary.chunks} chunks")
    else:
        lines += [_counted("documents", summary.documents), _counted("pages", summary.pages)]
        lines.append(f"{summary.chunks} chunks indexed")
    asked = summary.answered + summary.unanswered + summary.failed
    if asked:
        lines.append(
            f"questions: {asked} asked = {summary.answered} answered + {summary.unanswered} unanswered "
            f"+ {summary.failed} failed"
        )
    return [*lines, *_failed(summary, out), f"{summary.seconds:.1f} s; results in {out}"]


def _failed(summary: Summary, out: Path) -> list[str]:
    return [f"{summary.errors} rows failed: see {out / 'errors.jsonl'}"] if summary.errors else []


def _counted(what: str, counts: Mapping[str, int]) -> str:
    line = f"{what}: {counts['read']} read = {counts['indexed']} indexed + {counts['empty']} empty"
    other = counts.get("unsupported", 0)
    return f"{line} + {counts['failed']} failed" + (
        f"; {other} files of other kinds left out" if other else ""
    )


def error_lines(run_folder: Path, limit: int = 10) -> list[str]:
    """The first `limit` errors, a line each."""
    from pipeline.records import printable, read_lines

    found = []
    for record, _ in zip(read_lines(run_folder / "errors.jsonl"), range(limit), strict=False):
        where = record["document"] or record["question"] or "the whole corpus"
        page = f", page {record['page']}" if record["page"] else ""
        found.append(printable(f"{record['category']}: {where}{page}: {record['message']}"))
    return found


def finish(summary: Summary, out: Path, as_json: bool, quiet: bool, answers: bool) -> None:
    """Tell what became of a job; where quiet, what went wrong, to stderr."""
    if as_json:
        print_json({**asdict(summary), "out": str(out)})
    elif quiet:
        said = [*error_lines(out), *_failed(summary, out)]
        print("".join(f"{line}\n" for line in said), end="", file=sys.stderr)
    else:
        show(out, summary, answers)


def show(out: Path, summary: Summary | None = None, answers: bool = True) -> None:
    """Print what a run folder holds."""
    if answers:
        answers_table(console(), out)
    for line in [*error_lines(out), *(_looked_back(out) if summary else [])]:
        print(line)
    for line in summary_lines(summary, out) if summary else []:
        print(line)


def _looked_back(out: Path) -> list[str]:
    """Where the time of a run went, and what was predicted; the table of steps goes to the terminal."""
    record = json.loads((out / "run.json").read_text("utf-8"))
    lines = [*record.get("advice", []), *([record["memory"]] if record.get("memory") else [])]
    if (found := record.get("predicted")) is not None:
        head = ("step", "rows", "batches", "predicted, s", "measured, s")
        if found["steps"]:
            table(console(), head, [_compared(step) for step in found["steps"]])
        took = (found["predicted_seconds"], found["measured_seconds"])
        lines.append(f"predicted {took[0]:.3g} s, measured {took[1]:.3g} s")
    said = [_spoken(step, counted) for step, counted in record.get("counted", {}).items()]
    return [*lines, *said, *_beside(record)]


def _spoken(step: str, found: Mapping[str, float]) -> str:
    """What a model read and said: tokens, how many of them were known or guessed, how answers stopped."""
    tokens, reused, drafted = (found.get(name, 0) for name in ("new_tokens", "reused", "drafted"))
    pace = f", {tokens / found['seconds']:.3g} tokens/s" if found["seconds"] else ""
    known = f" ({reused} reused)" if reused else ""
    right = f" ({found.get('accepted', 0)} of {drafted} drafts right)" if drafted else ""
    stops = ", ".join(f"{n} {s.removeprefix('stop_')}" for s, n in found.items() if s.startswith("stop_"))
    return f"{step}: {found.get('prompt_tokens', 0)} prompt tokens{known}, {tokens} new{right}{pace}; {stops}"


def _beside(record: Mapping[str, Any]) -> Iterator[str]:
    """What went on beside the batches: inputs put together, values handed over."""
    preparing, handing = (sum(s[key] for s in record["stages"]) for key in ("preparing", "handing"))
    if preparing + handing >= BESIDE_SECONDS:
        yield f"beside the batches: {preparing:.1f} s for inputs, {handing:.1f} s for handing over"
    handed = record.get("handed_over", {}).values()
    shared, copied = (sum(h[key] for h in handed) for key in ("shared_bytes", "copied_bytes"))
    if shared or copied:
        yield f"handed over between processes: {size(shared)} shared, {size(copied)} copied"
    for step, h in record.get("handed_over", {}).items():
        if "int8_saved_bytes" in h:
            error = f"off by {h['int8_largest_error']:.2g} of the largest of a row at most"
            yield f"{step}: vectors went as int8, {size(h['int8_saved_bytes'])} less, {error}"


def _compared(step: Mapping[str, Any]) -> list[str]:
    seconds = [step[f"{what}_seconds"] for what in ("predicted", "measured")]
    told = ["-" if s is None else f"{s:.3g}" for s in seconds]
    return [step["step"], str(step["measured_rows"] or 0), str(step["measured_batches"] or 0), *told]


def show_scores(scores: Scores) -> None:
    """Print what a run scored, and where nothing says what is right, what to do."""
    print(
        f"questions: {scores.questions} = {scores.answered} answered + {scores.unanswered} unanswered "
        f"+ {scores.failed} failed"
    )
    if scores.table():
        table(console(), ("score", "value", "questions"), scores.table())
    else:
        print("no question says what is right: give it `answers`, or `gold` documents and pages")


def console(stderr: bool = False) -> Console:
    """The terminal; `stderr` for what is no result, such as progress."""
    from rich.console import Console

    return Console(stderr=stderr)


def print_json(data: Any) -> None:
    """Print one strict JSON document."""
    from pipeline.records import strict

    print(json.dumps(strict(data), indent=1, ensure_ascii=False, allow_nan=False))
