"""Deciding on held-out text: what is held out, what is measured with whose statistics, and what is too little."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import tiny_replay
import torch
from typer.testing import CliRunner

from leadline.calibrating import calibrate
from leadline.cli import app
from leadline.errors import MachineError, UsageError
from leadline.fidelity.deciding import decide, hold_out
from leadline.fidelity.measure import LayerMeter
from leadline.fidelity.standard_text import library_files, library_windows
from leadline.fidelity.window import capture
from leadline.model import LoadedModel
from leadline.scanners.calibration import load
from leadline.scanners.decisions import BUDGETS
from leadline.scanners.fathom import Fathom

K = 40
LENGTH = 384


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    torch.set_num_threads(1)
    return tiny_replay.model()


def texts(count: int, length: int = LENGTH) -> list[tuple[str, list[int]]]:
    rng = random.Random(3)
    return [(f"w{i}", [rng.randrange(250) for _ in range(length)]) for i in range(count)]


def test_errors_are_those_of_the_held_out_window_under_the_others_statistics(model: LoadedModel) -> None:
    windows = texts(3)
    found = decide(model, windows, means=(48,), k=K)
    assert found.held_out == ("w2",)
    assert found.fitted_on == ("w0", "w1")
    assert found.layers == model.shape.scanned_layers
    assert found.budgets == BUDGETS
    fitted, _ = calibrate(model, windows[:2], LENGTH, "")
    window = capture(model, *windows[2], positions=128)
    for basis in ("raw", "rotated"):
        scanner = Fathom(budget=64, basis=basis)
        for place, layer in enumerate(found.layers):
            meter = LayerMeter(window.layer(layer), [K], 4, 32)
            (figures,) = meter.measure([(scanner, scanner.calibrate(fitted[layer]))])
            assert found.errors[basis][place][BUDGETS.index(64)] == pytest.approx(figures[K].error, rel=1e-6)


def test_the_rule_takes_the_lower_error_at_48_bits(model: LoadedModel) -> None:
    """Which store wins is the measurement's business; that the lower one is recorded is the rule's."""
    found = decide(model, texts(2), means=(), k=K)
    rule = found.basis
    assert rule.budgets == (48, 64)
    assert found.paths == ()
    assert rule.choice == ("rotated" if rule.rotated[0] < rule.raw[0] else "raw")
    for basis, means in (("raw", rule.raw), ("rotated", rule.rotated)):
        rows = torch.tensor(found.errors[basis], dtype=torch.float64)
        assert means == pytest.approx(rows.mean(0).tolist())


def test_a_single_window_holds_out_its_last_positions() -> None:
    windows = texts(1)
    fitted, held = hold_out(windows, K)
    assert held == windows
    assert [len(ids) for _, ids in fitted] == [LENGTH - 128]
    assert fitted[0][1] == windows[0][1][: LENGTH - 128]


def test_a_quarter_is_held_out_but_no_short_window_and_never_more_than_four() -> None:
    for count, expected in ((2, 1), (4, 1), (8, 2), (40, 4)):
        fitted, held = hold_out(texts(count), K)
        assert len(held) == expected
        assert len(fitted) == count - expected
        assert not {name for name, _ in fitted} & {name for name, _ in held}
    mixed = [*texts(2), ("short", [1] * 100)]
    assert [name for name, _ in hold_out(mixed, K)[1]] == ["w1"]
    with pytest.raises(UsageError, match="too short to decide"):
        hold_out(texts(2, 160), K)


def test_the_library_is_split_into_files_that_calibrate_and_files_that_do_not() -> None:
    first, second = library_files("calibration"), library_files("held-out")
    assert not set(first) & set(second)
    assert first == sorted(first)
    words = tiny_replay.tokenizer()
    windows = library_windows(words, 2000, 3, "held-out")
    assert [len(ids) for _, ids in windows] == [2000] * 3
    assert windows == library_windows(words, 2000, 3, "held-out")
    assert all(name.startswith("standard library: ") for name, _ in windows)
    with pytest.raises(MachineError, match="too short"):
        library_windows(words, 10**7, 3, "held-out")


def test_the_command_records_its_decisions(model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leadline.model.load_model", lambda *_, **__: model)
    out = tmp_path / "c.safetensors"
    arguments = ["calibrate", "tiny", "--length", str(LENGTH), "--k", str(K), "--out", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--plans", "48"])
    assert done.exit_code == 0, done.output
    assert "basis: " in done.output
    assert "per-layer plan, mean 48, rotated store" in done.output
    found = load(out)
    decided = found.provenance.decisions
    assert decided is not None
    assert found.provenance.text == "standard library"
    assert len(found.provenance.window_sha256s) == 4
    assert len(decided.held_out) == 1
    assert sum(found.layers[n].layer_budgets["raw", 48] for n in found.layers) == 48 * len(found.layers)
    none = CliRunner().invoke(app, [*arguments, "--no-basis", "--plans", "none"])
    assert none.exit_code == 0, none.output
    assert load(out).provenance.decisions is None
    again = load(out)
    for layer, before in found.layers.items():
        assert torch.equal(before.key_covariance, again.layers[layer].key_covariance), "deciding changes no statistics"
    for wrong in (["--plans", "50"], ["--plans", "many"], ["--no-basis"]):
        with pytest.raises(UsageError, match="--plans"):
            CliRunner().invoke(app, [*arguments, *wrong], catch_exceptions=False)


def test_a_folder_of_text_files_is_text(model: LoadedModel, tmp_path: Path) -> None:
    from leadline.calibrating import windows

    (tmp_path / "b.txt").write_text("b" * 700)
    (tmp_path / "a.md").write_text("a" * 500)
    (tmp_path / "c.bin").write_bytes(b"\0\1")
    found = windows(model, tmp_path, 400)
    assert [name for name, _ in found] == ["a.md[0:400]", "a.md[400:800]", "b.txt[0:400]", "b.txt[400:800]"]


def test_reading_stops_at_so_many_whole_windows(model: LoadedModel, tmp_path: Path) -> None:
    from leadline.calibrating import windows
    from leadline.fidelity.window import ids_sha256

    def found(**limits: Any) -> list[str]:
        return [name for name, _ in windows(model, tmp_path, 400, **limits)]

    (tmp_path / "a.txt").write_text("a" * 300)
    (tmp_path / "b.txt").write_text("b" * 400 + "c" * 400 + "d" * 100)
    (tmp_path / "e.txt").write_text("c" * 400 + "e" * 400)
    every = ["a.txt[0:400]", "b.txt[0:400]", "b.txt[400:800]", "b.txt[800:1200]", "e.txt[400:800]"]
    assert found() == every, "a text that was there already is taken once"
    assert found(most=1) == every[1:2]
    assert found(most=3) == [every[1], every[2], every[4]]
    assert found(most=9) == every, "fewer than asked for: all there are"
    known = [ids_sha256(ids) for name, ids in windows(model, tmp_path, 400) if name == every[1]]
    assert found(most=1, beside=known) == every[1:3], "one that is known does not count"
