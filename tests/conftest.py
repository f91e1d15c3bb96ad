"""Settings for all tests: random ones are the same on every run where it matters that they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from pipeline.calibrate import cache_path
from pipeline.machine import detect
from pipeline.machine_file import dump
from pipeline.models import cache_dir

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests share converted models with the user, but neither read nor write what runs have shown.

    The machine counts as measured, so that no test measures it by the way.
    """
    models = cache_dir() / "models"
    models.mkdir(parents=True, exist_ok=True)
    own = tmp_path_factory.mktemp("cache")
    (own / "models").symlink_to(models)
    here = detect()
    dump(here, cache_path(here, own))
    before = os.environ.get("RIDGEWAY_CACHE")
    os.environ["RIDGEWAY_CACHE"] = str(own)
    yield
    del os.environ["RIDGEWAY_CACHE"]
    if before is not None:
        os.environ["RIDGEWAY_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def _close_the_last_pdf() -> Iterator[None]:
    """The reader keeps its last document open, which PDFium would tell at exit."""
    yield
    pdf = sys.modules.get("vision.pdf")
    if pdf is not None:
        pdf._document.cache_clear()
