"""The README tells the truth about the tree: every module stands in it with a comment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("harness", "scanners", "kernels", "sessions", "reports")


@pytest.fixture(scope="module")
def tree() -> dict[str, str]:
    """Paths of the README's file tree with their comments."""
    readme = ROOT / "README.md"
    if not (ROOT / "Makefile").exists():  # `make test-wheel` copies the tests and not the tree
        pytest.skip("needs the source tree")
    block = re.search(r"## Where things are\n+```\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    found: dict[str, str] = {}
    parents: list[str] = []
    for line in block.group(1).splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, comment = line.strip().partition("  ")
        parents = [*parents[:depth], name.rstrip("/")]
        found["/".join(parents)] = comment.strip()
    return found


def test_every_module_is_in_the_tree_with_a_comment(tree: dict[str, str]) -> None:
    modules = [
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    missing = [module for module in modules if not tree.get(module)]
    assert not missing, f"add these to README's file tree: {missing}"


def test_nothing_in_the_tree_is_gone(tree: dict[str, str]) -> None:
    gone = [path for path in tree if not (ROOT / path).exists()]
    assert not gone, f"README's file tree names what does not exist: {gone}"
