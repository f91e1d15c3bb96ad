"""Folders that go with their owners."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.buffers import sweep as sweeping
from pipeline.buffers.identity import own
from pipeline.buffers.sweep import claim, remove, sweep

ROOT = Path(__file__).parents[1]


def claim_and_die(base: Path) -> Path:
    code = """
import pathlib, sys
from pipeline.buffers import sweep
print(sweep.claim(pathlib.Path(sys.argv[1])))
"""
    command = [sys.executable, "-c", code, str(base)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_a_folder_of_a_dead_process_is_swept_when_another_begins(tmp_path: Path) -> None:
    dead = claim_and_die(tmp_path)
    (dead / "value").write_bytes(b"left behind")
    mine = claim(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]


def test_folders_of_the_living_stay(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    assert sweep(tmp_path) == 0
    assert mine.is_dir()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "ridgeway-run").mkdir()
    (tmp_path / "other").mkdir()
    assert sweep(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_folders_of_another_host_are_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = claim_and_die(tmp_path)
    monkeypatch.setattr(sweeping, "_host", lambda: "0000beef")
    assert sweep(tmp_path) == 0
    assert dead.is_dir()


def test_only_its_own_process_removes_a_folder(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    other = tmp_path / mine.name.replace(own(), f"{own()}0")
    other.mkdir()
    remove(other)
    remove(mine)
    assert other.is_dir()
    assert not mine.exists()


def test_sweeping_no_folder_is_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "absent") == 0
