"""From folders, files and globs to documents with stable names."""

import os
from pathlib import Path

import pytest

from pipeline.errors import RidgewayError
from vision.files import Crawl, crawl


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    return folder


def names(found: Crawl) -> list[str]:
    return [str(i[0]) for i in found.documents.ids]


def test_a_folder_is_read_with_all_below_it_in_order(tmp_path: Path) -> None:
    found = crawl([fill(tmp_path, "b.txt", "a/z.PDF", "a/b/c.md", "a.txt", "a-b.txt")])
    assert names(found) == ["a/b/c.md", "a/z.PDF", "a-b.txt", "a.txt", "b.txt"]
    assert found.documents.paths[0] == str(tmp_path / "a/b/c.md")
    assert found.unsupported == ()
    assert found.failures == ()


def test_files_without_a_reader_are_listed(tmp_path: Path) -> None:
    found = crawl([fill(tmp_path, "a.txt", "b/c.xyz", "README")])
    assert names(found) == ["a.txt"]
    assert found.unsupported == ("README", "b/c.xyz")


def test_empty_files_fail_and_the_others_are_found(tmp_path: Path) -> None:
    fill(tmp_path, "good.txt")
    for name in ("a.pdf", "b.txt", "c.png"):
        (tmp_path / name).touch()
    found = crawl([tmp_path])
    assert names(found) == ["good.txt"]
    assert [(f.id, f.stage, f.category) for f in found.failures] == [
        (("a.pdf",), "crawl", "empty"),
        (("b.txt",), "crawl", "empty"),
        (("c.png",), "crawl", "empty"),
    ]


def test_hidden_files_and_lock_files_are_left_out(tmp_path: Path) -> None:
    found = crawl([fill(tmp_path, ".a.txt", ".git/b.txt", "~$c.docx", "d.txt")])
    assert names(found) == ["d.txt"]
    assert (found.unsupported, found.failures) == ((), ())


def test_a_hidden_folder_that_is_asked_for_is_read(tmp_path: Path) -> None:
    assert names(crawl([fill(tmp_path / ".hidden", "a.txt")])) == ["a.txt"]


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    fill(tmp_path / "docs", "a/b.txt")
    fill(tmp_path / "other", "c.txt")
    (tmp_path / "docs/a/up").symlink_to(tmp_path / "docs")
    (tmp_path / "docs/a/out").symlink_to(tmp_path / "other")
    assert names(crawl([tmp_path / "docs"])) == ["a/b.txt", "a/out/c.txt"]


def test_a_link_to_nowhere_and_a_pipe_are_failures(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone.txt")
    os.mkfifo(tmp_path / "b.txt")
    found = crawl([tmp_path])
    assert [f.category for f in found.failures] == ["unreadable", "unreadable"]
    assert "check where its link leads" in found.failures[0].message
    assert "not a regular file" in found.failures[1].message


def test_a_file_without_permission_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a.txt")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as root, who may read all
    (failure,) = crawl([tmp_path]).failures
    assert failure.category == "unreadable"
    assert "permission" in failure.message


def test_a_name_that_is_not_utf_8_is_a_failure(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("x")
    found = crawl([fill(tmp_path, "good.txt")])
    assert names(found) == ["good.txt"]
    (failure,) = found.failures
    assert failure.id[0].encode() == rb"caf\udce9.txt"  # type: ignore[union-attr]
    assert "rename" in failure.message


def test_a_file_is_named_from_its_folder_and_a_glob_from_its_fixed_part(tmp_path: Path) -> None:
    fill(tmp_path, "x/a.txt", "x/y/b.txt", "x/y/c.md")
    assert names(crawl([tmp_path / "x/y/b.txt"])) == ["b.txt"]
    assert names(crawl([f"{tmp_path}/x/**/*.txt"])) == ["a.txt", "y/b.txt"]
    assert names(crawl([f"{tmp_path}/x/*"])) == ["a.txt", "y/b.txt", "y/c.md"]


def test_a_folder_with_brackets_in_its_name_is_no_glob(tmp_path: Path) -> None:
    assert names(crawl([fill(tmp_path / "[old]", "a.txt")])) == ["a.txt"]


def test_equal_names_of_two_roots_are_told_apart(tmp_path: Path) -> None:
    roots = [
        fill(tmp_path / "p/2022", "a.txt"),
        fill(tmp_path / "p/2023", "a.txt", "b.txt"),
        fill(tmp_path / "q", "c.txt"),
    ]
    assert names(crawl(roots)) == ["2022/a.txt", "2023/a.txt", "2023/b.txt", "c.txt"]
    roots = [fill(tmp_path / "r/docs", "a.txt"), fill(tmp_path / "s/docs", "a.txt")]
    assert names(crawl(roots)) == ["r/docs/a.txt", "s/docs/a.txt"]


def test_the_file_that_two_roots_reach_is_listed_once(tmp_path: Path) -> None:
    fill(tmp_path, "a.txt", "b.txt")
    assert names(crawl([tmp_path / "b.txt", tmp_path, f"{tmp_path}/*.txt"])) == ["b.txt", "a.txt"]


def test_a_root_that_does_not_exist_names_the_near_miss(tmp_path: Path) -> None:
    fill(tmp_path, "reports/a.txt")
    with pytest.raises(RidgewayError, match=r"no file or folder '.*report'.*did you mean 'reports'"):
        crawl([tmp_path / "report"])
    with pytest.raises(RidgewayError, match=r"has no 'reporst'; did you mean 'reports'"):
        crawl([tmp_path / "reporst/b/c.txt"])
    with pytest.raises(RidgewayError, match="nothing matches"):
        crawl([f"{tmp_path}/*.pdf"])


def test_an_empty_folder_has_no_documents(tmp_path: Path) -> None:
    assert len(crawl([tmp_path]).documents) == 0


def test_documents_know_their_sizes_without_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "a.txt", "b.md", "c.xyz")
    (tmp_path / "b.md").write_bytes(b"x" * 2001)
    (tmp_path / "link.txt").symlink_to(tmp_path / "b.md")
    monkeypatch.setattr("builtins.open", None)
    found = crawl([tmp_path])
    assert dict(zip(names(found), found.documents.sizes, strict=True)) == {
        "a.txt": 4, "b.md": 2001, "link.txt": 2001,
    }  # fmt: skip
    assert found.documents.lengths == (1, 3, 3)
