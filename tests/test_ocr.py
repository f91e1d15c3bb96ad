"""Pixels to text: lines in reading order with their places; errors of one page alone."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pipeline.errors import BadRowsError, RidgewayError
from pipeline.machine import Device
from pipeline.stage import check_outputs, ports, state_key
from pipeline.values import PageTexts
from stages.recognize import Recognize
from vision.ocr import Ocr, reading_order
from vision.page import Options, Page, read_page

MATERIAL = Path(__file__).parents[2] / "shared" / "material"
PHOTOTEST = MATERIAL / "tesseract-test" / "testing"
SCANS = MATERIAL / "ocrmypdf-resources" / "tests" / "resources"
needs_phototest = pytest.mark.skipif(
    not PHOTOTEST.is_dir(), reason="needs ../shared/material/tesseract-test, which is not part of a clone"
)
needs_scans = pytest.mark.skipif(
    not SCANS.is_dir(), reason="needs ../shared/material/ocrmypdf-resources, which is not part of a clone"
)


@pytest.fixture(scope="module")
def ocr() -> Ocr:
    return Recognize().open(Device("cpu:0", 2))


def texts(*pages: Page) -> PageTexts:
    return PageTexts(
        ids=tuple(("doc", n) for n in range(1, len(pages) + 1)),
        texts=tuple(p.text for p in pages),
        images=tuple(p.image for p in pages),
        spans=tuple(p.spans for p in pages),
        boxes=tuple(p.boxes for p in pages),
        headings=tuple(p.headings for p in pages),
        sources=tuple(p.source for p in pages),
    )


def drawn(text: str) -> NDArray[np.uint8]:
    image = Image.new("RGB", (400, 120), "white")
    ImageDraw.Draw(image).text((30, 20), text, "black", ImageFont.load_default(32))
    return np.array(image)


class Failing:
    def read(self, image: NDArray[np.uint8], min_confidence: float) -> Page:
        if image.max() == 0:
            raise RuntimeError("no memory")
        return Page(f"read at {min_confidence}", "ocr")


def error_rate(found: str, wanted: str) -> float:
    """Levenshtein distance over the length wanted, white space collapsed."""
    a, b = " ".join(found.split()), " ".join(wanted.split())
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1] / len(b)


def columns(widths: tuple[float, ...], lines: int, top: float) -> list[list[float]]:
    """Boxes of `lines` lines in columns, row by row as a detector finds them."""
    left = np.cumsum([0.1, *(w + 0.05 for w in widths)])
    return [
        [x, top + n / 50, x + w, top + n / 50 + 0.015]
        for n in range(lines)
        for x, w in zip(left, widths, strict=False)
    ]


def flat(boxes: list[list[float]]) -> list[int]:
    return [i for row in reading_order(np.array(boxes).reshape(-1, 4)) for i in row]


def test_columns_are_read_one_after_the_other() -> None:
    assert flat(columns((0.35, 0.35), 5, 0.1)) == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert flat(columns((0.2, 0.2, 0.2), 4, 0.1)) == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


def test_lines_across_the_columns_divide_them() -> None:
    title, note = [0.1, 0.02, 0.85, 0.05], [0.1, 0.3, 0.85, 0.32]
    boxes = [title, *columns((0.35, 0.35), 4, 0.1), note, *columns((0.35, 0.35), 4, 0.5)]
    assert flat(boxes) == [0, 1, 3, 5, 7, 2, 4, 6, 8, 9, 10, 12, 14, 16, 11, 13, 15, 17]


def test_cells_of_a_table_stay_in_their_rows() -> None:
    boxes = [
        [x, n / 20, x + w, n / 20 + 0.02]
        for n in range(5)
        for x, w in ((0.1, 0.3 if n == 0 else 0.1), (0.6, 0.3 if n == 0 else 0.1))
    ]
    assert reading_order(np.array(boxes)) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_short_cells_side_by_side_are_no_columns() -> None:
    boxes = columns((0.1, 0.1), 8, 0.1)
    assert reading_order(np.array(boxes)) == [[n, n + 1] for n in range(0, 16, 2)]


def test_no_boxes_have_no_order() -> None:
    assert flat([]) == []


def test_the_threshold_does_not_load_the_models_again() -> None:
    assert state_key(Recognize()) == state_key(Recognize(min_confidence=0.9))
    assert ports(Recognize).output is PageTexts
    with pytest.raises(RidgewayError, match="min_confidence must be from 0 to 1"):
        Recognize(min_confidence=2)


def test_pages_with_text_pass_and_images_are_not_handed_on() -> None:
    page = Page(
        "text", "pdf", None, np.array([[0, 4]], np.int32), np.zeros((1, 4), np.float32), ((0, "text"),)
    )
    given = texts(page, Page("", "image", drawn("x")), Page("", "pdf"))
    made = Recognize(min_confidence=0.7).run(Failing(), given)  # type: ignore[arg-type]
    check_outputs(Recognize(), given.ids, made)
    assert made.texts == ("text", "read at 0.7", "")
    assert made.sources == ("pdf", "ocr", "pdf")
    assert made.images == (None, None, None)
    assert made.spans[0].tolist() == [[0, 4]]
    assert made.headings[0] == ((0, "text"),)


def test_a_page_that_cannot_be_recognised_fails_alone() -> None:
    given = texts(Page("", "image", drawn("x")), Page("", "image", np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(BadRowsError) as caught:
        Recognize().run(Failing(), given)  # type: ignore[arg-type]
    assert {i: e.category for i, e in caught.value.rows.items()} == {("doc", 2): "model"}


def test_a_line_is_read_with_its_place(ocr: Ocr) -> None:
    page = ocr.read(drawn("Invoice 4711"))
    assert page.text == "Invoice 4711"
    assert page.source == "ocr"
    assert page.spans.tolist() == [[0, 12]]
    x0, y0, x1, y1 = page.boxes[0]
    assert 0.02 < x0 < 0.1
    assert 0.1 < y0 < 0.35 < y1 < 0.6
    assert 0.4 < x1 < 0.7


def test_the_threshold_leaves_out_what_is_unsure(ocr: Ocr) -> None:
    assert ocr.read(drawn("Invoice 4711"), min_confidence=1.0).text == ""


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (9, 900), (200, 200)])
def test_a_blank_image_stays_an_empty_text(
    ocr: Ocr, size: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    page = ocr.read(np.full((*size, 3), 255, np.uint8))
    assert (page.text, len(page.spans)) == ("", 0)
    assert capfd.readouterr() == ("", "")


@needs_phototest
@pytest.mark.slow
def test_a_clean_page_is_read_without_error(ocr: Ocr) -> None:
    image = read_page(str(PHOTOTEST / "phototest.tif"), 1, Options()).image
    assert image is not None
    assert error_rate(ocr.read(image).text, (PHOTOTEST / "phototest.gold.txt").read_text()) < 0.01


@needs_scans
@pytest.mark.slow
@pytest.mark.parametrize("name", ["linn.png", "rotated_skew.pdf"])
def test_a_scan_with_columns_is_read_in_order(ocr: Ocr, name: str) -> None:
    image = read_page(str(SCANS / name), 1, Options()).image
    assert image is not None
    page = ocr.read(image)
    assert error_rate(page.text, (SCANS / "linn.txt").read_text()) < 0.05
    assert [page.text[a:b] for a, b in page.spans[:1]] == ["The LinnSequencer"]
