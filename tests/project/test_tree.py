"""The tree keeps its promises: packages are listed, modules are small and introduced, nothing names one machine."""

from __future__ import annotations

import ast
import contextlib
import re
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDERS = ("harness", "scanners", "kernels", "sessions", "reports")
LARGEST = 450
VAGUE = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}


def modules(root: Path, *folders: str) -> list[Path]:
    """The Python files below these folders, recorded samples aside."""
    return [
        path
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        if "samples" not in path.relative_to(root).parts[:2]
    ]


def tracked(root: Path) -> list[Path]:
    """The files of the repository, or a skip where the tree is not one."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def test_listed_packages_are_the_trees(root: Path, pyproject: dict[str, Any]) -> None:
    mapping = pyproject["tool"]["setuptools"]["package-dir"]
    assert sorted(mapping.values()) == sorted(FOLDERS)
    names = {folder: package for package, folder in mapping.items()}
    found = {
        ".".join([names[folder], *path.parent.relative_to(root / folder).parts])
        for folder in FOLDERS
        for path in modules(root, folder)
    }
    assert sorted(found) == sorted(pyproject["tool"]["setuptools"]["packages"])


def test_every_package_folder_has_an_init(root: Path) -> None:
    # The default editable install finds no package in a folder without one.
    folders = {path.parent for path in modules(root, *FOLDERS)}
    assert [str(folder.relative_to(root)) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_two_places_claim_one_dotted_name(root: Path) -> None:
    # harness/ is `leadline` itself, so a `scanners` in it would shadow the folder of that name.
    harness = root / "harness"
    taken = [name for name in FOLDERS if (harness / name).exists() or (harness / f"{name}.py").exists()]
    assert taken == []
    assert not (root / "conftest.py").exists(), "a conftest.py here would put the repository root on sys.path"


def test_modules_are_small_named_and_introduced(root: Path) -> None:
    faults = []
    for path in modules(root, *FOLDERS, "tests"):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root)
        if (lines := text.count("\n")) > LARGEST:
            faults.append(f"{name}: {lines} lines, more than {LARGEST}")
        if path.name in VAGUE:
            faults.append(f"{name}: say what it holds")
        if not ast.get_docstring(ast.parse(text)):
            faults.append(f"{name}: opens without a docstring")
    assert faults == []


HOME = re.compile(rb"(?<![\w.$}])/(?:home|root)/[\w.]+")


def test_no_file_names_a_home_directory(root: Path) -> None:
    faults = [
        f"{path.relative_to(root)}: {match.group().decode()}"
        for path in tracked(root)
        if path.suffix != ".sqlite"
        for match in list(HOME.finditer(path.read_bytes()))[:3]
    ]
    assert faults == []


def test_no_database_names_a_home_directory_but_in_what_a_model_wrote(root: Path) -> None:
    faults = []
    for path in (path for path in tracked(root) if path.suffix == ".sqlite"):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
                chosen = ", ".join(sorted(columns - ({"text"} if table == "step_result" else set())))
                for row in connection.execute(f"SELECT {chosen} FROM {table}"):
                    faults += [f"{path.name} {table}: {cell}" for cell in row if HOME.search(str(cell).encode())]
    assert faults == []


def test_set_up_names_no_host_and_ci_alone_names_the_recordings(root: Path) -> None:
    for name in ("Makefile", "constraints.txt", ".ci/run"):
        assert "://" not in (root / name).read_text(encoding="utf-8"), name
    wanted = "../" + "shared"
    naming = [path.relative_to(root).as_posix() for path in tracked(root) if wanted.encode() in path.read_bytes()]
    assert naming == [".ci/run"]
