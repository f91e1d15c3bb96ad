import json
import logging
import shutil
import socket
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import ModelError
from pipeline.machine import Device
from pipeline.models import resolve
from retrieval import encoder as module
from retrieval.encoder import Encoder, agreed, check_dtype, cut_batches, load
from retrieval.facts import Kind, facts, read_tokenizer

MODEL = "all-MiniLM-L6-v2"
CPU = Device("cpu:0", 2)
TEXTS = ["A cat sat on the mat.", "Net income rose to 19,442 million.", "", "word " * 150]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load(MODEL, CPU, "float32")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The model's folder without its weights, to change its configuration."""
    folder = tmp_path / "model"
    shutil.copytree(
        resolve(MODEL), folder, ignore=shutil.ignore_patterns("*.safetensors", "data_config.json")
    )
    (folder / "model.safetensors").touch()
    return folder


def change(file: Path, **values: object) -> None:
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(known | values))


def test_vectors_are_float32_of_unit_length_for_every_text(encoder: Encoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, encoder.width)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers_in_the_order_given(encoder: Encoder) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(resolve(MODEL)), device="cpu", local_files_only=True)
    expected = np.stack([model.encode(text, normalize_embeddings=True) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1]), expected[::-1], atol=1e-5)


def test_no_texts_give_no_rows(encoder: Encoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.width)


def test_equal_texts_have_equal_vectors(encoder: Encoder) -> None:
    vectors = encoder.encode([TEXTS[0], TEXTS[3], TEXTS[0]])
    assert (vectors[0] == vectors[2]).all()


def test_the_facts_are_those_of_the_loaded_model(encoder: Encoder) -> None:
    known = facts(MODEL)
    assert (known.window, known.width) == (encoder.window, encoder.width) == (256, 384)


def test_text_beyond_the_window_is_counted_and_told_once(
    encoder: Encoder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "cut", 0)
    with caplog.at_level(logging.WARNING, "ridgeway"):
        encoder.encode(["short", "long " * 300])
        encoder.encode(["far " * 400])
    assert encoder.cut == 2
    (record,) = caplog.records
    assert record.getMessage().startswith("1 of 2 texts are longer than the 256 tokens")
    assert "46 tokens are cut" in record.getMessage()


def test_float16_on_the_cpu_is_refused_with_what_to_use() -> None:
    with pytest.raises(ModelError, match=r"float16 on cpu:0: use float32 or bfloat16"):
        load(MODEL, CPU, "float16")


def test_a_cuda_device_that_is_not_there_is_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.raises(ModelError, match="cannot run on cuda:0: torch sees no CUDA device"):
        load(MODEL, Device("cuda:0"))


def test_a_mistyped_dtype_names_the_near_miss() -> None:
    with pytest.raises(ModelError, match=r"no dtype 'bfloat61'; did you mean 'bfloat16'\?"):
        check_dtype("bfloat61")


@pytest.mark.slow
def test_loading_and_encoding_make_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[object] = []

    def refuse(*target: object, **_: object) -> Any:
        attempts.append(target)
        raise OSError("no network in this test")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load(str(resolve(MODEL)), CPU, "float32").encode(["a text"])
    assert attempts == []


@pytest.mark.slow
def test_bfloat16_agrees_with_float32(encoder: Encoder) -> None:
    fast = load(MODEL, CPU, "bfloat16")
    assert fast.dtype == "bfloat16"
    assert (fast.encode(TEXTS) * encoder.encode(TEXTS)).sum(axis=1).min() > module.AGREEMENT


class Fixed:
    """An encoder that gives one vector, whatever the text."""

    def __init__(self, dtype: str, vector: Sequence[float]) -> None:
        self.name, self.dtype, self.vector = "fixed", dtype, np.array(vector, dtype=np.float32)

    def encode(self, texts: Sequence[str], kind: Kind = "document") -> NDArray[np.float32]:
        return np.tile(self.vector, (len(texts), 1))


@pytest.mark.parametrize(
    ("vector", "kept"), [([1, 0], "bfloat16"), ([0.6, 0.8], "float32"), ([np.nan, 0], "float32")]
)
def test_bfloat16_is_kept_where_it_agrees(
    vector: list[float], kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    fast: Any = Fixed("bfloat16", vector)
    exact: Any = Fixed("float32", [1, 0])
    with caplog.at_level(logging.WARNING, "ridgeway"):
        assert agreed(fast, exact).dtype == kept
    assert bool(caplog.records) == (kept == "float32")


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
def test_auto_is_bfloat16_where_that_is_fast(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_has_fast_bfloat16", lambda device: fast)
    assert load(MODEL, CPU, "auto").dtype == ("bfloat16" if fast else "float32")


@pytest.mark.parametrize("sizes", [[9, 9, 9, 8, 3, 3, 1], [50, 40], [1], []])
def test_batches_hold_few_padded_tokens_and_texts_of_like_length(sizes: list[int]) -> None:
    for a, b in pairwise([*cut_batches(sizes, 20), len(sizes)]):
        assert (b - a) * sizes[a] <= 20 or b - a == 1
        assert sizes[b - 1] >= module.PADDING * sizes[a]


def test_prompts_go_before_texts_of_their_kind(copy: Path) -> None:
    change(copy / "config_sentence_transformers.json", prompts={"query": "ask: ", "passage": "told: "})
    assert facts(str(copy)).prompts == {"query": "ask: ", "document": "told: "}


@pytest.mark.slow
def test_a_prompt_changes_the_vector(copy: Path, encoder: Encoder) -> None:
    change(copy / "config_sentence_transformers.json", prompts={"query": "ask: "})
    shutil.copy(resolve(MODEL) / "model.safetensors", copy)
    prompted = load(str(copy), CPU, "float32")
    np.testing.assert_allclose(prompted.encode(["a cat"], "query"), encoder.encode(["ask: a cat"]), atol=1e-5)
    np.testing.assert_allclose(prompted.encode(["a cat"]), encoder.encode(["a cat"]), atol=1e-5)


@pytest.mark.parametrize(
    ("file", "values", "window", "width"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 512}, 512, 384),
        ("sentence_bert_config.json", {"max_seq_length": None}, 512, 384),
        ("config.json", {"max_position_embeddings": 128}, 128, 384),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, 256, 768),
        ("1_Pooling/config.json", {"out_features": 96}, 256, 96),
        ("config_sentence_transformers.json", {"truncate_dim": 64}, 256, 64),
    ],
)
def test_facts_follow_the_configuration(
    copy: Path, file: str, values: dict[str, object], window: int, width: int
) -> None:
    change(copy / file, **values)
    known = facts(str(copy))
    assert (known.window, known.width) == (window, width)


def test_a_model_without_a_tokenizer_says_so(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json in"):
        read_tokenizer(copy)


def test_a_file_is_no_encoder(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ModelError, match="is a file; name a folder"):
        facts(str(file))


def test_the_facts_need_no_torch() -> None:
    import subprocess

    code = f"import sys, retrieval.encoder as e; e.facts({MODEL!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
