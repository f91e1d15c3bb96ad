"""Where the command line meets the system: logs, signals, clusters, and the job under way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import RidgewayError
from pipeline.report import console, progress

if TYPE_CHECKING:
    from pipeline.run_folder import Summary, Task


def settle() -> None:
    """Set what libraries read when they are imported, and end at once on SIGINT and SIGTERM."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _stop(number: int, frame: Any) -> None:
    """End at once: threads in native code cannot be interrupted, and child processes end with this one.

    Nothing is lost that was finished: answers and errors are flushed line by line, indexes move in whole.
    """
    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{cursor}stopped; what was finished is in the run folder", file=sys.stderr, flush=True)
    os._exit(130)


def speak(verbose: bool, quiet: bool) -> None:
    """Notices of ours go to stderr; those of libraries only with -v."""
    ours = logging.getLogger("ridgeway")
    ours.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    ours.propagate = False
    ours.addHandler(logging.StreamHandler())
    if verbose:
        logging.basicConfig(level=logging.INFO)


def do(task: Task, scheduler: str, quiet: bool, **wishes: Any) -> Summary:
    """Do the job, showing progress. `wishes`: see `pipeline.job.Wishes`."""
    from pipeline.job import Wishes, run_job

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(_client(scheduler)) if scheduler else None
        listen = stack.enter_context(progress(console(stderr=True), quiet))
        return run_job(task, listen, client, Wishes(**wishes))


def _client(scheduler: str) -> Any:
    from distributed import Client

    try:
        return Client(scheduler, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise RidgewayError(f"no Dask scheduler answers at {scheduler!r}: {error}") from None


def made_by(index: Path) -> Path:
    """The pipeline file that an index was made by. Raises RidgewayError."""
    if not all((index / name).is_file() for name in ("pipeline.yaml", "index.json")):
        raise RidgewayError(
            f"no finished index in {str(index)!r}: name a folder that `ridgeway index` or `run` has made"
        )
    return index / "pipeline.yaml"
