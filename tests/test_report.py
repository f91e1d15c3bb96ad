"""What is printed of a run: what went on beside the batches, and what was handed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.report import show
from pipeline.run_folder import Summary

SUMMARY = Summary(0, 0, 0, 0, {"indexed": 1}, {}, 2, True, 3.0)


def said(folder: Path, capsys: pytest.CaptureFixture[str], **record: Any) -> str:
    (folder / "errors.jsonl").touch()
    (folder / "run.json").write_text(json.dumps({"stages": [], **record}))
    show(folder, SUMMARY, answers=False)
    return capsys.readouterr().out


def step(preparing: float, handing: float) -> dict[str, Any]:
    return {"step": "s", "batches": 1, "rows": 1, "seconds": 1.0, "preparing": preparing, "handing": handing}


def test_seconds_beside_the_batches_are_told_where_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(tmp_path, capsys, stages=[step(0.5, 0.2), step(1.0, 0.01)])
    assert "beside the batches: 1.5 s for inputs, 0.2 s for handing over\n" in found
    assert "beside the batches:" not in said(tmp_path, capsys, stages=[step(0.01, 0.02)])


def test_bytes_and_what_int8_saved_and_lost_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"shared_bytes": 0, "copied_bytes": 0}
    lossy = {"shared_bytes": 0, "copied_bytes": 1 << 20, "int8_saved_bytes": 3 << 20}
    handed = {"pages": plain, "vectors": {**lossy, "int8_largest_error": 0.003937}}
    found = said(tmp_path, capsys, handed_over=handed)
    assert "handed over between processes: 0 bytes shared, 1.0 MiB copied\n" in found
    assert (
        "vectors: vectors went as int8, 3.0 MiB less, off by 0.0039 of the largest of a row at most\n"
        in found
    )
    assert "as int8" not in said(tmp_path, capsys, handed_over={"pages": plain})


def test_tokens_are_told_of_the_steps_that_speak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"prompt_tokens": 80, "reused": 0, "new_tokens": 20, "drafted": 0, "accepted": 0}
    counted = {
        "said": {**plain, "stop_end": 3, "stop_length": 1, "seconds": 4.0},
        "more": {**plain, "reused": 64, "drafted": 10, "accepted": 9, "stop_end": 4, "seconds": 0.0},
    }
    found = said(tmp_path, capsys, counted=counted)
    assert "said: 80 prompt tokens, 20 new, 5 tokens/s; 3 end, 1 length\n" in found
    assert "more: 80 prompt tokens (64 reused), 20 new (9 of 10 drafts right); 4 end\n" in found
    assert "prompt tokens" not in said(tmp_path, capsys)
