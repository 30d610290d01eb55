"""The wheel holds one package with every module and data file, and works where the source tree is out of sight."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDERS = ("harness", "scanners", "kernels", "sessions", "reports")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a clean copy: a build folder left in the tree could lend it modules that are gone."""
    source = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source / name)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked as an installer would: it is pure Python."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_one_top_level_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert wheel.name.endswith("-py3-none-any.whl")
    assert {top for top in tops if not top.endswith(".dist-info")} == {"leadline"}
    assert len(tops) == 2


def test_every_module_and_data_file_is_in_it(wheel: Path, shipped: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("leadline/")}
        assert sorted(set(shipped) - inside) == []
        assert sorted(inside - set(shipped)) == []
        changed = [name for name, path in shipped.items() if archive.read(name) != path.read_bytes()]
    assert changed == []
    # Each kind of data file, named here so that losing a whole folder cannot go unseen.
    assert "leadline/py.typed" in inside
    for prefix, suffix in (
        ("leadline/sessions/samples/", ".json"),
        ("leadline/sessions/samples/scripts/", ".toml"),
        ("leadline/reports/", ".j2"),
        ("leadline/reports/", ".css"),
        ("leadline/scanners/calibrations/", ".safetensors"),
    ):
        assert any(name.startswith(prefix) and name.endswith(suffix) for name in inside), (prefix, suffix)


def test_it_works_away_from_the_tree(site: Path, root: Path, tmp_path: Path) -> None:
    code = f"""
import json
from importlib.metadata import entry_points, version
from importlib.util import find_spec
import leadline, leadline.kernels, leadline.scanners, leadline.sessions, leadline.reports

print(json.dumps({{
    "bare": [name for name in {FOLDERS!r} if find_spec(name) is not None],
    "files": [package.__file__ for package in (leadline, leadline.kernels, leadline.scanners, leadline.sessions)],
    "version": version("leadline"),
    "command": [point.value for point in entry_points(group="console_scripts", name="leadline")],
}}))
"""
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["bare"] == []
    assert [str(Path(file).relative_to(site)) for file in answer["files"]] == [
        "leadline/__init__.py",
        "leadline/kernels/__init__.py",
        "leadline/scanners/__init__.py",
        "leadline/sessions/__init__.py",
    ]
    assert "leadline.cli:main" in answer["command"]
    assert answer["version"]


def test_the_command_answers_from_the_wheel(site: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "leadline", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "replay" in done.stdout
