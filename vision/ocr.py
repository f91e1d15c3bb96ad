"""Pixels to text: RapidOCR's models, and the order in which a person would read the lines.

The models (detection, recognition of Latin and Chinese scripts) lie in the package: nothing is downloaded.
Reading order is a column cut: where enough lines stand beside each other left and right of a common gap,
and fill their columns as running text does, the left column comes before the right, between the lines
that cross the gap; cells of tables are short and stay in their rows. Deliberately not here: tables as
cells, and turning pages that lie on their side.

Shapes: N boxes, H x W pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vision.page import Box, Page, clean, page_of_lines

Order = list[list[int]]
"""Rows in reading order, each the numbers of its boxes from left to right."""

MAX_SIDE = 2400
"""Longer images are scaled down to this many pixels before anything is looked for."""

DETECTION_SIDE = 1600
"""Lines are looked for at this size (and read at the full one): less misses small print, more costs time."""

PAGE_WORK = (3.8e10, 1.0e10)
"""FLOP and bytes to look for lines at 1600 x 1120 pixels: all convolutions of the stored graph counted, and
what each of its operations reads and writes (a runtime that fuses them moves less)."""
LINE_WORK = (7.0e9, 1.0e9)
"""The same to read a line of 48 x 1024 pixels."""
RESIDENT, SCRATCH = 5.1e7, 4.8e8
"""Bytes of the process that the models take, and that reading an A4 page at 200 dpi takes at its peak."""

_MIN_FACING = 6  # boxes that must stand beside others before a gap counts as one between columns
_MIN_FILL = 0.4  # how much of its side's width the middle one of them must fill
_MIN_SHAPE = 10.0  # how much wider than high it must be: running text has at least some twenty letters a line
_MIN_PIXELS = 8  # images lower or narrower than this hold no letters


@dataclass(frozen=True, slots=True)
class Ocr:
    """RapidOCR with its models loaded; not for several threads at once."""

    engine: Any

    @classmethod
    def load(cls, threads: int) -> Ocr:
        """The models on `threads` cores."""
        import onnxruntime
        from rapidocr import RapidOCR

        onnxruntime.set_default_logger_severity(3)  # errors only
        engine = RapidOCR(
            params={
                "Global.log_level": "critical",  # that a page holds no text is no warning here
                "Global.max_side_len": MAX_SIDE,
                "Global.text_score": 0.0,
                "Det.limit_type": "max",  # the default enlarges small pictures, which costs seconds
                "Det.limit_side_len": DETECTION_SIDE,
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)
        return cls(engine)

    def read(self, image: NDArray[np.uint8], min_confidence: float = 0.5) -> Page:
        """The text of an upright image, uint8 [H, W, 3] RGB, with a span and a box for each piece of a line.

        Pieces that are recognised with less than `min_confidence` (0 to 1) are left out.
        """
        if min(image.shape[:2]) < _MIN_PIXELS:
            return Page(text="", source="ocr")
        found = self.engine(np.ascontiguousarray(image[:, :, ::-1]))
        if found.boxes is None or found.txts is None:
            return Page(text="", source="ocr")
        texts = [" ".join(clean(text).split()) for text in found.txts]
        kept = [i for i, score in enumerate(found.scores) if score >= min_confidence and texts[i]]
        corners = np.asarray(found.boxes, np.float64)[kept]
        height, width = image.shape[:2]
        order = reading_order(_bounds(_straight(corners)))
        return _page([texts[i] for i in kept], _bounds(corners / (width, height)), order)


def reading_order(boxes: NDArray[np.float64]) -> Order:
    """Rows of boxes [N, 4] in reading order, columns one after another.

    Boxes are x0, y0, x1, y1 in pixels, or anything else that measures width and height alike, y downwards.
    """
    return _order(boxes, list(range(len(boxes))))


def _bounds(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Upright boxes [N, 4] around quadrilaterals [N, 4, 2]."""
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def _straight(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quadrilaterals [N, 4, 2] turned by the middle slope of their upper edges: a skewed scan straight."""
    edges = corners[:, 1] - corners[:, 0]
    flat = edges[np.abs(edges[:, 1]) < edges[:, 0]]
    angle = float(np.median(np.arctan2(flat[:, 1], flat[:, 0]))) if len(flat) else 0.0
    cosine, sine = np.cos(angle), np.sin(angle)
    turned: NDArray[np.float64] = corners @ np.array([[cosine, -sine], [sine, cosine]])
    return turned


def _page(texts: Sequence[str], boxes: NDArray[np.float64], order: Order) -> Page:
    """A page whose rows are lines; the pieces of a row are joined by a blank."""
    pieces: list[tuple[str, Box]] = []
    starts_row: list[bool] = []
    for row in order:
        for place, i in enumerate(row):
            x0, y0, x1, y1 = boxes[i].tolist()
            pieces.append((texts[i], (x0, y0, x1, y1)))
            starts_row.append(place == 0)
    page = page_of_lines(pieces, "ocr")
    text = list(page.text)
    for (start, _), first in zip(page.spans.tolist(), starts_row, strict=True):
        if not first:
            text[start - 1] = " "
    return Page("".join(text), "ocr", spans=page.spans, boxes=page.boxes)


def _order(boxes: NDArray[np.float64], members: list[int]) -> Order:
    gap = _gap(boxes[members])
    if gap is None:
        return _rows(boxes, members)
    members = sorted(members, key=lambda i: (boxes[i, 1], boxes[i, 0]))
    rows: Order = []
    left: list[int] = []
    right: list[int] = []
    for i in members:
        if boxes[i, 2] <= gap:
            left.append(i)
        elif boxes[i, 0] >= gap:
            right.append(i)
        else:  # crosses the gap: what stands above it comes first
            rows += [*_order(boxes, left), *_order(boxes, right), [i]]
            left, right = [], []
    return [*rows, *_order(boxes, left), *_order(boxes, right)]


def _rows(boxes: NDArray[np.float64], members: list[int]) -> Order:
    """Boxes whose middle lies within the height of a row's first box share that row."""
    rows: Order = []
    for i in sorted(members, key=lambda i: boxes[i, 1] + boxes[i, 3]):
        middle = (boxes[i, 1] + boxes[i, 3]) / 2
        if rows and boxes[rows[-1][0], 1] <= middle < boxes[rows[-1][0], 3]:
            rows[-1].append(i)
        else:
            rows.append([i])
    return [sorted(row, key=lambda i: boxes[i, 0]) for row in rows]


def _gap(boxes: NDArray[np.float64]) -> float | None:
    """The x of a gap between two columns of running text, or None."""
    if len(boxes) < _MIN_FACING:
        return None
    best, gap = _MIN_FACING - 1, None
    for x in np.unique(boxes[:, 2]).tolist():  # a gap begins where some box ends
        left, right = boxes[boxes[:, 2] <= x], boxes[boxes[:, 0] >= x]
        beside = (left[:, None, 1] < right[None, :, 3]) & (right[None, :, 1] < left[:, None, 3])
        facing = left[beside.any(axis=1)], right[beside.any(axis=0)]
        count = len(facing[0]) + len(facing[1])
        if count > best and _running(facing[0], left) and _running(facing[1], right):
            best, gap = count, x
    return gap


def _running(facing: NDArray[np.float64], side: NDArray[np.float64]) -> bool:
    """Whether boxes fill their side of a gap as lines of running text do."""
    if 2 * len(facing) < _MIN_FACING:
        return False
    width = np.median(facing[:, 2] - facing[:, 0])
    height = np.median(facing[:, 3] - facing[:, 1])
    extent = side[:, 2].max() - side[:, 0].min()
    return bool(width >= _MIN_FILL * extent and width >= _MIN_SHAPE * height)
