"""A decoder behind a server: what it is asked and says, when it is chosen, and who may not have one."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import BadRowsError, ModelError, RidgewayError
from pipeline.machine import Device
from pipeline.profiles import NOMINAL
from pipeline.roofline import Flow, Work
from pipeline.values import Prompts
from stages.decode import Decode
from stages.generate import Generate
from stages.llm.constrain import Constraint
from stages.llm.decoder import Ask, Said
from stages.llm.engine import Engine
from stages.llm.opened import Opened, split_engine
from stages.llm.sampling import Sampling
from stages.llm.served import Served, preferred, rows, seed_of
from stages.llm.server_client import Server
from stages.llm.server_command import memory
from stages.llm.server_start import Running
from stages.prefill import Prefill
from stages.shapes import named
from tests.fake_server import Fake, Reply, completion, serving
from tests.test_ask_server import COMPLETES
from tests.test_llm_server_start import are_gone, healthy
from tests.tiny_llm import save_tiny, save_tiny_gguf

CPU = Device("cpu:0", 1)
GPU = Device("cuda:0", 1, replace(NOMINAL, memory=80e9))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving() as found:
        yield found


class Alive:
    """A server that runs, or that has ended."""

    def __init__(self, has_ended: bool = False) -> None:
        self._has_ended = has_ended

    def check(self) -> None:
        if self._has_ended:
            raise ModelError("the server has ended")


def decoder(fake: Fake, kind: str = "vllm", has_ended: bool = False) -> Served:
    return Served(Server(fake.url, "tiny", kind=kind), cast(Running, Alive(has_ended)), at_once=4)


def ask(tokens: Sequence[int], row: str = "q", **more: Any) -> Ask:
    return Ask(np.array(tokens, np.int32), 9, (row,), **more)


# what it is asked, and says


def test_a_server_answers_as_a_decoder_does(fake: Fake) -> None:
    fake.answer = lambda body: completion(f" {body['prompt']}\n", len(body["prompt"]), "length")
    found = decoder(fake)
    assert found.answer([ask([5, 9]), ask([7])]) == [
        Said((-1, -1), "[5, 9]", "length"),
        Said((-1,), "[7]", "length"),
    ]
    assert (found.counts.prompt, found.counts.new) == (3, 3)
    assert found.answer([]) == []


def test_what_was_read_before_is_told(fake: Fake) -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}}
    choice = {"index": 0, "text": "yes", "finish_reason": "stop"}
    fake.answer = lambda body: Reply({"choices": [choice], "usage": usage})
    assert decoder(fake).answer([ask(range(8))]) == [Said((-1,), "yes", "end", reused=6)]


def test_sampling_reaches_the_server_and_each_row_has_a_seed_of_its_own(fake: Fake) -> None:
    sampling = Sampling(0.5, 0.9, 3, ("\n",))
    decoder(fake).answer([ask([5], "a", sampling=sampling), ask([5], "b", sampling=sampling)])
    said = {body["seed"]: body for body in fake.asked}
    assert set(said) == {seed_of(3, ("a",)), seed_of(3, ("b",))}
    body = said[seed_of(3, ("a",))]
    assert (body["prompt"], body["max_tokens"], body["temperature"], body["top_p"], body["stop"]) == (
        [5], 9, 0.5, 0.9, ["\n"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("form", "kind", "key", "sent"),
    [
        (
            Constraint("json", '{"type": "object"}'),
            "vllm",
            "structured_outputs",
            {"json": {"type": "object"}},
        ),
        (Constraint("regex", "a+"), "vllm", "structured_outputs", {"regex": "a+"}),
        (Constraint("json", '{"type": "object"}'), "llama.cpp", "json_schema", {"type": "object"}),
    ],
)
def test_a_constraint_goes_to_the_server(
    fake: Fake, form: Constraint, kind: str, key: str, sent: Any
) -> None:
    decoder(fake, kind).answer([ask([5], grammar=form)])
    assert fake.asked[0][key] == sent


def test_a_row_that_fails_fails_alone_and_the_others_are_not_asked_again(fake: Fake) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        if body["prompt"] == [6]:
            return Reply({"error": {"message": "the prompt is too long"}}, 400)
        return completion(str(body["prompt"]))

    fake.answer = answer
    found = decoder(fake)
    asks = [ask([i], str(i)) for i in (5, 6, 7)]
    with pytest.raises(BadRowsError) as caught:
        found.answer(asks)
    assert {row: e.category for row, e in caught.value.rows.items()} == {("6",): "too long"}
    assert [s.text for s in found.answer([asks[0], asks[2]])] == ["[5]", "[7]"]
    assert len(fake.asked) == 3
    assert found.counts.prompt == 2
    found.answer(asks[:1])
    assert len(fake.asked) == 4, "what was kept is given once"


def test_a_server_that_has_ended_ends_the_run(fake: Fake) -> None:
    fake.answer = lambda body: Reply({"error": {"message": "no"}}, 400)
    with pytest.raises(ModelError, match="the server has ended"):
        decoder(fake, has_ended=True).answer([ask([5])])


# who is chosen


def installed(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {"PATH": str(tmp_path)}


def test_auto_on_a_gpu_is_vllm_where_it_is_installed(tmp_path: Path, folder: str) -> None:
    found = preferred(Generate(folder), GPU, installed(tmp_path))
    assert (found.server, found.why) == ("vllm", "it is installed, and takes 3.0 GiB of its 74.5 GiB")
    assert preferred(Generate(folder), GPU, {"PATH": "/none"}).server == ""
    assert "RIDGEWAY_VLLM" in preferred(Generate(folder), GPU, {"PATH": "/none"}).why


@pytest.mark.parametrize(
    ("device", "parameters", "why"),
    [
        (CPU, {}, "CUDA devices only"),
        (GPU, {"dtype": "float32"}, "dtype 'float32'"),
        (GPU, {"drafts": 4}, "drafts is for the engine"),
        (GPU, {"cache_gib": 1.0}, "cache_gib is for the engine"),
        (GPU, {"quantize": "int8"}, "quantize is for the engine"),
        (Device("cuda:0", 1, replace(NOMINAL, memory=3 << 30)), {}, r"vLLM takes 3\.0 GiB of its 3\.0 GiB"),
        (Device("cuda:2", 1, GPU.profile, share="cuda:0"), {}, "a part of cuda:0"),
    ],
)
def test_auto_is_the_engine_where_vllm_would_not_do(
    tmp_path: Path, folder: str, device: Device, parameters: dict[str, Any], why: str
) -> None:
    import re

    found = preferred(Generate(folder, **parameters), device, installed(tmp_path))
    assert found.server == ""
    assert re.search(why, found.why)


@pytest.mark.parametrize("half", [Prefill, Decode])
def test_the_halves_of_a_model_have_no_server(tmp_path: Path, folder: str, half: Any) -> None:
    assert preferred(half(folder), GPU, installed(tmp_path)).server == ""
    with pytest.raises(ModelError, match="use Generate instead of Prefill and Decode"):
        half(folder, decoder="vllm")


def test_half_of_a_model_that_is_served_is_refused(fake: Fake, folder: str) -> None:
    state = Opened(decoder(fake), None, 128, 1, lambda form: form)
    with pytest.raises(ModelError, match="'Served', which does not split it; use Generate"):
        split_engine(state, Prefill(folder))


def test_a_decoder_that_is_asked_for_is_taken(folder: str) -> None:
    nothing = {"PATH": "/none"}
    assert preferred(Generate(folder, decoder="llama.cpp"), CPU, nothing).server == "llama.cpp"
    assert preferred(Generate(folder, decoder="engine"), GPU, nothing).server == ""


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"decoder": "vlm"}, "did you mean 'vllm'"),
        ({"decoder": "vllm", "dtype": "float32"}, "leave dtype or decoder out"),
        ({"decoder": "vllm", "drafts": 2}, "are for the engine"),
        ({"decoder": "llama.cpp", "regex": "a+"}, "only vLLM follows a regex"),
    ],
)
def test_what_a_server_cannot_do_is_told_at_once(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(RidgewayError, match=what):
        Generate("m", **wrong)


def test_rows_in_flight_are_as_many_as_windows_fit() -> None:
    assert [rows("llama.cpp", w) for w in (128, 8192, 32768, 131072, 0)] == [8, 8, 2, 1, 8]
    assert rows("vllm", 131072) == 64


# what a plan is told


def test_a_plan_is_told_who_answers_where_and_why(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.delenv("RIDGEWAY_VLLM", raising=False)
    (told,) = Generate(folder).choices(CPU)
    assert (told.what, told.chosen) == ("decoder", "engine")
    assert told.why == "engine answers on cpu:0: servers are chosen on CUDA devices only"
    assert Generate(folder, decoder="reference").choices(CPU)[0].chosen == "reference"


def test_a_decoder_in_one_piece_is_never_cut(folder: str) -> None:
    assert [Generate(folder, decoder=d).splits for d in ("auto", "engine", "vllm", "transformers")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_server_takes_what_the_model_takes(folder: str) -> None:
    work = Work(8, {"prompts": Flow(8, 50)})
    served, own = Generate(folder, decoder="vllm").cost(work), Generate(folder).cost(work)
    assert (served.flops, served.traffic, served.output) == (own.flops, own.traffic, own.output)
    assert served.resident == memory(named(folder), "vllm", 128, 64)
    assert served.scratch == 0
    assert served.scalar < own.scalar, "no Python in its steps"


# a server that runs


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program for both servers, that says what it was asked; the folder of its logs."""
    program = Path(healthy(tmp_path)["RIDGEWAY_LLAMA_SERVER"])
    program.write_text(program.read_text().replace("\nchild =", COMPLETES.replace("\n    ", "\n"), 1))
    monkeypatch.setenv("RIDGEWAY_LLAMA_SERVER", str(program))
    monkeypatch.setenv("RIDGEWAY_VLLM", str(program))
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "servers"


def prompts(*tokens: Sequence[int]) -> Prompts:
    held: tuple[NDArray[np.int32], ...] = tuple(np.array(t, np.int32) for t in tokens)
    n = len(tokens)
    return Prompts(tuple((f"q{i}",) for i in range(n)), held, ((),) * n, (0,) * n)


def served_by(stage: Generate, device: Device, logs: Path) -> None:
    """Answers come from a server on the device, which ends with the stage's state."""
    import psutil

    state = stage.open(device)
    assert isinstance(state.decoder, Served)
    assert state.window == 128 or stage.decoder == "llama.cpp"
    (log,) = logs.iterdir()
    started = [psutil.Process(int(pid)) for pid in log.read_text().split()[1:3]]
    said = stage.run(state, prompts([5, 6], []))
    assert said.texts == (f"{stage.model} [5, 6]", "")
    assert said.stops == ("end", "skipped")
    del state
    gc.collect()
    assert are_gone(started)


def test_auto_on_a_gpu_starts_vllm_and_says_so(
    logs: Path, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ridgeway"):
        served_by(Generate(folder), GPU, logs)
    assert f"model {folder} on cuda:0: vllm answers: it is installed" in caplog.text


def test_llama_cpp_is_started_where_it_is_asked_for(logs: Path, tmp_path: Path) -> None:
    served_by(
        Generate(str(save_tiny_gguf(tmp_path / "tiny.gguf")), decoder="llama.cpp", max_new_tokens=8),
        CPU,
        logs,
    )


def test_auto_on_a_cpu_starts_none(logs: Path, folder: str) -> None:
    assert isinstance(Generate(folder).open(CPU).decoder, Engine)
    assert not logs.exists()


def test_a_model_that_the_server_cannot_read_is_told(logs: Path, folder: str) -> None:
    with pytest.raises(ModelError, match="needs a GGUF file"):
        Generate(folder, decoder="llama.cpp").open(CPU)
    assert not logs.exists()
