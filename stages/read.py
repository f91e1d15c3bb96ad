"""Documents to pages, and pages to text or pixels.

Both stages read through child processes that may be killed (`vision.isolate`), one for each core they may
use, so a damaged file costs its own row and nothing else. Passwords for encrypted PDFs are named by a
file, one a line: they are no parameter, and so in no plan, log or pipeline file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.errors import BadRowsError, RidgewayError, RowError, RowId
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import Documents, Pages, PageTexts
from stages import costs
from vision.isolate import Isolated
from vision.page import Options, Page


@dataclass(frozen=True, slots=True)
class Reading:
    """State of both stages: the processes that read, and how they read."""

    pool: Isolated
    options: Options


@dataclass(frozen=True, slots=True)
class ListPages:
    """The pages of each document, counted from 1; a format without pages is one page.

    A document that cannot be opened within `seconds` fails alone: unreadable, encrypted, empty, timeout.
    """

    seconds: float = 60.0
    passwords_file: str = ""

    expands: ClassVar[bool] = True
    batch: ClassVar[int] = 64

    def __post_init__(self) -> None:
        _check("ListPages", self.seconds, self.passwords_file)

    def open(self, device: Device) -> Reading:
        """Processes to read with, one for each thread of the device."""
        return Reading(Isolated(device.threads), Options(passwords=_passwords(self.passwords_file)))

    def cost(self, work: Work) -> Cost:
        """About 20,000 operations a document, in child processes (ours, timed)."""
        documents = work.port("documents").rows
        given = Flow(documents * costs.PAGES, 0.0, costs.PAGE)
        return Cost(given, scalar=2e4 * documents, spread=True)

    def run(self, state: Reading, documents: Documents) -> Pages:
        """A row for each page, with id `(document, page)`. Raises BadRowsError."""
        calls = [(path, state.options) for path in documents.paths]
        counts = _good(documents.ids, state.pool.map("vision.page:count_pages", calls, self.seconds))
        pages = [
            ((*i, number), path)
            for i, path, count in zip(documents.ids, documents.paths, counts, strict=True)
            for number in range(1, count + 1)
        ]
        return Pages(tuple(i for i, _ in pages), tuple(path for _, path in pages))


@dataclass(frozen=True, slots=True)
class ReadPages:
    """What each page says; a page without text is an image, rendered at `dpi`, of at most `max_pixels`.

    A page that is not read within `seconds` fails alone.
    """

    dpi: int = 200
    max_pixels: int = 40_000_000
    seconds: float = 30.0
    passwords_file: str = ""

    batch: ClassVar[int] = 32

    def __post_init__(self) -> None:
        _check("ReadPages", self.seconds, self.passwords_file)
        Options(self.dpi, self.max_pixels)

    def open(self, device: Device) -> Reading:
        """Processes to read with, one for each thread of the device."""
        options = Options(self.dpi, self.max_pixels, _passwords(self.passwords_file))
        return Reading(Isolated(device.threads), options)

    def cost(self, work: Work) -> Cost:
        """About 100,000 operations a page, and 0.11 a byte to render an image (ours, timed), in processes."""
        pages, share = work.port("pages").rows, costs.SCANNED
        image = share * costs.image_bytes(self.dpi, self.max_pixels)
        nbytes = costs.page_bytes((1 - share) * costs.PAGE_CHARACTERS) + image
        given = Flow(pages, image / 3e3, nbytes)
        scalar = pages * (1e5 + 0.11 * image)
        return Cost(given, traffic=4 * pages * image, scalar=scalar, scratch=pages * image, spread=True)

    def run(self, state: Reading, pages: Pages) -> PageTexts:
        """The text or the image of each page. Raises BadRowsError."""
        calls = [(path, i[-1], state.options) for i, path in zip(pages.ids, pages.paths, strict=True)]
        read: list[Page] = _good(pages.ids, state.pool.map("vision.page:read_page", calls, self.seconds))
        return PageTexts(
            ids=pages.ids,
            texts=tuple(p.text for p in read),
            images=tuple(p.image for p in read),
            spans=tuple(p.spans for p in read),
            boxes=tuple(p.boxes for p in read),
            headings=tuple(p.headings for p in read),
            sources=tuple(p.source for p in read),
        )


def _check(stage: str, seconds: float, passwords_file: str) -> None:
    if not 0 < seconds < 86400:
        raise RidgewayError(f"{stage}: seconds must be above 0 and at most a day, got {seconds!r}")
    if passwords_file and not Path(passwords_file).is_file():
        raise RidgewayError(
            f"{stage}: passwords_file {passwords_file!r} is no file; write a password a line there"
        )


def _passwords(file: str) -> tuple[str, ...]:
    """The lines of `file` that are not empty. Raises RidgewayError, which never quotes them."""
    if not file:
        return ()
    try:
        return tuple(line for line in Path(file).read_text("utf-8-sig").splitlines() if line)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RidgewayError(f"passwords_file {file!r} cannot be read: {reason}") from None


def _good(ids: Sequence[RowId], answers: list[Any]) -> list[Any]:
    """The answers, all of them results. Raises BadRowsError with those that are errors."""
    bad = {i: answer for i, answer in zip(ids, answers, strict=True) if isinstance(answer, RowError)}
    if bad:
        raise BadRowsError(bad)
    return answers
