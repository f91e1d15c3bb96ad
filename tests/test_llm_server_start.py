"""Starting servers: command lines, health, early ends, hangs; and nobody is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.errors import ModelError, RidgewayError
from pipeline.machine import Device
from pipeline.profiles import NOMINAL
from stages.llm import server_start
from stages.llm.server_command import Launch, command, executable, memory, share
from stages.llm.server_start import Running, start
from stages.shapes import Shape

CPU, GPU = Device("cpu:0", 2), Device("cuda:1")
VLLM = Launch("vllm", Path("models/m"), "m", window=4096, concurrency=64, share=0.4)
LLAMA = Launch("llama.cpp", Path("m.gguf"), "m", window=512, concurrency=4)
SHAPE = Shape(10, 64, 256, 64, 64, 1000, 2048, 10**9, 2 * 10**9, 10**9)

HEALTHY = """
    import http.server, os, subprocess, sys
    port = int(sys.argv[sys.argv.index("--port") + 1])
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in PATHS else 404)
            self.end_headers()
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print("children", os.getpid(), child.pid, flush=True)
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "servers"


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    """No process that a test started is there after it."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert [p for p in psutil.Process().children(recursive=True) if p not in before] == []


def program(folder: Path, code: str) -> dict[str, str]:
    """An environment in which a Python program is the server."""
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable} -S\n{textwrap.dedent(code)}")
    path.chmod(0o755)
    return {**os.environ, "RIDGEWAY_LLAMA_SERVER": str(path)}


def healthy(folder: Path, paths: tuple[str, ...] = ("/health",)) -> dict[str, str]:
    return program(folder, textwrap.dedent(HEALTHY).replace("PATHS", repr(paths)))


def children(logs: Path) -> list[psutil.Process]:
    """The processes that a healthy server says it is."""
    (log,) = logs.glob("llama-server-*.log")
    return [psutil.Process(int(pid)) for pid in log.read_text().split()[1:3]]


def are_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=5)[1]


# command lines


def test_vllm_gets_its_share_of_the_gpu_that_is_planned() -> None:
    argv, env = command(VLLM, "/env/bin/vllm", GPU, 8123, {"PATH": "/bin", "PYTHONPATH": "/ours"})
    assert argv == [
        "/env/bin/vllm", "serve", "models/m", "--served-model-name", "m", "--gpu-memory-utilization", "0.400",
        "--max-model-len", "4096", "--max-num-seqs", "64", "--enable-prefix-caching",
        "--enable-prompt-tokens-details", "--generation-config", "vllm",
        "--host", "127.0.0.1", "--port", "8123",
    ]  # fmt: skip
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["PATH"] == "/env/bin:/bin"
    assert env["HF_HUB_OFFLINE"] == "1", "nothing is downloaded"
    assert "PYTHONPATH" not in env


def test_llama_cpp_gets_a_window_for_each_row() -> None:
    argv, env = command(LLAMA, "llama-server", CPU, 8123, {})
    assert argv == [
        "llama-server", "-m", "m.gguf", "--alias", "m", "-c", "2048", "-np", "4", "-ngl", "0", "-t", "2",
        "--host", "127.0.0.1", "--port", "8123",
    ]  # fmt: skip
    assert env["CUDA_VISIBLE_DEVICES"] == "", "a CPU lane takes no GPU"
    on_gpu, _ = command(LLAMA, "llama-server", GPU, 8123, {})
    assert on_gpu[on_gpu.index("-ngl") + 1] == "999"


@pytest.mark.parametrize(("seen", "one"), [("", "1"), ("5,3", "3"), ("GPU-aa, GPU-bb", "GPU-bb")])
def test_the_gpu_is_counted_among_those_we_see(seen: str, one: str) -> None:
    assert command(VLLM, "vllm", GPU, 1, {"CUDA_VISIBLE_DEVICES": seen})[1]["CUDA_VISIBLE_DEVICES"] == one


def test_a_gpu_that_we_do_not_see_is_refused() -> None:
    with pytest.raises(ModelError, match="cuda:1: CUDA_VISIBLE_DEVICES shows 1"):
        command(VLLM, "vllm", GPU, 1, {"CUDA_VISIBLE_DEVICES": "3"})


def test_vllm_on_a_cpu_is_refused() -> None:
    with pytest.raises(ModelError, match=r"does not run on cpu:0.*'llama\.cpp'"):
        command(VLLM, "vllm", CPU, 1, {})


@pytest.mark.parametrize(
    ("kind", "model", "what"),
    [
        ("vlm", "m", "did you mean 'vllm'"),
        ("vllm", "m.gguf", "needs a folder"),
        ("llama.cpp", "m", "needs a GGUF file"),
    ],
)
def test_a_server_that_cannot_read_the_model_is_refused(kind: str, model: str, what: str) -> None:
    with pytest.raises(RidgewayError, match=what):
        Launch(kind, Path(model), "m", 1, 1)


def test_memory_is_weights_and_cache_and_what_is_beside() -> None:
    token = 2 * 10 * 64 * 2
    assert memory(SHAPE, "vllm", 2048, 8) == 4e9 + 8 * 1024 * token + (3 << 30)
    assert memory(SHAPE, "vllm", 2048, 1) == 4e9 + 2048 * token + (3 << 30), "one whole window at least"
    assert memory(SHAPE, "llama.cpp", 2048, 8) == 1e9 + 8 * 2048 * token + (1 << 29)


def test_the_share_is_that_of_the_device_and_never_all() -> None:
    device = Device("cuda:0", 1, replace(NOMINAL, memory=80e9))
    assert share(20e9, device) == 0.25
    assert share(200e9, device) == 0.9


# programs


def test_a_program_is_named_or_on_the_path(tmp_path: Path) -> None:
    named = program(tmp_path, "")
    assert executable("llama.cpp", named) == str(tmp_path / "llama-server")
    assert executable("llama.cpp", {"PATH": str(tmp_path)}) == str(tmp_path / "llama-server")
    assert executable("vllm", {"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({"PATH": "/none"}, "no 'llama-server' on the path.*set RIDGEWAY_LLAMA_SERVER"),
        ({"PATH": "/none", "RIDGEWAY_LLAMA_SERVER": "/none/x"}, "names '/none/x', which is no program"),
    ],
)
def test_a_program_that_is_not_there_is_told(environ: dict[str, str], what: str) -> None:
    with pytest.raises(ModelError, match=what):
        start(LLAMA, CPU, environ=environ)


# processes


@pytest.mark.parametrize("paths", [("/health",), ("/v1/models",)])
def test_a_server_comes_up_and_goes_with_all_that_it_started(
    tmp_path: Path, cache: Path, paths: tuple[str, ...]
) -> None:
    running = start(LLAMA, CPU, 20, healthy(tmp_path, paths))
    running.check()
    started = children(cache)
    assert all(p.is_running() for p in started)
    running.stop()
    assert are_gone(started)
    assert list(cache.iterdir()) == [], "its log goes with it"
    running.stop()


def test_a_server_that_nobody_holds_any_more_is_stopped(tmp_path: Path, cache: Path) -> None:
    running = start(LLAMA, CPU, 20, healthy(tmp_path))
    started = children(cache)
    del running
    gc.collect()
    assert are_gone(started)


def test_a_server_that_does_not_want_to_end_is_killed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_start, "STOP_SECONDS", 0.2)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + textwrap.dedent(HEALTHY)
    running = start(LLAMA, CPU, 20, program(tmp_path, deaf.replace("PATHS", "('/health',)")))
    started = children(cache)
    running.stop()
    assert are_gone(started)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_server_ends_with_whoever_started_it(tmp_path: Path, cache: Path, number: str) -> None:
    code = f"""
        import os, signal, sys, threading
        from pathlib import Path
        from pipeline.machine import Device
        from stages.llm.server_command import Launch
        from stages.llm.server_start import start
        found = []
        launch = Launch("llama.cpp", Path("m.gguf"), "m", 512, 4)
        thread = threading.Thread(target=lambda: found.append(start(launch, Device("cpu:0"), 20)))
        thread.start()
        thread.join()  # the thread that started it is gone, and it lives on
        found[0].check()
        print("up", flush=True)
        os.kill(os.getpid(), signal.{number})
        signal.pause()
    """
    root = Path(__file__).parents[1]
    starter = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=root, env=healthy(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert starter.stdout is not None
    assert starter.stdout.readline() == "up\n"
    started = children(cache)
    starter.communicate(timeout=20)
    assert are_gone(started)


def test_its_watcher_may_be_killed_too(tmp_path: Path, cache: Path) -> None:
    running = start(LLAMA, CPU, 20, healthy(tmp_path))
    server, child = children(cache)
    running.process.kill()
    assert are_gone([server])
    child.kill()
    with pytest.raises(ModelError, match="has ended"):
        running.check()


def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path, cache: Path) -> None:
    code = "import sys\nfor i in range(50): print('line', i)\nsys.exit('out of memory: lower the share')\n"
    with pytest.raises(
        ModelError, match=r"exit status 1\).*\n(.*\n)*.*out of memory: lower the share"
    ) as caught:
        start(LLAMA, CPU, 20, program(tmp_path, code))
    said = str(caught.value)
    assert "line 49" in said
    assert "line 9\n" not in said, "the end only"
    (log,) = cache.iterdir()
    assert str(log) in said
    assert "line 9\n" in log.read_text(), "all of it is kept"


def test_a_server_that_never_gets_healthy_is_stopped(tmp_path: Path, cache: Path) -> None:
    code = "import time\nprint('loading', flush=True)\ntime.sleep(600)\n"
    with pytest.raises(ModelError, match=r"not healthy within 0\.5 seconds.*\n  loading"):
        start(LLAMA, CPU, 0.5, program(tmp_path, code))
    assert list(cache.iterdir()) == []


def test_a_server_that_dies_later_is_told(tmp_path: Path, cache: Path) -> None:
    running = start(LLAMA, CPU, 20, healthy(tmp_path))
    children(cache)[0].kill()
    running.process.wait(20)
    with pytest.raises(ModelError, match="exit status 137"):
        running.check()


def test_a_forked_copy_stops_nothing(tmp_path: Path) -> None:
    ours: Any = os.pipe()
    process = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=ours[0])
    os.close(ours[0])
    log = tmp_path / "log"
    log.touch()
    server_start._stop(process, ours[1], log, os.getpid() + 1)
    assert process.poll() is None
    Running(process, ours[1], "http://127.0.0.1:1", log).stop()
    assert process.returncode == 0
