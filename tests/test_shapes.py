"""Shapes of transformers from the headers of their files, compared with the models themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.errors import ModelError
from stages.shapes import Shape, named, shape
from tests.tiny_llm import alphabet, save_tiny, save_tiny_gguf

LINEAR = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
"""Two layers: query and output, key and value, three matrices of the MLP."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def test_a_folder_says_all(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM

    found = shape(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    words = len(alphabet())
    assert (found.layers, found.width, found.inner, found.heads, found.keys) == (2, 32, 64, 32, 16)
    assert (found.window, found.linear, found.head) == (128, LINEAR, 32 * words)
    assert found.total == sum(p.numel() for p in model.parameters())
    assert found.stored == (tiny / "model.safetensors").stat().st_size


def test_a_gguf_file_says_the_same(tmp_path: Path, tiny: Path) -> None:
    found, other = shape(save_tiny_gguf(tmp_path / "tiny.gguf")), shape(tiny)
    assert (found.layers, found.width, found.inner, found.heads, found.keys) == (2, 32, 64, 32, 16)
    assert (found.window, found.linear, found.head) == (64, LINEAR, other.head)
    assert found.stored == (tmp_path / "tiny.gguf").stat().st_size


def test_the_settings_of_a_part_count(tmp_path: Path, tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config}), "utf-8")
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes())
    assert shape(tmp_path) == shape(tiny)


def test_the_model_packages_are_read_without_their_weights() -> None:
    found = named("all-MiniLM-L6-v2")
    assert isinstance(found, Shape)
    assert (found.layers, found.width, found.inner) == (6, 384, 1536)
    assert found.total == 22_713_216
    assert named("SmolLM2-135M-Instruct").total == 134_515_008


def test_what_is_lacking_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        shape(tmp_path)
    header = json.dumps({"a.0.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="names no 'num_hidden_layers'"):
        shape(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\xff" * 40, b"no model at all"])
def test_a_damaged_file_is_no_model(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match="its header cannot be read"):
        shape(file)
