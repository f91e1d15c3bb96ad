"""A folder as users have it, through the real readers and the real job; no model is needed for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster import local_client
from pipeline.graph import Graph, node
from pipeline.job import Summary, Task, run_job
from pipeline.machine import Device, Machine, cores
from pipeline.records import read_lines
from pipeline.values import Documents
from stages.fetch import StoreChunks
from stages.index import IndexWords
from stages.read import ListPages, ReadPages
from stages.split import Split
from vision.files import crawl

MATERIAL = Path(__file__).parent.parent.parent / "shared" / "material"
needs_material = pytest.mark.skipif(
    not (MATERIAL / "pypdf-sample-files").is_dir() or not (MATERIAL / "ocrmypdf-resources").is_dir(),
    reason="needs ../shared/material/pypdf-sample-files and its neighbours, not part of a clone",
)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_client(Machine((Device("cpu:0", cores()),))) as found:
        yield found


def index(folder: Path, run: Path, client: Any) -> Summary:
    """Read a folder and index its words."""
    nodes = (
        node("pages", ListPages(), documents="documents"),
        node("texts", ReadPages(dpi=40), pages="pages"),
        node("chunks", Split("all-MiniLM-L6-v2"), texts="texts"),
        node("corpus", StoreChunks(run / "corpus"), chunks="chunks"),
        node("words", IndexWords(run / "words"), chunks="chunks"),
    )
    graph = Graph({"documents": Documents}, nodes, {"corpus": "corpus", "words": "words"})
    found = crawl([folder])
    task = Task(graph, run, run, found.documents, None, found.failures, found.unsupported)
    return run_job(task, client=client)


def errors(run: Path) -> dict[str, tuple[str, str]]:
    rows = list(read_lines(run / "errors.jsonl"))
    assert len({(r["document"], r["page"]) for r in rows}) == len(rows), "a row is listed twice"
    return {r["document"]: (r["category"], r["stage"]) for r in rows}


def test_bad_files_cost_only_themselves(tmp_path: Path, client: Any) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "a.txt").write_text("The first good document.")
    (folder / "b.pdf").write_bytes(b"%PDF-1.4 and then nothing that makes sense")
    (folder / "c.png").write_bytes(b"")
    (folder / "d.txt").write_text("   \n \t \n")
    (folder / "e.md").write_text("# Head\n\nThe last good document.")
    (folder / "f.xyz").write_text("a kind that nobody reads")
    summary = index(folder, tmp_path / "run", client)
    assert dict(summary.documents) == {"read": 5, "indexed": 2, "empty": 1, "failed": 2, "unsupported": 1}
    assert errors(tmp_path / "run") == {"b.pdf": ("unreadable", "pages"), "c.png": ("empty", "crawl")}
    assert summary.exit_code == 1


@needs_material
def test_good_pdfs_around_damaged_ones_are_all_indexed(tmp_path: Path, client: Any) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    samples = MATERIAL / "pypdf-sample-files"
    good = ["001-trivial/minimal-document.pdf", "003-pdflatex-image/pdflatex-image.pdf",
            "004-pdflatex-4-pages/pdflatex-4-pages.pdf", "016-libre-office-link/libre-office-link.pdf",
            "022-pdfkit/pdfkit.pdf"]  # fmt: skip
    for number, name in enumerate(good):
        shutil.copy(samples / name, folder / f"{number}.pdf")
    shutil.copy(MATERIAL / "ocrmypdf-resources/tests/resources/invalid.pdf", folder / "2a.pdf")
    whole = (MATERIAL / "haystack-tests/test/test_files/pdf/sample_pdf_1.pdf").read_bytes()
    (folder / "2b.pdf").write_bytes(whole[: len(whole) // 2])
    summary = index(folder, tmp_path / "run", client)
    assert summary.documents["indexed"] == len(good)
    assert errors(tmp_path / "run") == {"2a.pdf": ("unreadable", "pages"), "2b.pdf": ("unreadable", "pages")}
    assert summary.exit_code == 1


@needs_material
def test_one_document_under_two_names_is_citable_by_both(tmp_path: Path, client: Any) -> None:
    from retrieval.corpus import open_corpus

    folder = tmp_path / "documents"
    folder.mkdir()
    for name in ("first.pdf", "second.pdf"):
        shutil.copy(MATERIAL / "pypdf-sample-files/001-trivial/minimal-document.pdf", folder / name)
    index(folder, tmp_path / "run", client)
    assert {i[0] for i in open_corpus(tmp_path / "run" / "corpus").ids()} == {"first.pdf", "second.pdf"}
