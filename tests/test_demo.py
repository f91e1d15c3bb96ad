from pathlib import Path

import pytest

from pipeline.questions import read

DEMO = Path(__file__).parents[1] / "configs" / "demo"
DOCUMENTS = DEMO / "documents"
SIZES = {
    "handbook.pdf": 60_000,
    "minutes-spring.txt": 20_000,
    "observatory.md": 20_000,
    "station-log-1937.pdf": 250_000,
    "water-tanks.jpg": 250_000,
}


def page_count(name: str) -> int:
    if not name.endswith(".pdf"):
        return 1
    import pypdfium2

    with pypdfium2.PdfDocument(DOCUMENTS / name) as pdf:
        return len(pdf)


def test_the_documents_are_there_and_small() -> None:
    found = {path.name: path.stat().st_size for path in DOCUMENTS.iterdir()}
    assert found.keys() == SIZES.keys()
    assert {name: size for name, size in found.items() if size > SIZES[name]} == {}
    assert sum(found.values()) < 700_000


def test_every_question_has_an_answer_on_a_page_that_exists_or_none_at_all() -> None:
    questions = read(DEMO / "questions.jsonl")
    assert not questions.failures
    assert len(questions.rows) == 10
    for question in questions.rows:
        assert question.answers is not None
        assert bool(question.answers) == bool(question.gold)
        for gold in question.gold:
            assert gold.page is not None
            assert 1 <= gold.page <= page_count(gold.document)


def test_the_questions_cover_what_the_demo_is_to_show() -> None:
    rows = read(DEMO / "questions.jsonl").rows
    pages = {(gold.document, gold.page) for question in rows for gold in question.gold}
    assert {("station-log-1937.pdf", 2), ("water-tanks.jpg", 1), ("handbook.pdf", 4)} <= pages
    assert sum(len(question.gold) == 2 for question in rows) == 2
    assert sum(question.answers == () for question in rows) == 1


@pytest.mark.parametrize(
    ("page", "fact"),
    [
        (1, "1911"),
        (2, "890"),
        (3, "Ostermoor"),
        (4, "60 centimetres"),
        (5, "A green lamp above a white lamp"),
    ],
)
def test_a_fact_of_the_handbook_stands_on_its_page_alone(page: int, fact: str) -> None:
    import pypdfium2

    with pypdfium2.PdfDocument(DOCUMENTS / "handbook.pdf") as pdf:
        texts = [" ".join(p.get_textpage().get_text_range().split()) for p in pdf]
    assert [n for n, text in enumerate(texts, 1) if fact in text] == [page]


def test_the_scan_has_pictures_and_no_text() -> None:
    import pypdfium2

    with pypdfium2.PdfDocument(DOCUMENTS / "station-log-1937.pdf") as pdf:
        assert [page.get_textpage().get_text_range().strip() for page in pdf] == ["", ""]


def test_the_photograph_lies_on_its_side_until_it_is_turned() -> None:
    from PIL import Image, ImageOps

    with Image.open(DOCUMENTS / "water-tanks.jpg") as photo:
        assert photo.getexif()[0x0112] == 6
        upright = ImageOps.exif_transpose(photo)
    assert upright.width > upright.height


def test_the_minutes_are_neither_utf_8_nor_plain() -> None:
    data = (DOCUMENTS / "minutes-spring.txt").read_bytes()
    with pytest.raises(UnicodeDecodeError):
        data.decode("utf-8")
    assert "€84,000" in data.decode("cp1252")
