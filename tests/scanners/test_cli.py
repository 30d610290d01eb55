"""`leadline scanners list | new | check` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leadline.cli.scanners import app
from leadline.errors import UsageError
from leadline.registry import BUILT_IN
from leadline.scanners.conformance import CLAUSES

runner = CliRunner()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, entries: str) -> None:
    """Put a distribution with entry points on the path, as an installer would leave it."""
    info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[leadline.scanners]\n{entries}\n")
    monkeypatch.syspath_prepend(folder)


def test_list_names_every_scanner_with_its_options_and_bits() -> None:
    result = runner.invoke(app, ["list", "--json"])
    assert result.exit_code == 0
    entries = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert list(entries)[: len(BUILT_IN)] == list(BUILT_IN)
    assert all(entries[name]["broken"] is None and entries[name]["summary"] for name in BUILT_IN)
    assert (entries["sparq"]["bits_128"], entries["sparq"]["bits_64"]) == (68, 34)
    assert entries["fathom"]["bits_128"] is None
    assert entries["fathom"]["needs"] == "calibration"
    basis = next(option for option in entries["fathom"]["options"] if option["name"] == "basis")
    assert basis == {"name": "basis", "default": "raw", "accepts": "raw | rotated | auto"}
    planes = next(option for option in entries["thumbnail"]["options"] if option["name"] == "planes")
    assert planes["accepts"] == "integer, at least 1, at most 4"
    plain = runner.invoke(app, ["list"])
    assert plain.exit_code == 0
    assert all(f"\n{name}  (" in "\n" + plain.stdout for name in BUILT_IN)


def test_list_shows_plugins_and_why_broken_ones_do_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.invoke(app, ["new", "plugged", "--out", str(tmp_path)])
    (tmp_path / "leadline_test_torn.py").write_text("import no_such_module_anywhere\n")
    (tmp_path / "leadline_test_odd.py").write_text(
        "from typing import ClassVar\nfrom leadline.scanners.uniform import Thumbnail\n"
        "class Odd(Thumbnail):\n    name: ClassVar[str] = 'odd'\n    need: int\n"
    )
    entries = "torn = leadline_test_torn:Torn\nplugged = plugged:Plugged\nodd = leadline_test_odd:Odd"
    install(tmp_path, monkeypatch, "own-scanners", entries)
    result = runner.invoke(app, ["list", "--json"])
    assert result.exit_code == 0, result.output
    found = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert found["plugged"]["origin"] == "own-scanners 1.2"
    assert found["plugged"]["broken"] is None
    assert found["plugged"]["bits_128"] == 128 + 32
    assert "no_such_module_anywhere" in found["torn"]["broken"]
    assert "default options" in found["odd"]["broken"]
    assert "BROKEN" in runner.invoke(app, ["list"]).stdout
    assert runner.invoke(app, ["check", "plugged:planes=2"]).exit_code == 0


def test_new_writes_a_scanner_that_keeps_the_contract_and_its_test_passes(tmp_path: Path) -> None:
    result = runner.invoke(app, ["new", "my_scan", "--out", str(tmp_path / "made")])
    assert result.exit_code == 0, result.output
    spec = f"{tmp_path / 'made' / 'my_scan.py'}:MyScan"
    assert f"leadline scanners check {spec}" in result.stdout
    assert {p.name for p in (tmp_path / "made").iterdir()} == {"my_scan.py", "test_my_scan.py"}
    checked = runner.invoke(app, ["check", spec, "--json"])
    assert checked.exit_code == 0
    report = json.loads(checked.stdout)
    assert report["passed"]
    assert report["scanner"] == "my_scan:planes=1"
    assert [finding["name"] for finding in report["findings"]] == list(CLAUSES)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "test_my_scan.py",
    ]
    ran = subprocess.run(command, cwd=tmp_path / "made", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_new_leaves_existing_files_alone(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    result = runner.invoke(app, ["new", "mine", "--out", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert "test_mine.py" in str(result.exception)
    assert (tmp_path / "test_mine.py").read_text() == "precious"
    assert not (tmp_path / "mine.py").exists()


@pytest.mark.parametrize("name", ["fathom", "My-Scan", "3d", "class", "a b", "../up"])
def test_new_refuses_names_that_cannot_work(name: str, tmp_path: Path) -> None:
    result = runner.invoke(app, ["new", name, "--out", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert list(tmp_path.iterdir()) == []


def test_new_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["new", "mine", "--out", str(tmp_path / "file")])
    assert isinstance(result.exception, UsageError)


def test_check_explains_a_broken_clause_and_exits_1(tmp_path: Path) -> None:
    runner.invoke(app, ["new", "peeker", "--out", str(tmp_path)])
    path = tmp_path / "peeker.py"
    text = path.read_text()
    text = text.replace("return plane_store.score(query, reads)", "return query @ KEYS[-1].mT")
    text = text.replace(
        "return plane_store.build(", "KEYS.append(keys.float().clone())\n        return plane_store.build("
    )
    path.write_text(text + "\n\nKEYS: list[Tensor] = []\n")
    result = runner.invoke(app, ["check", f"{path}:Peeker"])
    assert result.exit_code == 1
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAIL")]
    assert [line.split()[1] for line in failed] == ["only-reads", "stored"]
    assert "KV heads" in failed[0], "says on which keys"
    as_json = runner.invoke(app, ["check", f"{path}:Peeker", "--json"])
    assert as_json.exit_code == 1
    assert not json.loads(as_json.stdout)["passed"]


def test_check_takes_options_and_refuses_unknown_specs() -> None:
    assert runner.invoke(app, ["check", "thumbnail:planes=3"]).exit_code == 0
    result = runner.invoke(app, ["check", "thumbnial"])
    assert isinstance(result.exception, UsageError)
    assert "Did you mean thumbnail?" in str(result.exception)
