"""Versions of what a run stands on, without importing any of it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "ridgeway",
    "torch",
    "transformers",
    "sentence-transformers",
    "dask",
    "distributed",
    "faiss-cpu",
    "bm25s",
    "pypdfium2",
    "pillow",
    "rapidocr",
    "onnxruntime",
)


def versions() -> dict[str, str]:
    """Name to version, "missing" where a package is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
