"""The doctor sees what is wrong, says what to do, and never falls ill itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from pipeline import hardware, probes
from pipeline.doctor import Report, examine
from pipeline.models import Installed
from pipeline.probes import Check

ADVICE = "mend what it names; if it names nothing of yours, report it"


def well() -> Check:
    return Check("well", "ok", "1")


def ill() -> Iterator[Check]:
    yield Check("half", "warn", "2", "mend it")
    raise OSError("the disk is on fire")


def test_a_probe_that_raises_is_a_failed_row_and_the_others_go_on() -> None:
    report = examine((ill, well))
    assert report.rows() == [
        ("half", "warn", "2", "mend it"),
        ("ill", "fail", "OSError: the disk is on fire", ADVICE),
        ("well", "ok", "1", ""),
    ]
    assert (report.status, report.exit_code) == ("fail", 1)


@pytest.mark.parametrize(
    ("statuses", "worst", "code"),
    [((), "ok", 0), (("ok", "warn"), "warn", 0), (("fail", "ok"), "fail", 1), (("warn", "ok"), "warn", 0)],
)
def test_only_a_failure_makes_the_exit_code_one(statuses: tuple[Any, ...], worst: str, code: int) -> None:
    report = Report(tuple(Check("x", s, "") for s in statuses))
    assert (report.status, report.exit_code) == (worst, code)


def test_json_holds_every_check_and_the_worst_status() -> None:
    told = json.loads(json.dumps(examine((well,)).as_dict()))
    assert told == {"status": "ok", "checks": [{"name": "well", "status": "ok", "found": "1", "advice": ""}]}


def packages(**found: str) -> list[tuple[str, str, str]]:
    wanted = {"torch": SpecifierSet(">=2.9")}
    return [(c.name, c.status, c.advice) for c in probes.packages(found, wanted)]


def test_missing_and_old_packages_fail_with_the_command_that_mends_them() -> None:
    assert packages(torch="2.8.1", dask="missing", pillow="11") == [
        ("torch", "fail", "pip install 'torch>=2.9'"),
        ("dask", "fail", "pip install dask"),
        ("pillow", "ok", ""),
    ]


def test_a_build_or_preview_of_a_version_counts_as_that_version() -> None:
    assert packages(torch="2.13.0+cpu") == packages(torch="2.14.0.dev2026") == [("torch", "ok", "")]


def test_ridgeway_need_not_be_installed_but_python_must_be_new() -> None:
    assert packages(python="3.10.1", ridgeway="missing")[0][:2] == ("python", "fail")
    assert packages(ridgeway="missing") == [("ridgeway", "ok", "")]


def test_libraries_that_import_are_one_row() -> None:
    assert list(probes.libraries(("a", "b"), str)) == [Check("imports", "ok", "a, b")]


def test_a_library_that_lacks_a_system_library_is_told_with_its_package() -> None:
    def load(name: str) -> None:
        if name == "cv2":
            raise ImportError("libGL.so.1: cannot open shared object file: No such file or directory")
        if name == "new":
            raise AttributeError("module 'numpy' has no attribute 'float'\nmore")

    cv2, new = probes.libraries(("torch", "cv2", "new"), load)
    assert (cv2.name, cv2.status) == ("import cv2", "fail")
    assert cv2.advice == "install the system's libGL.so.1 (Debian: apt install libgl1 libglib2.0-0)"
    assert new.found == "AttributeError: module 'numpy' has no attribute 'float'"
    assert new.advice


def fake_faiss(gpus: int) -> Any:
    return SimpleNamespace(
        __version__="1.15", get_num_gpus=lambda: gpus, get_compile_options=lambda: "OPTIMIZE AVX2 "
    )


def test_two_packages_of_faiss_are_a_conflict() -> None:
    found = probes.faiss({"faiss-gpu", "faiss-cpu"}, lambda _: fake_faiss(1))
    assert (found.status, found.found) == ("fail", "faiss-cpu and faiss-gpu")
    assert found.advice == "pip uninstall faiss-cpu faiss-gpu, then install only one of them"


@pytest.mark.parametrize(("gpus", "where"), [(0, "on the CPU"), (2, "2 GPUs")])
def test_the_flavour_of_faiss_is_told(gpus: int, where: str) -> None:
    found = probes.faiss({"faiss-x"}, lambda _: fake_faiss(gpus))
    assert (found.status, found.found) == ("ok", f"faiss-x 1.15, {where} (OPTIMIZE AVX2)")


def test_models_that_are_not_installed_are_a_warning_with_the_command() -> None:
    here, gone = probes.weights([Installed("a", "/m/a", True), Installed("b", "pip install b", False)])
    assert (here.status, here.found) == ("ok", "/m/a")
    assert (gone.status, gone.advice) == ("warn", "to use this model: pip install b")


@pytest.mark.parametrize(
    ("value", "status"),
    [("1", "warn"), ("2", "ok"), ("4", "ok"), ("5", "warn"), ("0", "warn"), ("many", "warn")],
)
def test_thread_variables_must_fit_the_cores(value: str, status: str) -> None:
    (found,) = probes.threads({"OMP_NUM_THREADS": value}, 4)
    assert (found.name, found.status, bool(found.advice)) == ("OMP_NUM_THREADS", status, status == "warn")


def test_one_thread_is_right_on_one_core_and_no_variable_is_well() -> None:
    assert [c.status for c in probes.threads({"OMP_NUM_THREADS": "1"}, 1)] == ["ok"]
    assert [c.status for c in probes.threads({}, 8)] == ["ok"]


def test_variables_of_the_hub_are_shown_but_no_token() -> None:
    found = probes.hub({"HF_HUB_OFFLINE": "1", "HF_TOKEN": "secret"}).found
    assert found == "HF_HUB_OFFLINE=1"


@pytest.mark.parametrize(
    ("limit", "status", "found"),
    [
        ("max", "ok", "8.0 GiB free"),
        (str(1 << 30), "warn", "1.0 GiB free (the container's limit; 8.0 GiB outside)"),
        (str(1 << 60), "ok", "8.0 GiB free"),
    ],
)
def test_memory_counts_the_limit_of_a_container(tmp_path: Path, limit: str, status: str, found: str) -> None:
    (tmp_path / "max").write_text(f"{limit}\n")
    check = probes.memory(8 << 30, (str(tmp_path / "max"), str(tmp_path / "none")))
    assert (check.status, check.found) == (status, found)


def test_a_cache_folder_that_is_not_there_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fine, blocked = probes.disks(tmp_path / "a" / "b", tmp_path / "file" / "c")
    assert fine.found.startswith(f"{tmp_path / 'a' / 'b'}: ")
    assert (blocked.status, blocked.found) == ("warn", f"{tmp_path / 'file' / 'c'}: cannot be written")


def test_the_real_probes_without_imports_find_this_machine_usable() -> None:
    report = examine(
        (
            probes.packages,
            hardware.cpu,
            hardware.quota,
            probes.memory,
            probes.disks,
            probes.weights,
            probes.threads,
        )
    )
    assert [c for c in report.checks if c.status == "fail"] == []
    assert len({c.name for c in report.checks}) == len(report.checks)


@pytest.mark.slow
def test_the_whole_examination_finds_this_machine_usable() -> None:
    code = (
        "from pipeline.doctor import examine; r = examine(); print(r.rows()); raise SystemExit(r.exit_code)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "'imports', 'ok'" in done.stdout
