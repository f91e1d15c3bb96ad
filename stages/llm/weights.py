"""Language models from disk: tokenizer, weights, window, by name.

The idea: every model is a folder of Hugging Face files with safetensors. A GGUF file is unpacked once
into such a folder, in bfloat16, in Ridgeway's cache (reading it takes about half a minute each time, the
folder a second or two, and packed weights cannot be computed with on a CPU at a useful rate).

Deliberately not here: generation, batching, quantised arithmetic. Nothing here asks the network, runs
code that comes with a model, or unpickles.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import models
from pipeline.errors import ModelError
from pipeline.lookup import near_miss
from pipeline.machine import Device

__all__ = ["DTYPES", "dtype_name", "folder", "model", "tokenizer", "window"]

DTYPES = ("auto", "float32", "bfloat16", "float16")
"""What `dtype` may be; "auto" is what the device computes fastest without losing range."""

_LAYOUT = 1
"""Part of the folder's name in the cache: raise it when conversion gives other files than before."""

_DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""GGUF tokenizers that split off each digit before anything else (llama.cpp, src/llama-vocab.cpp)."""

_WINDOWS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")

_log = logging.getLogger("ridgeway")


def folder(name: str) -> Path:
    """The folder of Hugging Face files for a model; a GGUF file is converted once, into the cache.

    Raises ModelError where the name leads to no model, or the file cannot be converted.
    """
    path = models.resolve(name)
    return _converted(path) if path.suffix == ".gguf" else path


def tokenizer(name: str) -> Any:
    """The model's fast tokenizer, padding on the left, with a pad token.

    Where the model has no pad token it is the end token: batches need an explicit attention mask.
    """
    from transformers import AutoTokenizer

    place = folder(name)
    with _quiet(), _explained(name):
        made = AutoTokenizer.from_pretrained(
            place, padding_side="left", local_files_only=True, trust_remote_code=False
        )
    if not made.is_fast:
        raise ModelError(f"model {name!r}: {place} has no tokenizer.json; save a fast tokenizer there")
    if made.pad_token_id is None:
        if made.eos_token is None:
            raise ModelError(f"model {name!r}: its tokenizer names no pad_token and no eos_token; add one")
        made.pad_token = made.eos_token
    return made


def model(name: str, device: Device, dtype: str = "auto", layers: int = 0) -> Any:
    """The causal language model on `device`, in evaluation mode, ready for greedy decoding.

    `layers`: only its first ones, 0: all. Of the generation settings that come with a model only the token
    ids are kept: its sampling and penalties would change what greedy means. Raises ModelError for a device
    that is not there, a dtype that it cannot compute, weights that are incomplete, pickled or need code.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    number_type = dtype_name(dtype, device)
    place = folder(name)
    with _quiet(), _explained(name):
        made, report = AutoModelForCausalLM.from_pretrained(
            place,
            config=_config(place, layers),
            dtype=getattr(torch, number_type),
            device_map={"": device.torch} if device.kind == "cuda" else None,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise ModelError(
            f"model {name!r}: {place} has no weights for {lacking[0]!r} ({len(lacking)} in all); "
            f"give a causal language model"
        )
    ids = {k: getattr(made.generation_config, k) for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    made.generation_config = GenerationConfig(**ids)
    return made.eval()


def _config(place: Path, layers: int) -> Any:
    """The configuration in a folder, cut to the first `layers`; None, what the library reads, for 0."""
    if not layers:
        return None
    from transformers import AutoConfig

    found = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    text = found.get_text_config()
    text.num_hidden_layers = min(layers, text.num_hidden_layers)
    for each in {"layer_types", "no_rope_layers"} & text.to_dict().keys():
        setattr(text, each, (getattr(text, each) or [])[:layers] or None)
    return found


def window(name: str) -> int:
    """Tokens that the model can attend to, prompt and answer together. Reads the configuration only."""
    config = json.loads((folder(name) / "config.json").read_text(encoding="utf-8"))
    for part in (config, config.get("text_config") or {}):
        for key in _WINDOWS:
            if part.get(key):
                return int(part[key])
    raise ModelError(f"model {name!r}: config.json names no window; add 'max_position_embeddings'")


def dtype_name(dtype: str, device: Device) -> str:
    """The number type that `dtype` means on `device`: "float32", "bfloat16" or "float16".

    Raises ModelError for a dtype that is none of `DTYPES`, float16 on a CPU (its kernels there are slow
    or missing), and a CUDA device that torch does not see.
    """
    if dtype not in DTYPES:
        raise ModelError(f"no dtype named {dtype!r}{near_miss(dtype, DTYPES)}")
    if device.kind != "cuda":
        if dtype == "float16":
            raise ModelError(
                f"dtype 'float16' on {device.name}: CPUs do not compute in half precision; "
                f"use 'auto', 'bfloat16' or 'float32'"
            )
        return dtype if dtype != "auto" else ("bfloat16" if _bfloat16_pays() else "float32")
    import torch

    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.name.partition(":")[2] or 0) >= seen:
        raise ModelError(f"device {device.name}: torch sees {seen} CUDA devices; use 'cpu:0'")
    if dtype != "auto":
        return dtype
    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"


def _bfloat16_pays(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU multiplies in bfloat16 (AMX, AVX-512 BF16, Arm BF16); others emulate it, slowly."""
    if not cpuinfo.is_file():
        return False
    return re.search(r"\b(amx_bf16|avx512_bf16|bf16)\b", cpuinfo.read_text(encoding="utf-8")) is not None


def _converted(gguf: Path) -> Path:
    """The folder that `gguf` was, or now is, converted into. Safe against other processes and crashes."""
    from filelock import FileLock
    from safetensors import SafetensorError

    target = models.cache_dir() / "models" / f"{gguf.stem}-{models.fingerprint(gguf)}-{_LAYOUT}"
    if target.is_dir():
        return target
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(target.name + ".lock")):
            if not target.is_dir():
                shutil.rmtree(part, ignore_errors=True)
                _log.info("converting %s to %s, once; takes about half a minute", gguf.name, target)
                _convert(gguf, part)
                part.rename(target)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot convert {gguf} to {target}: {error}; set RIDGEWAY_CACHE to a folder with room"
        ) from error
    return target


def _convert(gguf: Path, out: Path) -> None:
    """Write `gguf` as bfloat16 safetensors with configuration and tokenizer to the new folder `out`."""
    import torch
    import transformers

    # Without this, transformers from 5.24 on keeps the weights packed, and those cannot be saved.
    packed = getattr(transformers, "GgufConfig", None)
    unpack = {"quantization_config": packed(dequantize=True)} if packed is not None else {}
    source = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    with _quiet(), _explained(str(gguf)):
        made = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, dtype=torch.bfloat16, **unpack, **source
        )
        words = transformers.AutoTokenizer.from_pretrained(gguf.parent, **source)
        _split_digits(words, gguf)
    words.model_max_length = made.config.max_position_embeddings
    with _quiet():
        made.save_pretrained(out)
        words.save_pretrained(out)


def _split_digits(words: Any, gguf: Path) -> None:
    """Give a tokenizer the digit splitting that transformers (5.24) does not take over from GGUF files.

    Without it blank lines before numbers, as in numbered lists, get tokens the model never saw there.
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() in _DIGITS_APART:
        words.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Errors of transformers about a model's files, as ModelError that names the model."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model {name!r} cannot be loaded: {first}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Fewer progress bars and hints of transformers: what matters is checked and raised here."""
    from transformers.utils import logging as chatter

    bars, level = chatter.is_progress_bar_enabled(), chatter.get_verbosity()
    chatter.disable_progress_bar()
    chatter.set_verbosity_error()
    try:
        yield
    finally:
        chatter.set_verbosity(level)
        if bars:
            chatter.enable_progress_bar()
