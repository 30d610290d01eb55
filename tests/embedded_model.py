"""The embedded model, for tests that need real weights or words: without it they are skipped, but never in CI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leadline.embedded import embedded_gguf
from leadline.errors import UsageError


def require_embedded() -> Path:
    """The file; the test is skipped without it, and fails in CI, where nothing may be left out unseen."""
    try:
        return embedded_gguf()
    except UsageError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
