"""What an encoder's folder says without loading a weight: window, width, prompts, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.errors import ModelError
from pipeline.models import resolve

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Kind = Literal["document", "query"]

_PROMPTS: Mapping[Kind, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model's configuration says.

    `window`: tokens that the model sees, special tokens included; `width`: D, elements of a vector;
    `prompts`: what is put before a text of that kind, often nothing.
    """

    folder: Path
    window: int
    width: int
    prompts: Mapping[Kind, str]


def facts(model: str) -> Facts:
    """The facts of the model called `model`, in milliseconds: no weights, no torch.

    Raises ModelError where the model is none that sentence-transformers reads.
    """
    folder = resolve(model)
    if not folder.is_dir():
        raise ModelError(f"model {model!r} is a file; name a folder with config.json and *.safetensors")
    modules = [folder / m.get("path", "") for m in _json(folder / "modules.json", [])]
    settings = _json(folder / "config_sentence_transformers.json", {})
    config = _json((modules[0] if modules else folder) / "config.json", {})
    width = _width(config, modules, settings)
    if not width:
        raise ModelError(f"model {model!r}: no configuration in {folder} says how wide its vectors are")
    window = _window(modules[0] if modules else folder, config)
    named = {kind: _prompt(settings.get("prompts") or {}, kind) for kind in _PROMPTS}
    return Facts(folder, window, width, named)


def body(model: str) -> Path:
    """The folder of the model's transformer: its own, or that of its first module."""
    folder = facts(model).folder
    modules = _json(folder / "modules.json", [])
    return folder / modules[0].get("path", "") if modules else folder


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder, without truncation or padding; loads in about 0.1 s, without torch."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"no tokenizer.json in {folder}: save the model with a fast tokenizer")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _json(file: Path, default: Any) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else default


def _width(config: Mapping[str, Any], modules: Sequence[Path], settings: Mapping[str, Any]) -> int:
    """D as the chain of modules makes it: the transformer's width, pooled, projected, truncated."""
    text = config.get("text_config") or {}
    width = config.get("hidden_size") or config.get("d_model") or text.get("hidden_size") or 0
    for module in modules[1:]:
        made = _json(module / "config.json", {})
        pooled = made.get("word_embedding_dimension") or made.get("embedding_dimension")
        modes = sum(v is True for k, v in made.items() if k.startswith("pooling_mode_"))
        width = made.get("out_features") or (pooled * max(modes, 1) if pooled else width)
    limit = settings.get("truncate_dim")
    return int(min(width, limit) if limit else width)


def _window(folder: Path, config: Mapping[str, Any]) -> int:
    """Tokens, as sentence-transformers has it: its setting, else the tokenizer's, within the positions."""
    stated = _json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    stated = stated or _json(folder / "tokenizer_config.json", {}).get("model_max_length")
    positions = config.get("max_position_embeddings") or -1
    known = [int(n) for n in (stated, positions) if n and n > 0]
    return min(known, default=2**31 - 1)


def _prompt(prompts: Mapping[str, str], kind: Kind) -> str:
    return next((prompts[name] for name in _PROMPTS[kind] if prompts.get(name)), "")
