"""Settings for all tests: random ones are the same on every run where it matters that they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _close_the_last_pdf() -> Iterator[None]:
    """The reader keeps its last document open, which PDFium would tell at exit."""
    yield
    pdf = sys.modules.get("vision.pdf")
    if pdf is not None:
        pdf._document.cache_clear()
