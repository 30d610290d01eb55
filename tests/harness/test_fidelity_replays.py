"""Per-layer plans and basis=auto in a replay: named by what was chosen, refused before any work, noted by length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_replay
import torch

from leadline.calibrating import calibrate
from leadline.database import Results
from leadline.errors import UsageError
from leadline.fidelity.deciding import decide
from leadline.fidelity.standard_text import library_windows
from leadline.scanners.calibration import load, save

LENGTH = 700


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    model = tiny_replay.model()
    path = tmp_path_factory.mktemp("calibration") / "c.safetensors"
    texts = library_windows(model.tokenizer, LENGTH, 2, "calibration")
    layers, provenance = calibrate(model, texts, LENGTH, "standard library")
    decisions = decide(model, texts, means=(48,), k=40)
    save(path, layers, provenance.model_copy(update={"decisions": decisions}))
    return path


def test_a_replay_reads_each_layers_budget_and_names_the_chosen_store(calibration: Path, tmp_path: Path) -> None:
    sessions, database = tiny_replay.write_sessions(tmp_path / "s", count=1), tmp_path / "r.sqlite"
    found = load(calibration)
    decided = found.provenance.decisions
    assert decided is not None
    choice = decided.basis.choice
    scanners = ("fathom:budget=48,plan=per-layer", "fathom:budget=40,basis=auto")
    wanted = tiny_replay.spec(sessions, calibration, scanners=scanners, steps=1, noise_chunk=0)
    run, outcome = tiny_replay.run(wanted, database)
    assert outcome.failed == 0
    with Results.open(database, read_only=True) as results:
        labels = [row["label"] for row in results.query("SELECT label FROM scanner WHERE role = 'scanner'")]
        assert labels == [
            "fathom:budget=48,plan=per-layer",
            "fathom:budget=40" if choice == "raw" else "fathom:budget=40,basis=rotated",
        ]
        (bits,) = results.query(
            "SELECT layer_bits FROM step_cost JOIN step_result ON id = step_result_id JOIN scanner ON scanner.sha256 = "
            "scanner_sha256 WHERE label LIKE '%per-layer'"
        )
        assert run == 1
    budgets = [found.layers[n].layer_budgets["raw", 48] for n in found.layers]
    assert sum(budgets) == 48 * len(budgets)
    read = json.loads(bits["layer_bits"])
    d = found.layers[0].key_mean.shape[-1]
    assert len(read) == len(budgets)
    for layer_bits, budget in zip(read, budgets, strict=True):
        codes = max(1, budget * d // 128)
        assert 0 < layer_bits <= codes + 0.25 * d, "code bits are a ceiling, scales come on top"


def test_a_replay_without_the_plan_stops_before_the_model_is_loaded(
    calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = tiny_replay.write_sessions(tmp_path / "s", count=1)
    wanted = tiny_replay.spec(sessions, calibration, scanners=("fathom:budget=64,plan=per-layer",))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("leadline.replaying.load_model", never)
    from leadline.replaying import replay

    with pytest.raises(UsageError, match="no such per-layer plan"):
        replay(wanted, tmp_path / "r.sqlite", "tiny")
    assert not (tmp_path / "r.sqlite").exists()


def test_a_plan_far_from_its_length_is_warned_of(calibration: Path) -> None:
    found = load(calibration)
    assert found.length_warning(LENGTH) is None
    assert found.length_warning(2 * LENGTH) is None
    assert "calibrated at 700 tokens" in str(found.length_warning(2 * LENGTH + 1))
    assert "calibrated at 700 tokens" in str(found.length_warning(LENGTH // 2 - 1))
