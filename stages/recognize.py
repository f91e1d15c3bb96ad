"""Pages without text are read from their image (OCR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import BadRowsError, RidgewayError, RowError, RowId
from pipeline.machine import Device
from pipeline.roofline import Cost, Flow, Work
from pipeline.values import PageTexts
from stages import costs
from vision.ocr import LINE_WORK, PAGE_WORK, RESIDENT, SCRATCH, Ocr
from vision.page import Page


@dataclass(frozen=True, slots=True)
class Recognize:
    """Text, with places, of the pages that are an image without text; the image is not handed on.

    Pieces read with less than `min_confidence` (0 to 1) are left out; a page may so stay empty. Pages that
    have text pass as they are.
    """

    min_confidence: float = 0.5

    batch: ClassVar[int] = 8
    shares: ClassVar[tuple[str, ...]] = ()  # the models do not depend on the threshold

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise RidgewayError(f"Recognize: min_confidence must be from 0 to 1, got {self.min_confidence!r}")

    def open(self, device: Device) -> Ocr:
        """The models, on the cores of the device."""
        return Ocr.load(device.threads)

    def cost(self, work: Work) -> Cost:
        """That of the pages which are images; how many these are follows from their pixels.

        An image costs one detection and the recognition of its lines, in native threads, in float32. See
        `vision.ocr` for the numbers.
        """
        texts = work.port("texts")
        images = texts.rows * costs.images(texts)
        nbytes = costs.page_bytes(costs.PAGE_CHARACTERS) if images else texts.nbytes
        pairs = zip(PAGE_WORK, LINE_WORK, strict=True)
        flops, moved = (images * (page + costs.LINES * line) for page, line in pairs)
        return Cost(
            output=Flow(texts.rows, 0.0, nbytes),
            flops=flops,
            traffic=moved,
            scalar=3e3 * texts.rows,
            resident=RESIDENT,
            scratch=SCRATCH,
            opening=RESIDENT,
        )

    def run(self, state: Ocr, texts: PageTexts) -> PageTexts:
        """The same pages without images. Raises BadRowsError for pages on which recognition fails."""
        read: list[Page] = []
        bad: dict[RowId, RowError] = {}
        for row in texts.split():
            try:
                read.append(self._page(state, row))
            except Exception as error:
                bad[row.ids[0]] = RowError("model", _reason(error))
        if bad:
            raise BadRowsError(bad)
        return PageTexts(
            ids=texts.ids,
            texts=tuple(p.text for p in read),
            images=(None,) * len(read),
            spans=tuple(p.spans for p in read),
            boxes=tuple(p.boxes for p in read),
            headings=tuple(p.headings for p in read),
            sources=tuple(p.source for p in read),
        )

    def _page(self, state: Ocr, row: PageTexts) -> Page:
        """The one page of `row`."""
        image = row.images[0]
        if image is not None and not row.texts[0].strip():
            return state.read(image, self.min_confidence)
        return Page(row.texts[0], row.sources[0], None, row.spans[0], row.boxes[0], row.headings[0])


def _reason(error: Any) -> str:
    return f"the page's image cannot be recognised ({type(error).__name__}: {error}); try a lower `dpi`"
