"""Language models from disk: conversion of GGUF, tokenizers, what is refused."""

import json
import logging
import multiprocessing
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline import models
from pipeline.errors import ModelError
from pipeline.machine import Device
from stages.llm import weights
from tests.tiny_llm import alphabet, save_tiny, save_tiny_gguf

CPU = Device("cpu:0", 1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def converted(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGEWAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        return weights.folder(str(gguf_file))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_conversion(calls: list[Path]) -> Callable[[Path, Path], None]:
    """In place of `weights._convert`: notes the call and makes the folder."""

    def convert(gguf: Path, out: Path) -> None:
        calls.append(gguf)
        out.mkdir()
        (out / "config.json").write_text("{}")

    return convert


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def test_a_gguf_becomes_bfloat16_safetensors_with_its_window(converted: Path) -> None:
    import torch

    made = weights.model(str(converted), CPU, "bfloat16")
    assert made.dtype == torch.bfloat16
    assert sorted(p.suffix for p in converted.glob("model*")) == [".safetensors"]
    assert weights.window(str(converted)) == 64


def test_conversion_keeps_the_weights(gguf_file: Path, converted: Path) -> None:
    import torch

    made = weights.model(str(converted), CPU, "float32").model.embed_tokens.weight
    expected = np.random.default_rng(0).standard_normal((len(alphabet()), 32)).astype(np.float32)
    assert torch.equal(made, torch.from_numpy(expected).bfloat16().float())


def test_conversion_keeps_the_chat_template_and_the_special_tokens(converted: Path) -> None:
    words = weights.tokenizer(str(converted))
    said = words.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert said == "<|im_start|>user\na<|im_end|>\n"
    assert words("<|im_start|><|im_end|>", add_special_tokens=False)["input_ids"] == [1, 2]


def test_conversion_splits_digits_off_as_the_vocabulary_was_learned(converted: Path) -> None:
    words = weights.tokenizer(str(converted))
    assert words.tokenize("a\n\n12") == ["a", "ĊĊ", "1", "2"]


def test_a_gguf_is_converted_once(gguf_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(weights, "_convert", fake_conversion(calls))
    first = weights.folder(str(gguf_file))
    assert weights.folder(str(gguf_file)) == first
    assert first.parent == cache / "models"
    assert models.fingerprint(gguf_file) in first.name
    assert calls == [gguf_file]


def test_two_at_once_convert_once(gguf_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(weights, "_convert", fake_conversion(calls))
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(weights.folder, [str(gguf_file)] * 4))
    assert len(places) == 1
    assert len(calls) == 1


def test_a_conversion_that_broke_off_leaves_nothing_that_counts(
    gguf_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(gguf: Path, out: Path) -> None:
        out.mkdir()
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(weights, "_convert", break_off)
        with pytest.raises(ModelError, match="no space left on device; set RIDGEWAY_CACHE"):
            weights.folder(str(gguf_file))
    monkeypatch.setattr(weights, "_convert", fake_conversion([]))
    assert (weights.folder(str(gguf_file)) / "config.json").is_file()


def test_conversion_is_announced(
    gguf_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "_convert", fake_conversion([]))
    with caplog.at_level(logging.INFO, logger="ridgeway"):
        weights.folder(str(gguf_file))
    assert "converting tiny.gguf" in caplog.text


def test_a_file_that_is_no_gguf_is_explained(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"x\.gguf"):
        weights.folder(str(tmp_path / "x.gguf"))


def test_the_tokenizer_pads_on_the_left_with_the_end_token_where_it_has_none(tiny: Path) -> None:
    words = weights.tokenizer(str(tiny))
    assert (words.padding_side, words.pad_token_id) == ("left", 2)


def test_loading_a_folder_asks_no_network(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: asked.append(a))
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: asked.append(address))
    weights.tokenizer(str(tiny))
    weights.model(str(tiny), CPU, "float32")
    assert asked == []


def test_a_model_comes_ready_for_greedy_inference(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path / "m")
    settings = {"eos_token_id": [2, 0], "do_sample": True, "temperature": 0.2, "repetition_penalty": 1.3}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    made = weights.model(str(folder), CPU, "float32")
    kept = made.generation_config
    assert kept.eos_token_id == [2, 0]
    assert (kept.do_sample, kept.temperature, kept.repetition_penalty) == (None, None, None)
    assert not made.training
    assert made.config._attn_implementation == "sdpa"


def test_how_attention_is_computed_is_left_to_the_model(tiny: Path, tmp_path: Path) -> None:
    """Gemma 2, with its soft caps, is not offered what other models gain from."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    copied(tiny, tmp_path / "gemma")
    config = Gemma2Config(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, eos_token_id=2, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "gemma")
    made = weights.model(str(tmp_path / "gemma"), CPU, "float32")
    assert made.config._attn_implementation == "eager"


def test_float16_on_a_cpu_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"float16.*cpu:0.*use 'auto'"):
        weights.model(str(tmp_path / "none"), CPU, "float16")


def test_a_cuda_device_that_is_not_there_is_refused(tiny: Path) -> None:
    with pytest.raises(ModelError, match="device cuda:99: torch sees"):
        weights.model(str(tiny), Device("cuda:99"), "auto")


def test_an_unknown_dtype_names_the_near_miss() -> None:
    with pytest.raises(ModelError, match="'bfloat61'; did you mean 'bfloat16'"):
        weights.dtype_name("bfloat61", CPU)


@pytest.mark.parametrize(
    ("flags", "pays"),
    [
        ("flags : avx512f amx_bf16 amx_tile", True),
        ("flags : avx512f avx512_bf16", True),
        ("Features : asimd bf16 i8mm", True),
        ("flags : avx2 avx512f avx512_vnni", False),
    ],
)
def test_auto_is_bfloat16_where_the_cpu_multiplies_in_it(tmp_path: Path, flags: str, pays: bool) -> None:
    (tmp_path / "cpuinfo").write_text(flags + "\n")
    assert weights._bfloat16_pays(tmp_path / "cpuinfo") is pays
    assert weights._bfloat16_pays(tmp_path / "absent") is False


def test_weights_that_are_not_all_there_are_refused(tiny: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = copied(tiny, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights for 'lm_head\.weight'.*causal language model"):
        weights.model(str(folder), CPU, "float32")


def test_code_that_comes_with_a_model_is_not_run(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path / "m")
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": code}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match="cannot be loaded"):
        weights.model(str(folder), CPU, "float32")
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_not_read(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled"):
        weights.model(str(folder), CPU, "float32")


def test_the_window_may_be_that_of_the_text_part(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path / "m")
    (folder / "config.json").write_text('{"text_config": {"max_position_embeddings": 77}}')
    assert weights.window(str(folder)) == 77
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="names no window"):
        weights.window(str(folder))


def tokens_in_child(folder: str) -> list[list[int]]:
    """What a worker process does with the tokenizer."""
    ids: list[list[int]] = weights.tokenizer(folder)(["one", "two"] * 8)["input_ids"]
    return ids


@pytest.mark.slow
def test_a_tokenizer_used_before_workers_start_neither_hangs_nor_warns(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = tokens_in_child(str(tiny))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(tokens_in_child, str(tiny)).result(timeout=120) == here
    assert capfd.readouterr().err == ""
