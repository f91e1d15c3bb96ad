"""How large a transformer is, from the headers of its files: no weights, no torch, a few milliseconds.

What a token costs is twice the parameters that it is multiplied by, so it is enough to know which tensors
stand in numbered layers. safetensors files begin with the names and shapes of their tensors (8 bytes of
length, then JSON); GGUF files with key-value pairs, then names and shapes. Models are taken to be dense:
all experts of a mixture count.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import ModelError
from pipeline.models import resolve

__all__ = ["Shape", "named", "shape"]

Sizes = Mapping[str, tuple[int, ...]]
"""Names of tensors and their shapes."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count"),
    "width": ("hidden_size", "n_embd", "d_model", "dim", "embedding_length"),
    "inner": ("intermediate_size", "n_inner", "d_ff", "hidden_dim", "feed_forward_length"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention.head_count"),
    "kv_heads": ("num_key_value_heads", "attention.head_count_kv"),
    "head": ("head_dim", "d_kv", "attention.key_length"),
    "vocabulary": ("vocab_size",),
    "window": ("max_position_embeddings", "n_positions", "max_sequence_length", "context_length"),
}
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_DAMAGE = (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, struct.error)
_PLAIN_DTYPES = ("F32", "BF16", "F16", "F64")


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer: L `layers`, D `width`, F `inner` width of its MLPs, `window` in tokens (0: not said).

    `heads`: H·d, elements of all query heads of a token; `keys`: those of its key heads. `linear`:
    parameters that multiply every token; `head`: those that give one token's logits, vocabulary times D;
    `total`: all parameters; `stored`: bytes of the files.
    """

    layers: int
    width: int
    inner: int
    heads: int
    keys: int
    vocabulary: int
    window: int
    linear: int
    total: int
    stored: int

    @property
    def head(self) -> int:
        """Parameters of the product that gives logits."""
        return self.vocabulary * self.width


@cache
def shape(path: Path) -> Shape:
    """The shape of the model in a folder with config.json and *.safetensors, or in a GGUF file.

    Raises ModelError where the files do not say.
    """
    try:
        config, sizes, stored = _gguf(path) if path.is_file() else _folder(path)
    except _DAMAGE as error:
        raise ModelError(f"model {path}: its header cannot be read ({error}); save the model anew") from error
    if not sizes:
        raise ModelError(f"model {path}: no *.safetensors there; save the model in that format")
    return _shape(path, config, sizes, stored)


@cache
def named(model: str) -> Shape:
    """The shape of the model that is called so, a folder or a GGUF file. Raises ModelError."""
    return shape(resolve(model))


def _shape(path: Path, config: Mapping[str, Any], sizes: Sizes, stored: int) -> Shape:
    found = {name: next((config[k] for k in keys if config.get(k)), 0) for name, keys in _KEYS.items()}
    for name in ("layers", "width", "heads"):
        if not found[name]:
            raise ModelError(f"model {path}: its configuration names no {_KEYS[name][0]!r}; add it")
    one = found["head"] or found["width"] // found["heads"]
    return Shape(
        layers=found["layers"],
        width=found["width"],
        inner=found["inner"] or 4 * found["width"],  # what GPT-2 does where it does not say
        heads=found["heads"] * one,
        keys=(found["kv_heads"] or found["heads"]) * one,
        vocabulary=found["vocabulary"],
        window=found["window"],
        linear=sum(prod(s) for name, s in sizes.items() if len(s) in (2, 3) and _numbered(name)),
        total=sum(prod(s) for s in sizes.values()),
        stored=stored,
    )


def _numbered(name: str) -> bool:
    """Whether a tensor stands in a layer: "encoder.layer.0.output.dense.weight", "blk.0.ffn_up.weight"."""
    return any(part.isdigit() for part in name.split(".")[:-1])


def _folder(folder: Path) -> tuple[Mapping[str, Any], Sizes, int]:
    """Configuration, tensors, and bytes of a folder of Hugging Face files."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = sorted(folder.glob("*.safetensors"))
    sizes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with file.open("rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        sizes |= {k: tuple(v["shape"]) for k, v in header.items() if v.get("dtype") in _PLAIN_DTYPES}
    return {**config, **(config.get("text_config") or {})}, sizes, sum(f.stat().st_size for f in files)


def _gguf(path: Path) -> tuple[Mapping[str, Any], Sizes, int]:
    """The same of a GGUF file (ggml, docs/gguf.md). Reading it opens no weights."""
    with path.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise ValueError("it is no GGUF file")
        _, tensors, pairs = struct.unpack("<IQQ", f.read(20))
        values = {_text(f): _value(f, *struct.unpack("<I", f.read(4))) for _ in range(pairs)}
        sizes = dict(_tensor(f) for _ in range(tensors))
    family = f"{values['general.architecture']}."
    config = {k.removeprefix(family): v for k, v in values.items() if k.startswith(family)}
    config.setdefault("vocab_size", max(sizes["token_embd.weight"]))
    return config, sizes, path.stat().st_size


def _tensor(f: BinaryIO) -> tuple[str, tuple[int, ...]]:
    name = _text(f)
    (axes,) = struct.unpack("<I", f.read(4))
    *found, _, _ = struct.unpack(f"<{axes}QIQ", f.read(8 * axes + 12))
    return name, tuple(found)


def _text(f: BinaryIO) -> str:
    return f.read(struct.unpack("<Q", f.read(8))[0]).decode("utf-8", "replace")


def _value(f: BinaryIO, kind: int) -> Any:
    """A number or a text; of a list only how many: vocabularies are long, and no part of a shape."""
    if kind == _TEXT:
        return _text(f)
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", f.read(12))
        return _skip(f, inner, count)
    return struct.unpack(f"<{_NUMBERS[kind]}", f.read(struct.calcsize(_NUMBERS[kind])))[0]


def _skip(f: BinaryIO, kind: int, count: int) -> int:
    for _ in range(count) if kind in (_TEXT, _ARRAY) else ():
        _value(f, kind)
    if kind in _NUMBERS:
        f.seek(count * struct.calcsize(_NUMBERS[kind]), 1)
    return count
