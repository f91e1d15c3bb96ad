"""PDF pages: text with its places, pixels where there is no text, errors with a category."""

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import RowError
from vision.isolate import Isolated
from vision.page import Options, Page, count_pages, read_page

MATERIAL = Path(__file__).parents[2] / "shared" / "material"

SAMPLES = MATERIAL / "pypdf-sample-files"
SCANS = MATERIAL / "ocrmypdf-resources" / "tests" / "resources"
needs_samples = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="needs ../shared/material/pypdf-sample-files, which is not part of a clone"
)
needs_scans = pytest.mark.skipif(
    not SCANS.is_dir(), reason="needs ../shared/material/ocrmypdf-resources, which is not part of a clone"
)

TWO_LINES = "BT /F 20 Tf 50 700 Td (First line here) Tj 0 -30 Td (second line) Tj ET"


def make_pdf(
    *contents: str,
    page: str = "",
    font: str = "",
    more: Sequence[bytes] = (),
    key: bytes = b"",
    trailer: str = "",
) -> bytes:
    """A PDF with one page of 600 x 800 points for each content stream, which may use the font /F.

    `page` goes into each page's dictionary, `font` into the font's, `more` are further objects (from number
    3 + 2 * pages on), `key` encrypts the streams, `trailer` goes into the trailer.
    """
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    for number, content in enumerate(contents):
        stream = content.encode("latin-1")
        body = 4 + 2 * number
        if key:
            stream = rc4(
                hashlib.md5(key + struct.pack("<I", body)[:3] + b"\0\0").digest()[: len(key) + 5], stream
            )
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {body} 0 R /Resources << "
            f"/Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica {font} >> >> "
            f"/XObject << /X {3 + 2 * len(contents)} 0 R >> >> {page} >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    kids = " ".join(f"{3 + 2 * n} 0 R" for n in range(len(contents)))
    objects[1] = f"<< /Type /Pages /Count {len(contents)} /Kids [{kids}] >>".encode()
    objects += more
    out, places = b"%PDF-1.7\n", []
    for number, item in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    head = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer.format(start=start)} >>"
    return out + f"{head}\nstartxref\n{start}\n%%EOF\n".encode("latin-1")


def rc4(key: bytes, data: bytes) -> bytes:
    state, j, out = list(range(256)), 0, bytearray()
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def encrypted(content: str, user: str, owner: str) -> bytes:
    """Encrypted as PDF 1.7 section 7.6 says, revision 2 (RC4, 40 bits)."""
    pad = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
    padded = (user.encode() + pad)[:32]
    o = rc4(hashlib.md5((owner.encode() + pad)[:32]).digest()[:5], padded)
    key = hashlib.md5(padded + o + struct.pack("<i", -4) + b"id").digest()[:5]
    u = rc4(key, pad)
    trailer = (
        f"/ID [<6964> <6964>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{o.hex()}> /U <{u.hex()}> >>"
    )
    return make_pdf(content, key=key, trailer=trailer)


def read(path: Path, data: bytes, number: int = 1, options: Options | None = None) -> Page:
    path.write_bytes(data)
    return read_page(str(path), number, options or Options())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.pdf"


def test_each_line_has_its_span_and_its_place(file: Path) -> None:
    page = read(file, make_pdf(TWO_LINES))
    assert page.text == "First line here\nsecond line"
    assert [page.text[a:b] for a, b in page.spans] == ["First line here", "second line"]
    x0, y0, _, y1 = page.boxes[0]
    assert x0 == pytest.approx(50 / 600, abs=0.01)
    assert y1 == pytest.approx(100 / 800, abs=0.01)
    assert 0.08 < y0 < y1 < page.boxes[1][3]
    assert page.image is None
    assert page.source == "pdf"


@pytest.mark.parametrize("rotate", [90, 180, 270])
def test_rotation_changes_places_but_not_text(file: Path, rotate: int) -> None:
    plain = read(file, make_pdf(TWO_LINES))
    turned = read(file, make_pdf(TWO_LINES, page=f"/Rotate {rotate}"))
    assert turned.text == plain.text
    x, y = plain.boxes[0, :2]
    corner = {90: turned.boxes[0, [2, 1]], 180: turned.boxes[0, [2, 3]], 270: turned.boxes[0, [0, 3]]}[rotate]
    assert corner == pytest.approx({90: (1 - y, x), 180: (1 - x, 1 - y), 270: (y, 1 - x)}[rotate], abs=1e-5)


def test_text_set_sideways_and_turned_back_reads_like_upright_text(file: Path) -> None:
    sideways = "BT /F 20 Tf 0 1 -1 0 100 50 Tm (First line here) Tj 0 -30 Td (second line) Tj ET"
    page = read(file, make_pdf(sideways, page="/Rotate 90"))
    assert page.text == "First line here\nsecond line"
    assert page.boxes[0, 2] - page.boxes[0, 0] > page.boxes[0, 3] - page.boxes[0, 1]


def test_a_page_without_text_is_rendered_as_it_is_displayed(file: Path) -> None:
    page = read(file, make_pdf("1 0 0 rg 0 0 300 200 re f", page="/Rotate 90"), options=Options(dpi=72))
    assert page.text == ""
    assert page.image is not None
    assert page.image.dtype == np.uint8
    assert page.image.shape == (600, 800, 3)
    assert page.image[10, 10].tolist() == [255, 0, 0]
    assert page.image[590, 790].tolist() == [255, 255, 255]


def test_renderings_stay_within_the_pixel_limit(file: Path) -> None:
    page = read(file, make_pdf("0 0 300 200 re f"), options=Options(max_pixels=10_000))
    assert page.image is not None
    assert 9_000 < page.image.shape[0] * page.image.shape[1] <= 10_000


def test_a_blank_page_has_neither_text_nor_image(file: Path) -> None:
    page = read(file, make_pdf("BT /F 9 Tf (   ) Tj ET"))
    assert (page.text, page.image) == ("", None)


def test_blank_pages_keep_their_number(file: Path) -> None:
    file.write_bytes(make_pdf(TWO_LINES, "", TWO_LINES.replace("second", "third")))
    assert count_pages(str(file), Options()) == 3
    assert read_page(str(file), 2, Options()).text == ""
    assert "third" in read_page(str(file), 3, Options()).text


def test_a_hyphen_at_the_end_of_a_line_stays_with_its_line_break(file: Path) -> None:
    page = read(file, make_pdf("BT /F 20 Tf 50 700 Td (A broken sent-) Tj 0 -24 Td (ence goes on) Tj ET"))
    assert page.text == "A broken sent-\nence goes on"
    assert len(page.boxes) == 2


def test_letters_that_mean_nothing_are_left_to_recognition(file: Path) -> None:
    space = "1 begincodespacerange <00> <FF> endcodespacerange"
    cmap = f"begincmap {space} 1 beginbfrange <20> <7E> <E020> endbfrange endcmap"
    stream = f"<< /Length {len(cmap)} >>\nstream\n{cmap}\nendstream".encode()
    page = read(file, make_pdf(TWO_LINES, font="/ToUnicode 5 0 R", more=[stream]))
    assert page.text == ""
    assert page.image is not None


def test_a_file_that_is_no_pdf_is_unreadable(file: Path) -> None:
    with pytest.raises(RowError, match="export it again") as caught:
        read(file, b"%PDF-1.7\nnothing of the kind")
    assert caught.value.category == "unreadable"


def test_a_page_that_does_not_exist_is_unreadable(file: Path) -> None:
    with pytest.raises(RowError, match="page 2 was asked for, but the PDF has 1"):
        read(file, make_pdf(TWO_LINES), number=2)


def test_a_pdf_without_pages_is_empty(file: Path) -> None:
    file.write_bytes(make_pdf())
    with pytest.raises(RowError) as caught:
        count_pages(str(file), Options())
    assert caught.value.category in ("empty", "unreadable")


def test_a_pdf_with_only_an_owner_password_reads_as_usual(file: Path) -> None:
    assert read(file, encrypted(TWO_LINES, user="", owner="boss")).text == "First line here\nsecond line"


def test_a_needed_password_is_tried_and_never_told(file: Path) -> None:
    file.write_bytes(encrypted(TWO_LINES, user="open sesame", owner="boss"))
    for passwords in ((), ("wrong-guess",)):
        options = Options(passwords=passwords)
        with pytest.raises(RowError, match="needs a password") as caught:
            count_pages(str(file), options)
        assert caught.value.category == "encrypted"
        assert "wrong-guess" not in str(caught.value) + repr(caught.value) + repr(options)
    assert read_page(str(file), 1, Options(passwords=("wrong", "open sesame"))).text.startswith("First line")


LOOP = b"""<< /Type /XObject /Subtype /Form /BBox [0 0 600 800] /Length 5
/Resources << /XObject << /X 5 0 R >> >> >>
stream
/X Do
endstream"""
DAMAGED = {
    "xref chain that leads back": make_pdf(TWO_LINES, trailer="/Prev {start}"),
    "page tree within itself": make_pdf(TWO_LINES).replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]"),
    "form that draws itself": make_pdf("/X Do", more=[LOOP]),
    "unclosed dictionaries": make_pdf(TWO_LINES, page="/A " + "<< /A " * 20000),
    "first half of the bytes": make_pdf(TWO_LINES)[:300],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_end_alone_and_in_time(file: Path, tmp_path: Path, damage: str) -> None:
    file.write_bytes(DAMAGED[damage])
    good = tmp_path / "good.pdf"
    good.write_bytes(make_pdf(TWO_LINES))
    pool = Isolated()
    calls = [(str(path), 1, Options(dpi=30)) for path in (file, good)]
    bad, fine = pool.map("vision.page:read_page", calls, seconds=20)
    assert isinstance(bad, Page) or bad.category in ("unreadable", "timeout", "worker died", "memory")
    assert fine.text == "First line here\nsecond line"


@needs_samples
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_rotated_arabic_reads_like_its_twin(number: int) -> None:
    twin = read_page(str(SAMPLES / "015-arabic/habibi.pdf"), 1, Options()).text
    assert read_page(str(SAMPLES / "015-arabic/habibi-rotated.pdf"), number, Options()).text == twin


@needs_samples
def test_two_columns_are_read_one_after_the_other_with_their_hyphens() -> None:
    text = read_page(str(SAMPLES / "026-latex-multicolumn/multicolumn.pdf"), 1, Options()).text
    assert "consectetuer adip-\niscing elit" in text
    assert text.index("Abstract") < text.index("Suspendisse ut massa") < text.index("Fusce mauris")


@needs_samples
def test_what_is_filled_into_a_form_is_text() -> None:
    assert "Alice" in read_page(str(SAMPLES / "012-libreoffice-form/libreoffice-form.pdf"), 1, Options()).text


@needs_samples
def test_cmyk_pictures_in_pages_are_no_negatives() -> None:
    image = read_page(str(SAMPLES / "023-cmyk-image/cmyk-image.pdf"), 1, Options(dpi=40)).image
    assert image is not None
    assert image[:30, :30].min() > 250  # the paper
    forest = image[200:250, 80:140].reshape(-1, 3).mean(axis=0)
    assert forest.max() < 120
    assert forest[1] > forest[0]


@needs_scans
def test_a_scan_with_rotate_is_rendered_upright() -> None:
    straight = read_page(str(SCANS / "skew.pdf"), 1, Options(dpi=20)).image
    turned = read_page(str(SCANS / "rotated_skew.pdf"), 1, Options(dpi=20)).image
    assert straight is not None
    assert turned is not None
    assert turned.shape == straight.shape
    assert (
        np.corrcoef(straight.ravel(), turned.ravel())[0, 1]
        > np.corrcoef(straight.ravel(), turned[::-1, ::-1].ravel())[0, 1]
    )
