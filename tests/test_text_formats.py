"""Text, Markdown, HTML, Word, JSON lines and mail: encodings, headings, what is visible."""

import codecs
import json
import re
from pathlib import Path

import docx
import pytest

from pipeline.errors import RidgewayError, RowError
from pipeline.lookup import find
from vision import READERS
from vision.page import Options, Page, clean, count_pages, page_of_lines, read_page

MATERIAL = Path(__file__).parents[2] / "shared" / "material"
UNSTRUCTURED = MATERIAL / "unstructured-docs" / "example-docs"
needs_unstructured = pytest.mark.skipif(
    not UNSTRUCTURED.is_dir(),
    reason="needs ../shared/material/unstructured-docs, which is not part of a clone",
)


def read(path: Path, data: bytes | str, number: int = 1) -> Page:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_page(str(path), number, Options())


@pytest.mark.parametrize("ending", sorted(READERS))
def test_every_reader_counts_and_reads(ending: str) -> None:
    reader = find(ending, READERS, "reader")()
    assert callable(reader.count)
    assert callable(reader.read)
    assert reader == find(ending, READERS, "reader")()


@pytest.mark.parametrize("ending", sorted(READERS))
def test_every_reader_refuses_an_empty_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending.upper()}"
    path.touch()
    for ask in (lambda: count_pages(str(path), Options()), lambda: read_page(str(path), 1, Options())):
        with pytest.raises(RowError, match="zero bytes") as caught:
            ask()
        assert caught.value.category == "empty"


@pytest.mark.parametrize("ending", sorted(READERS))
def test_every_reader_tells_a_missing_file(tmp_path: Path, ending: str) -> None:
    with pytest.raises(RowError, match="No such file") as caught:
        count_pages(str(tmp_path / f"a{ending}"), Options())
    assert caught.value.category == "unreadable"


TEXT = "Naïve “quotes” cost 5 €\nend"


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (TEXT.encode(), "text"),
        (TEXT.encode("utf-8-sig"), "text"),
        (TEXT.encode("utf-16"), "text (utf-16)"),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "text (utf-16)"),
        (TEXT.encode("utf-32"), "text (utf-32)"),
        (TEXT.encode("utf-16-le"), "text (utf-16-le)"),
        (TEXT.encode("utf-16-be"), "text (utf-16-be)"),
        (TEXT.encode("cp1252"), "text (cp1252)"),
        (TEXT.replace("\n", "\r\n").encode(), "text"),
    ],
)
def test_text_is_decoded_and_a_guess_is_named(tmp_path: Path, data: bytes, source: str) -> None:
    page = read(tmp_path / "a.txt", data)
    assert (page.text, page.source) == (TEXT, source)


@pytest.mark.parametrize("data", [b"\x00\x01\x02\x03 binary \x00", b"caf\x81", codecs.BOM_UTF16_LE + b"abc"])
def test_what_is_no_text_is_unreadable(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(RowError, match="save it as UTF-8") as caught:
        read(tmp_path / "a.txt", data)
    assert caught.value.category == "unreadable"


def test_cleaning_keeps_letters_and_drops_control_characters() -> None:
    assert clean("a\x00b\x07\ud800\ufeff\r\nc\rd\te\u00adf ﬁ 😀") == "ab\nc\nd\te\u00adf ﬁ 😀"


def test_lines_become_a_page_with_spans() -> None:
    page = page_of_lines([("ab", (-0.1, 0, 1, 0.5)), ("c", (0, 0.5, 1, 2))], "ocr")
    assert page.text == "ab\nc"
    assert page.spans.tolist() == [[0, 2], [3, 4]]
    assert page.boxes.tolist() == [[0, 0, 1, 0.5], [0, 0.5, 1, 1]]
    assert page_of_lines([], "ocr").spans.shape == (0, 2)


@pytest.mark.parametrize("wrong", [{"dpi": 0}, {"max_pixels": 10}, {"max_pixels": 10**12}])
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(RidgewayError, match=f"{next(iter(wrong))} must be between"):
        Options(**wrong)  # type: ignore[arg-type]


def test_markdown_stays_as_it_is_and_its_headings_are_found(tmp_path: Path) -> None:
    text = "---\ntitle: x\n---\n# One *two*\n\ntext\n\n```\n# no heading\n```\n\nThree\n=====\n"
    page = read(tmp_path / "a.md", text)
    assert page.text == text
    assert [(text[offset:].split("\n")[0], heading) for offset, heading in page.headings] == [
        ("# One *two*", "One *two*"),
        ("Three", "Three"),
    ]


HTML = """<html><head><title>no</title><style>no</style></head><body><script>no()</script>
<h1>A <b>bold</b>
title</h1><p>One&nbsp;&amp; two<br>three</p><div hidden>no</div><p style="display: none">no</p>
<table><tr><th>Name</th><th>Age</th></tr><tr><td>Bo</td><td><p>7</p></td></tr></table>
<pre>  keep
   this</pre><ul><li>x</li><li>y</li></ul><h2>Last</h2>end</body></html>"""


def test_html_gives_what_a_reader_sees(tmp_path: Path) -> None:
    page = read(tmp_path / "a.html", HTML)
    assert page.text.split("\n") == [
        *(
            "A bold title",
            "One\xa0& two",
            "three",
            "Name | Age",
            "Bo | 7",
            "  keep",
            "   this",
            "x",
            "y",
            "Last",
            "end",
        ),
    ]
    assert page.headings == ((0, "A bold title"), (page.text.index("Last"), "Last"))


def test_a_declared_character_set_comes_before_the_guess(tmp_path: Path) -> None:
    page = read(tmp_path / "a.htm", '<meta charset="koi8-r"><p>Привет</p>'.encode("koi8-r"))
    assert (page.text, page.source) == ("Привет", "html (koi8-r)")
    assert read(tmp_path / "b.htm", '<meta charset="utf-8"><p>5 €</p>'.encode("cp1252")).text == "5 €"


def test_html_nested_deeply_is_read(tmp_path: Path) -> None:
    assert read(tmp_path / "a.html", "<div>" * 3000 + "deep").text == "deep"


def test_word_paragraphs_tables_and_headings_come_in_order(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_heading("Report", 0)
    document.add_paragraph("First\tpart")
    table = document.add_table(2, 2)
    for cell, text in zip((c for r in table.rows for c in r.cells), ("a", "b", "c", "d"), strict=True):
        cell.text = text
    document.add_paragraph("   ")
    document.add_heading("Next", 1)
    document.add_paragraph("end")
    document.save(str(tmp_path / "a.docx"))
    page = read_page(str(tmp_path / "a.docx"), 1, Options())
    assert page.text == "Report\nFirst\tpart\na | b\nc | d\nNext\nend"
    assert page.headings == ((0, "Report"), (page.text.index("Next"), "Next"))


@pytest.mark.parametrize(
    ("data", "category"),
    [
        (b"PK\x03\x04 cut off", "unreadable"),
        (b"plain text", "unreadable"),
        (bytes.fromhex("d0cf11e0a1b11ae1") + b"old", "unreadable"),
        (bytes.fromhex("d0cf11e0a1b11ae1") + "EncryptedPackage".encode("utf-16-le"), "encrypted"),
    ],
)
def test_what_is_no_word_document_has_a_category(tmp_path: Path, data: bytes, category: str) -> None:
    with pytest.raises(RowError) as caught:
        read(tmp_path / "a.docx", data)
    assert caught.value.category == category


def test_lines_of_a_corpus_are_pages_and_a_bad_line_is_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        json.dumps({"title": "T", "doc_id": 1, "text": "one\r\ntwo"}),
        "{bad",
        "",
        '{"text": 3}',
        '{"doc_id": 7, "text": "é"}',
    ]
    path.write_bytes(codecs.BOM_UTF8 + "\n".join([*lines, "", ""]).encode())
    assert count_pages(str(path), Options()) == 5
    first, last = read_page(str(path), 1, Options()), read_page(str(path), 5, Options())
    assert (first.text, first.headings) == ("one\ntwo", ((0, "T"),))
    assert (last.text, last.headings) == ("é", ((0, "7"),))
    assert read_page(str(path), 3, Options()).text == ""
    for number, message in (
        (2, "line 2 is not JSON"),
        (4, "line 4 is no object with a text"),
        (6, "the file has 5"),
    ):
        with pytest.raises(RowError, match=message) as caught:
            read_page(str(path), number, Options())
        assert caught.value.category == "unreadable"


def test_a_changed_corpus_is_indexed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read(path, '{"text": "a"}').text == "a"
    path.write_text('{"text": "longer"}\n{"text": "b"}')
    assert read_page(str(path), 2, Options()).text == "b"


def test_a_mail_is_its_subject_and_its_plain_body(tmp_path: Path) -> None:
    head = 'Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nContent-Type: multipart/alternative; boundary="b"\n\n'
    plain = "--b\nContent-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: 8bit\n\ncaf\xe9\n"
    html = "--b\nContent-Type: text/html\n\n<p>other</p>\n--b--\n"
    page = read(tmp_path / "a.eml", (head + plain + html).encode("latin-1"))
    assert (page.text, page.headings) == ("Grüße\n\ncafé", ((0, "Grüße"),))
    page = read(tmp_path / "b.eml", "Subject: x\nContent-Type: text/html\n\n<p>only</p><p>html</p>")
    assert page.text == "x\n\nonly\nhtml"


def test_a_mail_in_an_unknown_character_set_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="cannot be decoded"):
        read(tmp_path / "a.eml", b"Content-Type: text/plain; charset=nonesuch\n\n\xff")


@pytest.mark.parametrize("ending", [".txt", ".md", ".html", ".docx", ".eml", ".png"])
def test_a_format_without_pages_has_only_page_1(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"Subject: x\n\nbody")
    with pytest.raises(RowError):
        read_page(str(path), 2, Options())


@needs_unstructured
@pytest.mark.parametrize(
    "name", ["fake-email-utf-16.eml", "fake-email-utf-16-le.eml", "fake-email-utf-16-be.eml"]
)
def test_real_mails_in_utf_16_are_read_as_mail_and_as_text(tmp_path: Path, name: str) -> None:
    data = (UNSTRUCTURED / "eml" / name).read_bytes()
    assert read(tmp_path / "a.eml", data).text.startswith("Test Email\n\nThis is a test email")
    text = read(tmp_path / "a.txt", data)
    assert "Subject: Test Email" in text.text
    assert re.fullmatch(r"text \(utf-16(-le|-be)?\)", text.source)
    assert "\ufeff" not in text.text


@needs_unstructured
def test_a_text_in_hundreds_of_languages_is_utf_8() -> None:
    page = read_page(str(UNSTRUCTURED / "language-docs" / "UDHR_first_article_all.txt"), 1, Options())
    assert page.source == "text"
    assert "모든 인간은" in page.text
