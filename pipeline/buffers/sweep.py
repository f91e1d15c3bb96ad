"""Folders for what has no other place than a disk, each named after its owner, none outliving it for long.

The owner is in the folder's name rather than in a file of it, so that there is no moment at which a folder
has no owner. Whoever makes a folder removes those of dead owners beside it.
"""

from __future__ import annotations

import hashlib
import platform
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.buffers.identity import is_alive, own

PREFIX = "ridgeway-"


def claim(base: Path | None = None) -> Path:
    """A new folder of this process in `base`, by default where temporary files go; sweeps `base` first."""
    base = Path(tempfile.gettempdir()) if base is None else base
    base.mkdir(parents=True, exist_ok=True)
    sweep(base)
    folder = named(base)
    folder.mkdir(0o700)
    return folder


def named(base: Path | None = None) -> Path:
    """A folder of this process that is not there yet: who needs it makes it, and we `remove` it."""
    base = Path(tempfile.gettempdir()) if base is None else base
    return base / f"{PREFIX}{_host()}-{own()}-{secrets.token_hex(4)}"


def remove(folder: Path) -> None:
    """Remove a folder of this process. A fork of it, which inherits its finalizers, is another process."""
    if f"-{own()}-" in folder.name:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(base: Path) -> int:
    """Remove the folders in `base` whose owners are dead, and say how many they were.

    Folders of other hosts, on a disk that several share, are left to these.
    """
    dead = [folder for folder, owner in _owned(base) if not is_alive(owner)]
    for folder in dead:
        shutil.rmtree(folder, ignore_errors=True)
    return len(dead)


def _owned(base: Path) -> Iterator[tuple[Path, str]]:
    """Our host's folders, with their owners."""
    for folder in base.glob(f"{PREFIX}{_host()}-*"):
        yield folder, folder.name.removeprefix(f"{PREFIX}{_host()}-").rpartition("-")[0]


def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]
