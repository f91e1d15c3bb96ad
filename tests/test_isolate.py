"""Child processes that may be killed: a call fails alone, and no process is left."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipeline.errors import RowError
from vision.isolate import Isolated

HERE = "tests.test_isolate"


def never() -> None:
    while True:
        pass


def crash() -> None:
    os._exit(3)


def segfault() -> None:
    os.kill(os.getpid(), 11)


def refuse(message: str) -> None:
    raise RowError("encrypted", message)


def bug() -> None:
    raise KeyError("what")


def hoard() -> bytes:
    return bytes(1 << 40)


def unsendable() -> object:
    return threading.Lock()


def echo(value: object) -> object:
    return value


def pid() -> int:
    return os.getpid()


def modules() -> list[str]:
    return sorted(sys.modules)


def failure(pool: Isolated, target: str, *args: object, seconds: float = 30) -> RowError:
    with pytest.raises(RowError) as caught:
        pool.call(f"{HERE}:{target}", *args, seconds=seconds)
    return caught.value


def test_results_come_back_whole() -> None:
    array = np.arange(3_000_000, dtype=np.uint8)
    assert (Isolated().call(f"{HERE}:echo", array, seconds=30) == array).all()


def test_a_call_that_overruns_is_killed_and_the_child_replaced() -> None:
    pool = Isolated()
    first = pool.call(f"{HERE}:pid", seconds=30)
    error = failure(pool, "never", seconds=0.05)
    assert error.category == "timeout"
    assert "0.05 seconds" in str(error)
    assert not psutil.pid_exists(first)
    assert pool.call(f"{HERE}:pid", seconds=30) != first


@pytest.mark.parametrize(("target", "ending"), [("crash", "exit status 3"), ("segfault", "SIGSEGV")])
def test_a_child_that_dies_costs_its_call_alone(target: str, ending: str) -> None:
    pool = Isolated()
    error = failure(pool, target)
    assert error.category == "worker died"
    assert ending in str(error)
    assert pool.call(f"{HERE}:echo", 1, seconds=30) == 1


def test_errors_of_the_function_arrive_with_their_category() -> None:
    pool = Isolated()
    child = pool.call(f"{HERE}:pid", seconds=30)
    error = failure(pool, "refuse", "needs a password")
    assert (error.category, str(error)) == ("encrypted", "needs a password")
    assert failure(pool, "hoard").category == "memory"
    other = failure(pool, "bug")
    assert (other.category, str(other)) == ("bug", "KeyError: 'what'")
    assert "in bug" in other.__notes__[0]
    assert failure(pool, "unsendable").category == "bug"
    assert pool.call(f"{HERE}:pid", seconds=30) == child


def test_a_limit_of_memory_holds() -> None:
    with pytest.raises(RowError) as caught:
        Isolated(memory=1 << 29).call("builtins:bytes", 1 << 30, seconds=30)
    assert caught.value.category == "memory"


def test_map_keeps_order_and_puts_errors_in_their_place() -> None:
    pool = Isolated(2)
    one, two, three = pool.map("builtins:divmod", [(7, 2), (1, 0), (9, 3)], seconds=30)
    assert (one, three) == ((3, 1), (3, 0))
    assert isinstance(two, RowError)
    assert pool.map("builtins:divmod", [], seconds=30) == []


def test_children_import_nothing_they_are_not_asked_for() -> None:
    loaded = Isolated().call("tests.test_isolate:modules", seconds=30)
    assert not {"torch", "transformers", "pypdfium2", "PIL"} & set(loaded)


def test_no_child_outlives_its_pool() -> None:
    pool = Isolated()
    child = pool.call(f"{HERE}:pid", seconds=30)
    del pool
    gc.collect()
    assert not psutil.pid_exists(child)


def test_a_closed_pool_can_be_used_again() -> None:
    pool = Isolated()
    child = pool.call(f"{HERE}:pid", seconds=30)
    pool.close()
    assert not psutil.pid_exists(child)
    assert pool.call(f"{HERE}:echo", "again", seconds=30) == "again"


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from vision.isolate import Isolated
print("started", flush=True)
pool = Isolated(2)
print(pool.call("os:getpid", seconds=30), flush=True)
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "import os; os._exit(0)", "raise SystemExit(1)"])
def test_a_script_without_a_main_guard_runs_once_and_leaves_no_child(tmp_path: Path, end: str) -> None:
    (tmp_path / "vision").mkdir()  # a folder of the same name where the user stands does no harm
    (tmp_path / "email.py").write_text("raise SystemExit('the wrong module')")
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[1]), end=end))
    done = subprocess.run(
        [sys.executable, "-P", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    started, child = done.stdout.split()
    assert started == "started"
    assert done.stderr == ""
    psutil.wait_procs([psutil.Process(int(child))] if psutil.pid_exists(int(child)) else [], timeout=10)
    assert not psutil.pid_exists(int(child))


@pytest.mark.slow
def test_a_stuck_child_ends_itself_when_its_parent_is_gone() -> None:
    code = (
        "import os, threading; from vision.isolate import Isolated; pool = Isolated();"
        "print(pool.call('os:getpid', seconds=9), flush=True);"
        "threading.Timer(0.2, os._exit, [0]).start();"
        f"pool.call('{HERE}:never', seconds=0.5)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    child = int(done.stdout)
    if psutil.pid_exists(child):
        psutil.wait_procs([psutil.Process(child)], timeout=20)
    assert not psutil.pid_exists(child)
