"""`leadline compare` as a user and a pull request call it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from leadline.cli.compare import compare
from leadline.errors import RegressionError, UsageError
from reports import factory

app = typer.Typer()
app.command()(compare)
LABELS = ("exact", "fathom:budget=48", "sparq:r=16")
Changes = Callable[[str, int, int], dict[str, Any]]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def regression(*arguments: object) -> str:
    """The message of the declared regression; its exit code is 4."""
    with pytest.raises(RegressionError) as caught:
        call(*arguments)
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Two databases of eight sessions; in B fathom's agreement moves by `shift` a session and costs as given."""

    def make(shift: float = 0.0, changes: Changes = lambda label, index, step: {}, **options: Any) -> tuple[Path, Path]:
        def agreement(label: str, index: int, step: int) -> float:
            return 1.0 if label == "exact" else 0.5 + 0.03 * index

        def moved(label: str, index: int, step: int) -> float:
            return agreement(label, index, step) + (shift + 0.002 * index if label == LABELS[1] and shift else 0)

        a, b = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
        timed: Changes = lambda label, index, step: {"gpu_ms": 64.0 + index, "timer": "profiler"}  # noqa: E731
        factory.fill(a, sessions=8, labels=LABELS, agreement=agreement, changes=timed)
        options = {"sessions": 8, "labels": LABELS} | options
        factory.fill(
            b,
            agreement=moved,
            changes=lambda label, index, step: timed(label, index, step) | changes(label, index, step),
            **options,
        )
        return a, b

    return make


def test_the_same_run_twice_has_no_regression(runs: Callable[..., tuple[Path, Path]]) -> None:
    result = call(*runs())
    assert result.exit_code == 0
    assert "**No declared regression** (`agreement:0.05`)." in result.stdout
    row = next(line for line in result.stdout.split("\n") if line.startswith("| fathom:budget=48"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "fathom:budget=48", "16 (8)", "16/16", "0.605 → 0.605", "0.000 (all equal)", "1.000", "identical",
        "0.0000 (all equal)", "28.5 → 28.5", "1.0000", "1.0000", "1.00", "1.00",
    ]  # fmt: skip


def test_a_fall_beyond_the_declared_margin_exits_4_and_still_prints(
    runs: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    a, b = runs(shift=-0.1)
    said = regression(a, b, "--out", tmp_path / "pr.md")
    assert "fathom:budget=48: agreement -0.093 over 8 units, Holm p 0.023 (agreement:0.05)" in said
    text = (tmp_path / "pr.md").read_text()
    assert "**1 declared regression** (`agreement:0.05`):" in text
    assert "| worse |" in text
    assert call(a, b, "--fail", "agreement:0.1").exit_code == 0
    assert call(a, b, "--fail", "none").exit_code == 0
    assert call(b, a).exit_code == 0, "a rise is no regression"


def test_bytes_are_judged_exactly(runs: Callable[..., tuple[Path, Path]]) -> None:
    more = lambda label, index, step: {"scan_realised_bytes": 64_000_001 if label == LABELS[2] else 64_000_000}  # noqa: E731
    a, b = runs(changes=more)
    assert call(a, b).exit_code == 0
    assert "sparq:r=16: scan_bytes x1.0000 (scan_bytes:0%)" in regression(a, b, "--fail", "scan_bytes:0%")
    assert call(a, b, "--fail", "scan_bytes:1%", "--fail", "row_bytes:0%", "--fail", "index_bytes:0%").exit_code == 0


def test_a_time_must_be_beyond_the_amount_and_told_apart_from_no_change(
    runs: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    def slower(label: str, index: int, step: int) -> dict[str, Any]:
        steady = {"gpu_ms": (64.0 + index) * (1.2 + 0.001 * index)}
        noisy = {"gpu_ms": (64.0 + index) * (3.0 if index % 2 else 0.5)}
        return {LABELS[1]: steady, LABELS[2]: noisy}.get(label, {})

    a, b = runs(changes=slower)
    said = regression(a, b, "--fail", "gpu_ms:10%")
    assert "fathom:budget=48: gpu_ms x1.203 [1.2" in said
    assert "sparq" not in said
    assert call(a, b, "--fail", "gpu_ms:25%").exit_code == 0
    assert "Not judged: gpu\\_ms:25% was not judged for exact" in call(a, b, "--fail", "gpu_ms:25%").stdout


def test_a_time_that_was_not_measured_is_said_to_be_not_judged(runs: Callable[..., tuple[Path, Path]]) -> None:
    result = call(*runs(changes=lambda label, index, step: {"gpu_ms": None}), "--fail", "gpu_ms:5%")
    assert result.exit_code == 0
    assert "Not judged: gpu\\_ms:5% was not judged for exact, fathom:budget=48, sparq:r=16 (not timed" in result.stdout


def test_items_pair_by_session_step_prompt_and_label(runs: Callable[..., tuple[Path, Path]]) -> None:
    a, b = runs(sessions=9, labels=("exact", "fathom:budget=48"))
    with sqlite3.connect(b) as raw:
        raw.execute("UPDATE branch_point SET prompt_sha256 = 'other' WHERE step = 9")
    found = json.loads(call(a, b, "--json").stdout)
    assert found["unpaired"] == {"only in A": 16, "only in B": 4, "another prompt": 16}
    assert {change["scanner"]: change["items"] for change in found["changes"]} == {"exact": 8, "fathom:budget=48": 8}
    assert "missing: 16 items of A not in B, 3 allowed" in regression(a, b, "--fail", "missing:3")
    assert "Left out, without a partner: 16 only in A, 4 only in B, 16 another prompt." in call(a, b).stdout


def test_other_settings_models_and_machines_are_named(runs: Callable[..., tuple[Path, Path]]) -> None:
    a, b = runs(
        run_spec=factory.spec(k=256, scanners=LABELS),
        run_model=factory.model(weights_sha256=factory.sha("finetuned")),
        run_environment=factory.environment(cpu="another CPU"),
    )
    text = call(a, b).stdout
    assert "**The runs were set up differently**: k: 128 → 256; model weights:" in text
    assert "read no time against the other" in text


def test_another_implementation_under_the_same_label_is_marked(runs: Callable[..., tuple[Path, Path]]) -> None:
    a, b = runs()
    with sqlite3.connect(b) as raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        for table, column in (("scanner", "sha256"), ("step_result", "scanner_sha256")):
            raw.execute(f"UPDATE {table} SET {column} = 'new' WHERE {column} = ?", (factory.sha("scanner sparq:r=16"),))
    text = call(a, b).stdout
    assert "| sparq:r=16 (changed) |" in text
    assert "| fathom:budget=48 |" in text


def test_two_runs_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    first = factory.fill(path, sessions=2)
    second = factory.fill(path, sessions=2, run_spec=factory.spec(k=256))
    found = json.loads(call(path, path, "--run-a", first, "--run-b", second, "--json").stdout)
    assert (found["a"]["run"], found["b"]["run"]) == (first, second)
    assert found["differing"] == {"k": [128, 256]}
    assert found["regressions"] == []
    with pytest.raises(UsageError, match="with itself"):
        call(path, path)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("agrement:0.1", "did you mean agreement"),
        ("speed:5%", "choose one of these"),
        ("agreement:5%", "for example agreement:0.02"),
        ("scan_bytes:5", "for example scan_bytes:5%"),
        ("agreement", "for example agreement:0.02"),
        ("agreement:nan", "not an amount"),
        ("gpu_ms:-5%", "not an amount"),
        ("missing:x", "for example missing:0"),
    ],
)
def test_a_rule_that_is_none_is_explained(runs: Callable[..., tuple[Path, Path]], rule: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call(*runs(sessions=1), "--fail", rule)


def test_nothing_in_common_and_missing_files_are_explained(
    runs: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    a, b = runs(sessions=[factory.session(70)])
    with pytest.raises(UsageError, match="no item in common"):
        call(a, b)
    with pytest.raises(UsageError, match="no such file"):
        call(a, tmp_path / "nowhere.sqlite")
    factory.fill(tmp_path / "c.sqlite", sessions=1)
    with pytest.raises(UsageError, match="cannot write the comparison"):
        call(a, tmp_path / "c.sqlite", "--out", tmp_path)


def test_hostile_names_stay_in_their_cells(tmp_path: Path) -> None:
    text = "x | y\n<script>alert(1)</script> `a` [b](http://evil.example)"
    a, b = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    for path in (a, b):
        factory.fill(path, sessions=2, run_model=factory.model(id=text), run_environment=factory.environment(cpu=text))
    shown = call(a, b).stdout
    assert "<script>" not in shown
    assert "\\[b\\](http\\://evil.example)" in shown
    table = [line for line in shown.split("\n") if line.startswith("|")]
    assert len({len(line.replace("\\|", "").split("|")) for line in table}) == 1
