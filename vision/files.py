"""From folders, files and globs to documents with stable names.

A document's name is its path relative to the folder that was given, so it stays the same wherever that
folder lies. What cannot be read is listed, never dropped: files without a reader, and failures. Left out
without a word: hidden files and folders, and the lock files of office programs (`~$...`). Links to folders
are followed after all real folders, each target once. Nothing is opened here.
"""

from __future__ import annotations

import difflib
import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import Failure, RidgewayError
from pipeline.lookup import near_miss
from pipeline.values import Documents
from vision import READERS
from vision.page import extension


@dataclass(frozen=True, slots=True)
class Crawl:
    """What was found: documents to read, names that no reader knows, and files that cannot be read."""

    documents: Documents
    unsupported: tuple[str, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """A file: where it was asked for (number of the root, its folder), its path below that, fault, bytes."""

    root: int
    folder: str
    below: str
    fault: tuple[str, str] | None = None  # category and message
    size: int = 0

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.below)

    def name(self, depth: int) -> str:
        """The path below the root, after the last `depth` parts of the root's own path."""
        parts = Path(self.folder).parts
        own = parts[max(1, len(parts) - depth) :] if depth else ()
        return "/".join([*own, *Path(self.below).parts])


def crawl(roots: Sequence[str | Path]) -> Crawl:
    """The documents under `roots`: folders (with all below them), files, or globs (`**` for any depth).

    Row ids are `(name,)`. Names are relative to the folder given, to the parent of a file, or to the fixed
    part of a glob. Where two roots hold the same name, the names of both begin with their root's own. A file
    that two roots reach is listed once. Documents come in the order of the roots, sorted by name within each.

    Raises RidgewayError for a root that does not exist or a glob that matches nothing.
    """
    found: dict[str, _Found] = {}
    for number, root in enumerate(roots):
        for file in sorted(_under(number, os.fspath(root)), key=lambda f: Path(f.below).parts):
            found.setdefault(file.path, file)
    names = _names(list(found.values()))
    documents: list[tuple[str, _Found]] = []
    unsupported: list[str] = []
    failures: list[Failure] = []
    for name, file in names:
        printable = _printable(name)
        if file.fault is None and extension(name) not in READERS:
            unsupported.append(printable)
        elif file.fault is None and printable == name:
            documents.append((name, file))
        else:
            category, message = file.fault or ("unreadable", "the file's name is not UTF-8; rename the file")
            failures.append(Failure((printable,), "crawl", category, message))
    files = [file for _, file in documents]
    ids = tuple((name,) for name, _ in documents)
    rows = Documents(ids, tuple(f.path for f in files), tuple(f.size for f in files))
    return Crawl(rows, tuple(unsupported), tuple(failures))


def _under(number: int, root: str) -> Iterator[_Found]:
    """Files of one root."""
    path = os.path.abspath(os.path.expanduser(root))
    if os.path.isdir(path):
        yield from _walk(number, path, path)
    elif os.path.lexists(path):
        yield _file(number, os.path.dirname(path), path)
    elif glob.has_magic(root):
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise RidgewayError(f"documents: nothing matches {root!r}; check the pattern and its folder")
        base = _fixed_part(path)
        for match in matches:
            yield from _walk(number, base, match) if os.path.isdir(match) else [_file(number, base, match)]
    else:
        raise RidgewayError(f"documents: no file or folder {root!r}{_near(path)}")


def _walk(number: int, base: str, top: str) -> Iterator[_Found]:
    """Files at and below the folder `top`, named from `base`; linked folders last, each real folder once."""
    seen: set[tuple[int, int]] = set()
    waiting: list[str] = [top]
    linked: list[str] = []
    while waiting or linked:
        folder = waiting.pop() if waiting else linked.pop(0)
        try:
            place = os.stat(folder)
            if (place.st_dev, place.st_ino) in seen:
                continue
            seen.add((place.st_dev, place.st_ino))
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as error:
            fault = ("unreadable", f"the folder cannot be listed ({error.strerror}); check its permissions")
            yield _Found(number, base, os.path.relpath(folder, base), fault)
            continue
        for entry in entries:
            if entry.name.startswith((".", "~$")):
                continue
            if entry.is_dir():
                (linked if entry.is_symlink() else waiting).append(entry.path)
            else:
                yield _file(number, base, entry.path)


def _file(number: int, base: str, path: str) -> _Found:
    """A file that has a reader is looked at."""
    fault, size = None, 0
    if extension(path) in READERS:
        try:
            status = os.stat(path)
            fault, size = _fault(path, status), status.st_size
        except OSError as error:
            why = f"the file cannot be found ({error.strerror}); check where its link leads"
            fault = "unreadable", why
    return _Found(number, base, os.path.relpath(path, base), fault, size)


def _fault(path: str, status: os.stat_result) -> tuple[str, str] | None:
    """Why a file cannot be read: category and message."""
    if not stat.S_ISREG(status.st_mode):
        return "unreadable", "not a regular file but a pipe, socket or device; remove it"
    if status.st_size == 0:
        return "empty", "the file has zero bytes; remove it or copy it again"
    if not os.access(path, os.R_OK):
        return "unreadable", "no permission to read the file; change its permissions"
    return None


def _names(files: list[_Found]) -> list[tuple[str, _Found]]:
    """Each file's unique name: roots that clash are told apart by more and more of their own path."""
    depths: Counter[int] = Counter()
    for _ in range(max((len(Path(f.folder).parts) for f in files), default=0) + 1):
        names = [file.name(depths[file.root]) for file in files]
        counts = Counter(names)
        clashing = {file.root for name, file in zip(names, files, strict=True) if counts[name] > 1}
        if not clashing:
            break
        depths.update(clashing)
    return list(zip(names, files, strict=True)) if files else []


def _printable(name: str) -> str:
    """The name with bytes that are not UTF-8 spelled out as in a Python string."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8") if _undecodable(name) else name


def _undecodable(name: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in name)


def _fixed_part(pattern: str) -> str:
    """The folder before the first part with a wildcard."""
    parts = Path(pattern).parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return os.path.join(*parts[:first])


def _near(path: str) -> str:
    """The near miss of the first part of `path` that does not exist."""
    missing = Path(path)
    while not missing.parent.is_dir():
        missing = missing.parent
    try:
        siblings = os.listdir(missing.parent)
    except OSError:
        return ""
    close = difflib.get_close_matches(missing.name, siblings, n=1)
    where = f"; {str(missing.parent)!r} has no {missing.name!r}"
    return where + near_miss(missing.name, close) if close else where
