"""Every CUDA path of this project, run once on the devices at hand: one table, with GB/s, and ok or failed.

    python -m benchmarks.cuda_paths [--mib 256]

Each path moves float32 values of `--mib` MiB and checks them; each edge is that of a pipeline that is run, by
one of the ways of a plan (see `benchmarks.cuda_edges`). Times are wall clock, the best of five, until
the device has done its work; a hand-over without a copy is told in GB/s as if it had copied, to compare.
Exits 0 only where all is ok; a path that needs a second device is left out with one. Without CUDA it says so
and exits 0. Never run on a GPU so far.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import cuda_moves as moves
from benchmarks.cuda_edges import EDGES
from benchmarks.cuda_moves import Absent, Measured


@dataclass(frozen=True, slots=True)
class Row:
    path: str
    state: str
    nbytes: float = 0.0
    seconds: float = 0.0

    def cells(self) -> tuple[str, ...]:
        if not self.seconds:
            return self.path, "", "", "", self.state
        rate = f"{self.nbytes / self.seconds / 1e9:.1f}" if self.nbytes else ""
        return self.path, f"{self.nbytes / 2**20:.0f}", f"{self.seconds * 1e3:.2f}", rate, self.state


def calibration(nbytes: int) -> Measured:
    from pipeline.calibrate import calibrate
    from pipeline.machine import detect

    start = time.perf_counter()
    found = calibrate(detect())
    for lane in (d for d in found.devices if d.kind == "cuda"):
        told = ", ".join(f"{k} {v / 1e12:.0f}" for k, v in lane.profile.peaks.items())
        print(f"{lane.name}: {lane.profile.bandwidth / 1e9:.0f} GB/s; TFLOP/s: {told}")
    return 0.0, time.perf_counter() - start


def marked_tests(nbytes: int) -> Measured:
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:])
        raise ValueError(f"pytest exited with {done.returncode}")
    return 0.0, time.perf_counter() - start


PATHS: dict[str, Callable[[int], Measured]] = {
    "handed on by event, one process": moves.by_event,
    "mapped by another process": moves.by_ipc,
    "from GPU to GPU": moves.by_peer,
    "upload, pageable": moves.up(0),
    "upload, pinned": moves.up(4),
    "upload, registered memfd": moves.up_registered,
    "download, pageable": moves.down(0),
    "download, pinned": moves.down(4),
    "upload, run, download in turn": moves.in_turn,
    "upload, run, download overlapped": moves.at_once,
    **EDGES,
    "calibration": calibration,
    "tests marked gpu": marked_tests,
}


def attempt(path: str, nbytes: int) -> Row:
    try:
        return Row(path, "ok", *PATHS[path](nbytes))
    except Absent as why:
        return Row(path, f"left out: {why}")
    except Exception as error:
        return Row(path, f"failed: {type(error).__name__}: {error}")


def show(rows: list[Row]) -> None:
    cells = [("path", "MiB", "ms", "GB/s", ""), *(row.cells() for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    for first, *rest, state in cells:
        print(first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)), state)


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=256)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to check")
        return 0
    rows = [attempt(path, given.mib << 20) for path in PATHS]
    show(rows)
    return int(any(row.state.startswith("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
