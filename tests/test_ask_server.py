"""The stage that asks a server: the same form as Generate's answers, one row's faults, its own server."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config import load
from pipeline.errors import BadRowsError, GraphError, ModelError, RidgewayError
from pipeline.graph import Graph, node
from pipeline.local import run_local
from pipeline.machine import Device
from pipeline.roofline import Flow, Work
from pipeline.stage import accelerated, check_portable, ports, state_key
from pipeline.values import Completions, Prompts
from stages import STAGES
from stages.ask_server import AskServer
from stages.generate import Generate
from stages.llm.server_command import memory
from stages.prompt import WritePrompt
from stages.shapes import named
from tests.fake_server import Fake, Reply, completion, serving
from tests.test_llm_server_start import are_gone, children, healthy
from tests.tiny_llm import save_tiny, save_tiny_gguf

CPU = Device("cpu:0", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving() as found:
        yield found


def as_rows(*tokens: Sequence[int]) -> Prompts:
    n = len(tokens)
    held: tuple[NDArray[np.int32], ...] = tuple(np.array(t, np.int32) for t in tokens)
    return Prompts(tuple((f"q{i}",) for i in range(n)), held, ((),) * n, (0,) * n)


def run(stage: AskServer, prompts: Prompts, state: Any = None) -> Completions:
    return stage.run(state or stage.open(CPU), prompts)


def answered_by(generate: Generate) -> Any:
    """A server that says what the model in this process says."""
    state, lock = generate.open(CPU), threading.Lock()

    def answer(body: dict[str, Any]) -> Reply:
        with lock:
            said = generate.run(state, as_rows(body["prompt"]))
        reason = "stop" if said.stops[0] == "end" else "length"
        return completion(f" {said.texts[0]}\n", said.new_tokens[0], reason, read=0)

    return answer


def test_answers_have_the_form_of_those_of_a_model_in_this_process(fake: Fake, folder: str) -> None:
    local = Generate(folder, max_new_tokens=7, dtype="float32")
    prompts = as_rows([5, 9, 40], [], [100, 7], list(range(3, 60)))
    fake.answer = answered_by(local)
    served = run(AskServer(folder, fake.url, max_new_tokens=7), prompts)
    expected = local.run(local.open(CPU), prompts)
    assert served == expected
    assert expected.stops == ("length", "skipped", "length", "length")


def test_rows_without_tokens_are_not_asked(fake: Fake) -> None:
    out = run(AskServer("tiny", fake.url), as_rows([], []))
    assert (out.stops, out.texts, out.new_tokens) == (("skipped",) * 2, ("",) * 2, (0, 0))
    assert fake.asked == []


def test_what_was_asked_for_reaches_the_server(fake: Fake) -> None:
    stage = AskServer("tiny", fake.url, 9, temperature=0.5, top_p=0.9, stop=("\n",), key_env="")
    run(stage, as_rows([5, 6]))
    (asked,) = fake.asked
    del asked["seed"]
    assert asked == {
        "model": "tiny", "prompt": [5, 6], "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "stop": ["\n"],
    }  # fmt: skip


def test_a_row_has_a_seed_of_its_own_whoever_is_asked_along(fake: Fake) -> None:
    stage = AskServer("tiny", fake.url, temperature=1.0, concurrency=1)
    run(stage, as_rows([5], [5]))
    run(stage, as_rows([5], [5]).take([1]))
    run(AskServer("tiny", fake.url, temperature=1.0, seed=1), as_rows([5]))
    first, second, alone, other = (body["seed"] for body in fake.asked)
    assert second == alone
    assert len({first, second, other}) == 3
    assert all(0 <= seed < 2**31 for seed in (first, second, other))


def test_no_more_requests_at_once_than_concurrency(fake: Fake) -> None:
    too_many = threading.Barrier(3)

    def answer(body: Any) -> Reply:
        with contextlib.suppress(threading.BrokenBarrierError):
            too_many.wait(0.2)  # the first two wait in vain for a third
        return completion("yes")

    fake.answer = answer
    run(AskServer("tiny", fake.url, concurrency=2), as_rows(*[[5]] * 8))
    assert fake.most == 2


# text


def test_a_prompt_as_text_is_what_its_tokens_say(fake: Fake, folder: str) -> None:
    writer = WritePrompt(folder)
    tokens = writer.open(CPU).tokens("Is <|im_end|> a word?")
    run(AskServer("tiny", fake.url, send="text", tokenizer=folder), as_rows(tokens.tolist()))
    said = "<|im_start|>user\nIs <|im_end|> a word?<|im_end|>\n"
    assert fake.asked[0]["prompt"] == said


def test_what_the_servers_tokenizer_puts_first_is_not_sent(fake: Fake, folder: str) -> None:
    stage = AskServer(folder, fake.url, send="text", concurrency=1)
    state = stage.open(CPU)
    assert state.writer is not None
    text = state.writer.tokenizer.decode
    run(stage, as_rows([1, 5], [5, 1]), replace(state, writer=replace(state.writer, begin=(1,))))
    assert [body["prompt"] for body in fake.asked] == [text([5]), text([5, 1])]


# faults


def test_a_bad_row_fails_alone_and_the_others_are_not_asked_again(fake: Fake) -> None:
    refusal = Reply({"error": {"message": "the prompt exceeds the context length"}}, 400)
    fake.answer = lambda body: refusal if body["prompt"] == [9] else completion(str(body["prompt"]))
    stage, prompts = AskServer("tiny", fake.url), as_rows([5], [9], [6])
    state = stage.open(CPU)
    with pytest.raises(BadRowsError) as caught:
        run(stage, prompts, state)
    assert {i: e.category for i, e in caught.value.rows.items()} == {("q1",): "too long"}
    assert len(fake.asked) == 3
    assert run(stage, prompts.take([0, 2]), state).texts == ("[5]", "[6]")
    assert len(fake.asked) == 3
    assert run(stage, prompts.take([0]), state).texts == ("[5]",)
    assert len(fake.asked) == 4, "what was given is not kept"


def test_answers_that_are_kept_belong_to_stage_row_and_prompt(fake: Fake) -> None:
    fake.answer = lambda body: Reply({"error": "bad"}, 400) if body["prompt"] == [9] else completion("yes")
    stage = AskServer("tiny", fake.url)
    state = stage.open(CPU)
    with pytest.raises(BadRowsError):
        run(stage, as_rows([5], [9]), state)
    run(AskServer("tiny", fake.url, max_new_tokens=3), as_rows([5]), state)
    run(stage, as_rows([6]), state)
    assert [body["prompt"] for body in fake.asked[2:]] == [[5], [6]]


def test_the_others_go_on_in_a_whole_graph(fake: Fake) -> None:
    fake.answer = lambda body: Reply({"error": "bad"}, 400) if body["prompt"] == [9] else completion("yes")
    graph = Graph(
        {"prompts": Prompts},
        (node("said", AskServer("tiny", fake.url), prompts="prompts"),),
        {"said": "said"},
    )
    outcome = run_local(graph, {"prompts": as_rows([5], [9], [6])})
    assert len(fake.asked) == 3
    assert [r.rows.ids for r in outcome["said"]] == [(("q0",),), (), (("q2",),)]
    assert [(f.id, f.category) for f in outcome.failures] == [(("q1",), "server")]


def test_a_server_that_is_not_there_ends_the_run_when_the_stage_is_opened() -> None:
    with serving() as gone:
        pass
    with pytest.raises(ModelError, match="no server answers"):
        AskServer("tiny", gone.url).open(CPU)


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"send": "token"}, "send is 'token'; did you mean 'tokens'"),
        ({"start": "vlm"}, "start is 'vlm'; did you mean 'vllm'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"stop": ("",)}, "stop is"),
        ({"url": "here"}, "write it as"),
        ({"start": "vllm", "url": "http://here"}, "leave them or it out"),
        ({"window": 4096}, "give start"),
        ({"regex": "a+"}, "only vLLM follows one"),
        ({"json_schema": "{"}, "no JSON"),
        ({"start": "vllm", "window": 48}, "the answer alone may take 48"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters: dict[str, Any], what: str) -> None:
    with pytest.raises(RidgewayError, match=what):
        AskServer("tiny", **parameters)


def test_prompts_that_leave_too_little_room_are_refused() -> None:
    AskServer("m", max_new_tokens=64).check((WritePrompt("m", reserve=64),))
    with pytest.raises(GraphError, match="WritePrompt keeps only 32"):
        AskServer("m").check((WritePrompt("m", reserve=32),))


# what it says about itself


def test_it_stands_wherever_generate_stands_and_travels() -> None:
    assert ports(AskServer) == ports(Generate)
    check_portable(AskServer("m"), "ask")


def test_stages_that_differ_in_what_they_ask_share_the_server() -> None:
    assert state_key(AskServer("m", max_new_tokens=8, seed=3)) == state_key(AskServer("m"))
    assert state_key(AskServer("m", "http://there")) != state_key(AskServer("m"))


def test_only_a_server_of_our_own_wants_an_accelerator() -> None:
    assert not accelerated(AskServer("m"))
    assert accelerated(AskServer("m", start="vllm"))


def test_the_identity_is_the_server_or_the_model_that_is_started(folder: str) -> None:
    assert AskServer("m", "http://there:1/v1/").identity() == {"server": "http://there:1"}
    assert AskServer(folder, start="vllm").identity() == Generate(folder).identity()


def test_a_server_elsewhere_takes_nothing_of_the_device_but_ordinary_code() -> None:
    found = AskServer("no-such-model").cost(Work(10, {"prompts": Flow(10, 500)}))
    assert (found.flops, found.traffic, found.resident) == (0, 0, 0)
    assert found.scalar > 0


def test_a_server_of_our_own_takes_what_the_model_takes(folder: str) -> None:
    stage = AskServer(folder, max_new_tokens=9, start="vllm", concurrency=8)
    few, many = (stage.cost(Work(n, {"prompts": Flow(n, 50)})) for n in (8, 16))
    alone = Generate(folder, max_new_tokens=9).cost(Work(8, {"prompts": Flow(8, 50)}))
    assert (few.flops, few.traffic) == (alone.flops, alone.traffic)
    assert many.traffic == 2 * few.traffic, "the next eight read the weights again"
    assert few.resident == many.resident == memory(named(folder), "vllm", 128, 8)


def test_it_can_be_written_in_a_pipeline_file(tmp_path: Path) -> None:
    file = tmp_path / "ask.yaml"
    file.write_text(
        "ridgeway: 1\ninputs: {prompts: Prompts}\nstages:\n"
        "  said: {stage: AskServer, prompts: prompts, model: m, url: 'http://there', stop: [E], send: text}\n"
        "outputs: {said: said}\n"
    )
    assert load(file, STAGES, {})["said"].stage == AskServer("m", "http://there", stop=("E",), send="text")


# a server of our own

COMPLETES = """
        def do_POST(self):
            import json
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choice = {"text": f"{asked['model']} {asked['prompt']}", "finish_reason": "stop"}
            said = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)
    child ="""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama-server that says what it was asked; the folder of its logs."""
    environ = healthy(tmp_path)
    program = Path(environ["RIDGEWAY_LLAMA_SERVER"])
    program.write_text(program.read_text().replace("\nchild =", COMPLETES.replace("\n    ", "\n"), 1))
    monkeypatch.setenv("RIDGEWAY_LLAMA_SERVER", str(program))
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "servers"


def test_a_server_is_started_for_the_stage_and_ends_with_its_state(own: Path, tmp_path: Path) -> None:
    gguf = str(save_tiny_gguf(tmp_path / "tiny.gguf"))
    stage = AskServer(gguf, start="llama.cpp", concurrency=2)
    state = stage.open(CPU)
    started = children(own)
    out = run(stage, as_rows([5, 6]), state)
    assert out.texts == (f"{gguf} [5, 6]",)
    assert out.new_tokens == (0,)
    del state
    gc.collect()
    assert are_gone(started)


def test_a_server_of_our_own_that_dies_ends_the_run(own: Path, tmp_path: Path) -> None:
    stage = AskServer(str(save_tiny_gguf(tmp_path / "tiny.gguf")), start="llama.cpp", seconds=1)
    state = stage.open(CPU)
    children(own)[0].kill()
    assert state.running is not None
    state.running.process.wait(20)
    with pytest.raises(ModelError, match="the server has ended"):
        run(stage, as_rows([5]), state)


def test_a_model_that_the_server_cannot_read_is_told_before_it_starts(own: Path, folder: str) -> None:
    with pytest.raises(ModelError, match="needs a GGUF file"):
        AskServer(folder, start="llama.cpp").open(CPU)
    assert not own.exists()
