"""Looks at the software around Ridgeway: packages, models, variables, memory and disk.

A probe takes what it looks at as arguments, the real thing by default, and tells what it found in rows of
its own. It may raise: `pipeline.doctor` makes a row of that. See `pipeline.hardware` for the other half.
Nothing is changed, and nothing asks the network. Versions are read without importing; `libraries` imports.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline import models
from pipeline.machine import cores
from pipeline.versions import versions

__all__ = ["Check", "disks", "faiss", "gib", "hub", "libraries", "memory", "packages", "threads", "weights"]

LIBRARIES = (
    "torch",
    "transformers",
    "sentence_transformers",
    "onnxruntime",
    "cv2",
    "rapidocr",
    "pypdfium2",
    "PIL",
    "distributed",
)
"""What fails on import where an installation is broken; cv2 is what rapidocr reads images with."""

LEAST_MEMORY, LEAST_DISK = 2 << 30, 2 << 30
"""Bytes below which a run over a few documents, with the small models, may not fit."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_HUB = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "RIDGEWAY_CACHE")
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, what was found, and what to do where it is not well."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def packages(
    found: Mapping[str, str] | None = None, wanted: Mapping[str, Any] | None = None
) -> Iterator[Check]:
    """A row for each version: `found` as of `pipeline.versions`, `wanted` as of `requirements`."""
    found, wanted = found or versions(), requirements() if wanted is None else wanted
    for name, version in found.items():
        if name == "ridgeway" and version == "missing":
            yield Check(name, "ok", "not installed; runs from its folder")
        elif name == "python":
            old = tuple(map(int, version.split(".")[:2])) < (3, 11)
            yield Check(name, "fail" if old else "ok", version, "use Python 3.11 or newer" if old else "")
        elif version == "missing":
            if not name.startswith("faiss"):  # there is more than one package of it
                yield Check(name, "fail", version, f"pip install {name}")
        elif name in wanted and not wanted[name].contains(version, prereleases=True):
            yield Check(name, "fail", version, f"pip install '{name}{wanted[name]}'")
        else:
            yield Check(name, "ok", version)


def requirements() -> dict[str, Any]:
    """Package to the versions that Ridgeway needs (a SpecifierSet); empty where it is not installed."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("ridgeway") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    needs = [Requirement(line) for line in lines]
    return {r.name: r.specifier for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})}


def libraries(
    names: Sequence[str] = LIBRARIES, load: Callable[[str], object] = importlib.import_module
) -> Iterator[Check]:
    """Whether the libraries can be imported: a row for each that cannot, else one for all. Takes seconds."""
    broken = []
    for name in names:
        try:
            load(name)
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0]
            broken.append(
                Check(f"import {name}", "fail", f"{type(error).__name__}: {text}", _mend(name, text))
            )
    yield from broken or [Check("imports", "ok", ", ".join(names))]


def _mend(name: str, text: str) -> str:
    missing = re.search(r"(lib[\w.+-]+\.so[.\d]*): cannot open", text)
    if missing and name in ("cv2", "rapidocr"):
        return f"install the system's {missing[1]} (Debian: apt install libgl1 libglib2.0-0)"
    if missing:
        return f"install the system's {missing[1]}"
    return "make a new virtual environment and install Ridgeway again"


def faiss(
    installed: Iterable[str] | None = None, load: Callable[[str], Any] = importlib.import_module
) -> Check:
    """Which FAISS there is; two packages of it overwrite each other's files."""
    names = sorted(_faiss_packages() if installed is None else installed)
    if len(names) > 1:
        advice = f"pip uninstall {' '.join(names)}, then install only one of them"
        return Check("faiss", "fail", " and ".join(names), advice)
    if not names and importlib.util.find_spec("faiss") is None:
        return Check("faiss", "fail", "missing", "pip install faiss-cpu")
    module = load("faiss")
    gpus = module.get_num_gpus() if hasattr(module, "get_num_gpus") else 0
    kernels = " ".join(module.get_compile_options().split())
    where = f"{gpus} GPUs" if gpus else "on the CPU"
    return Check("faiss", "ok", f"{(names or ['faiss'])[0]} {module.__version__}, {where} ({kernels})")


def _faiss_packages() -> set[str]:
    names = (d.metadata["Name"] or "" for d in importlib.metadata.distributions())
    return {name.lower() for name in names if re.match(r"faiss($|[-_]?(cpu|gpu))", name, re.IGNORECASE)}


def weights(found: Sequence[models.Installed] | None = None) -> Iterator[Check]:
    """A row for each model package that Ridgeway knows."""
    for model in models.installed() if found is None else found:
        if model.ok:
            yield Check(f"model {model.name}", "ok", model.where)
        else:
            advice = f"to use this model: {model.where}"
            yield Check(f"model {model.name}", "warn", "its package is not installed", advice)


def hub(environ: Mapping[str, str] = os.environ) -> Check:
    """Where models are looked for: the variables of the Hugging Face hub, and ours."""
    given = [f"{name}={environ[name]}" for name in _HUB if name in environ]
    return Check("variables", "ok", ", ".join(given) or f"none set of {', '.join(_HUB)}")


def threads(environ: Mapping[str, str] = os.environ, count: int | None = None) -> Iterator[Check]:
    """Variables that limit the threads of the libraries under us, against the cores there are."""
    count = cores() if count is None else count
    given = {name: environ[name] for name in _THREADS if name in environ}
    for name, value in given.items():
        first = value.split(",")[0].strip()
        said = int(first) if first.isdecimal() else 0
        if said == 1 and count > 1:
            advice = f"unset it: libraries would use 1 of {count} cores"
        elif said < 1 or said > count:
            advice = f"unset it, or give 1 to {count}"
        else:
            advice = ""
        yield Check(name, "warn" if advice else "ok", value, advice)
    if not given:
        yield Check("threads", "ok", f"none set of {', '.join(_THREADS)}")


def memory(available: int | None = None, limits: Sequence[str] = _LIMITS) -> Check:
    """Memory that is free, within the limit of a container."""
    import psutil

    free = int(psutil.virtual_memory().available) if available is None else available
    limit = min((int(text) for text in map(_read, limits) if text.isdecimal()), default=sys.maxsize)
    capped = limit < free
    found = f"{gib(min(free, limit))} free" + (
        f" (the container's limit; {gib(free)} outside)" if capped else ""
    )
    if min(free, limit) < LEAST_MEMORY:
        return Check("memory", "warn", found, f"free some: below {gib(LEAST_MEMORY)} models may not fit")
    return Check("memory", "ok", found)


def disks(cache: Path | None = None, here: Path | None = None) -> Iterator[Check]:
    """Space and permission where caches are kept, and in the current folder."""
    cache, here = cache or models.cache_dir(), here or Path.cwd()
    yield _disk("cache folder", cache, "set RIDGEWAY_CACHE to a folder that you may write to")
    yield _disk("current folder", here, "give `--out` a folder that you may write to")


def _disk(name: str, path: Path, advice: str) -> Check:
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        return Check(name, "warn", f"{path}: cannot be written", advice)
    if free < LEAST_DISK:
        return Check(name, "warn", f"{path}: {gib(free)} free", f"free some, or {advice}")
    return Check(name, "ok", f"{path}: {gib(free)} free")


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / (1 << 30):.1f} GiB"


def _read(path: str) -> str:
    """The text of a small file of the system's, "" where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
