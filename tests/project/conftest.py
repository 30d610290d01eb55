"""Fixtures of the tests about the project itself: they need the source tree, which a wheel does not carry."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

FOLDERS = {
    "harness": "leadline",
    "scanners": "leadline.scanners",
    "kernels": "leadline.kernels",
    "sessions": "leadline.sessions",
    "reports": "leadline.reports",
}


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository root; the test is skipped where only the tests were copied."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "Makefile").exists():  # `make test-wheel` copies the tests and not the tree
        pytest.skip("needs the source tree; these tests were copied away from it")
    assert all((folder / name).is_dir() for name in FOLDERS)
    return folder


@pytest.fixture(scope="session")
def pyproject(root: Path) -> dict[str, Any]:
    """`pyproject.toml`, parsed."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def shipped(root: Path) -> dict[str, Path]:
    """Every file the wheel must carry, by its path inside it: modules and data, but not notes beside the code, nor
    what was measured (`reports/reference`).
    """
    found: dict[str, Path] = {}
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root / folder)
            note = (path.suffix == ".md" and inside.parts[0] != "samples") or inside.parts[0] == "reference"
            if path.is_file() and "__pycache__" not in inside.parts and not note:
                found[f"{package.replace('.', '/')}/{inside.as_posix()}"] = path
    return found
