"""`leadline fidelity` on a small random model: what it measures, stores, prints, and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_replay
import torch
from typer.testing import CliRunner

from leadline.calibrating import calibrate
from leadline.cli import app
from leadline.database import Results
from leadline.errors import UsageError
from leadline.fidelity.deciding import decide
from leadline.fidelity.grid import chosen, full, quick
from leadline.fidelity.records import FidelityResult
from leadline.fidelity.setup import prepare
from leadline.fidelity.standard_text import library_windows
from leadline.fidelity.storing import load_measurement, measurements
from leadline.model import LoadedModel
from leadline.scanners.calibration import Calibration, load, save

LENGTH = 400
K = 40


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    torch.set_num_threads(1)
    return tiny_replay.model()


@pytest.fixture(scope="module")
def calibration(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "c.safetensors"
    texts = library_windows(model.tokenizer, LENGTH, 2, "calibration")
    layers, provenance = calibrate(model, texts, LENGTH, "standard library")
    decisions = decide(model, texts, means=(48, 64), k=K)
    save(path, layers, provenance.model_copy(update={"decisions": decisions}))
    return path


@pytest.fixture(autouse=True)
def tiny(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leadline.fidelity.setup.load_model", lambda *_, **__: model)


def job(calibration: Path | None, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "model": "tiny",
        "text": None,
        "length": LENGTH,
        "windows": 2,
        "ks": (K,),
        "specs": (),
        "grid": "quick",
        "calibration": calibration,
        "rope": None,
        "device": None,
    }
    return prepare(**(values | changes))


def test_a_measurement_is_stored_as_it_was_made_and_comes_out_alike_again(calibration: Path, tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    specs = ("fathom:budget=48", "fathom:statistics=session", "sparq:r=32")
    first = job(calibration, specs=specs).run(database, "leadline fidelity", lambda _: None)
    second = job(calibration, specs=specs).run(None, "", lambda _: None)
    with Results.open(database, read_only=True) as results:
        assert measurements(results) == [1]
        assert load_measurement(results, 1) == first
    assert [figure.label for figure in first.figures] == [figure.label for figure in second.figures]
    for one, other in zip(first.figures, second.figures, strict=True):
        assert one.error == pytest.approx(other.error, rel=1e-6)
        assert one.bits == other.bits
    labels = list(dict.fromkeys(figure.label for figure in first.figures))
    assert labels == ["exact", "streaming", "fathom:budget=48", "fathom:budget=48,statistics=session", "sparq:r=32"]
    assert len(first.figures) == len(labels) * 2 * len(first.spec.layers)
    assert all(figure.recall == 1 for figure in first.figures if figure.label == "exact")


def test_a_full_grid_holds_every_family_the_calibration_allows(calibration: Path) -> None:
    found = full(load(calibration))
    families = {setting.family for setting in found}
    assert {"fathom per layer", "fathom rotated, per layer", "fathom by |q|", "sparq per head", "loki fp16"} <= families
    assert len({setting.scanner.label for setting in found}) == len(found)
    assert {setting.scanner.label for setting in found if setting.swept} >= {"exact", "sparq:r=16", "fathom:budget=48"}
    without = {setting.family for setting in full(None)}
    assert families - without == {
        "fathom per layer",
        "fathom rotated, per layer",
        "fathom, one line a model",
        "fathom, measured gains",
    }
    assert {setting.family for setting in quick()} <= families


def test_every_setting_of_the_full_grid_runs(calibration: Path) -> None:
    """One window of four layers, two sizes of selection; every scanner lies between exact and nothing."""
    work = job(calibration, grid="full", windows=1, ks=(K, 90))
    result = work.run(None, "", lambda _: None)
    errors: dict[tuple[str, int], list[float]] = {}
    for figure in result.figures:
        errors.setdefault((figure.label, figure.k), []).append(figure.error)
    assert {label for label, k in errors if k == K} == {setting.scanner.label for setting in work.settings}
    assert {label for label, k in errors if k == 90} == {s.scanner.label for s in work.settings if s.swept}
    assert sum(errors["exact", 90]) < sum(errors["exact", K])
    assert all(0 < sum(found) < 8 * len(result.spec.layers) for found in errors.values())


def test_the_command_prints_tables_json_and_pages(calibration: Path, tmp_path: Path) -> None:
    arguments = ["fidelity", "tiny", "--length", str(LENGTH), "--windows", "2", "--k", str(K), "--k", "80"]
    arguments += ["--grid", "quick", "--calibration", str(calibration)]
    shown = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "pages")], catch_exceptions=False)
    assert shown.exit_code == 0
    for title in ("Attention error at k = 40", "Attention error by selected tokens", "Bits of equal error"):
        assert title in shown.output
    page = (tmp_path / "pages" / "fidelity.html").read_text()
    assert "<svg" in page
    assert "How far each scanner" in page
    assert "| sparq:r=16 |" in (tmp_path / "pages" / "fidelity.md").read_text()
    printed = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(printed.stdout)
    assert found["spec"]["k"] == K
    assert found["spec"]["sweep"] == [80]
    assert {line["label"] for line in found["lines"]} >= {"exact", "streaming", "sparq:r=16"}
    assert len(found["windows"]) == 2


def test_a_model_that_knows_no_chat_reads_sessions_as_plain_text(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leadline.calibrating import windows

    tiny_replay.write_sessions(tmp_path / "sessions", 1)
    (_, rendered), *_ = windows(model, tmp_path / "sessions", 256)
    monkeypatch.setattr(model.tokenizer, "chat_template", None)
    (name, ids), *_ = windows(model, tmp_path / "sessions", 256)
    assert name.endswith(" as plain text")
    assert model.tokenizer.decode(ids).split(":")[0] in ("system", "user")
    assert ids != rendered
    assert len(ids) == 256


def test_windows_the_calibration_saw_are_left_out(model: LoadedModel, calibration: Path, tmp_path: Path) -> None:
    words = "abcdefgh ()=\n_.,"
    (tmp_path / "t.txt").write_text("".join(words[i * i % 17 % len(words)] for i in range(5 * LENGTH)))
    from leadline.calibrating import windows

    texts = windows(model, tmp_path / "t.txt", LENGTH)
    layers, provenance = calibrate(model, texts[:2], LENGTH, "t")
    seen = tmp_path / "seen.safetensors"
    save(seen, layers, provenance)
    work = job(seen, text=tmp_path / "t.txt", specs=("fathom",), windows=9)
    assert len(work.texts) == 3
    assert len(work.spec.notes) == 2
    layers, provenance = calibrate(model, texts, LENGTH, "t")
    save(seen, layers, provenance)
    with pytest.raises(UsageError, match="no held-out window"):
        job(seen, text=tmp_path / "t.txt", specs=("fathom",))


def test_a_calibration_far_from_its_length_is_noted(calibration: Path) -> None:
    assert any(
        "calibrated at 400 tokens" in note for note in job(calibration, length=1000, specs=("fathom",)).spec.notes
    )
    assert job(calibration, specs=("fathom",)).spec.notes == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ks": (36,)}, "no selection of this size"),
        ({"ks": (K, 390)}, "no selection of this size"),
        ({"specs": ("dense",)}, "dense attention is what errors"),
        ({"specs": ("fathom:budget=72,plan=per-layer",)}, "no such per-layer plan"),
        ({"specs": ("fathomm",)}, "Did you mean fathom"),
        ({"calibration": None, "specs": ("fathom",)}, "need a calibration"),
        ({"text": Path("/nowhere.txt")}, "no such file"),
    ],
)
def test_what_cannot_be_measured_is_refused(calibration: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job(**({"calibration": calibration} | changes))


def test_auto_is_measured_under_the_name_of_what_was_chosen(calibration: Path) -> None:
    found: Calibration = load(calibration)
    assert found.provenance.decisions is not None
    choice = found.provenance.decisions.basis.choice
    labels = [setting.scanner.label for setting in chosen(("fathom:basis=auto",), found)]
    assert labels[-1] == ("fathom:budget=48" if choice == "raw" else "fathom:budget=48,basis=rotated")


def test_records_refuse_what_is_not_theirs() -> None:
    with pytest.raises(ValueError, match="extra"):
        FidelityResult.model_validate({"spec": {}, "windows": (), "figures": (), "other": 1})


def test_an_interruption_keeps_the_windows_that_are_done(
    calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second window stops with Ctrl-C; the first is in the database, whole."""
    import leadline.fidelity.running as running

    taken: list[str] = []

    def capture(*arguments: Any) -> Any:
        if taken:
            raise KeyboardInterrupt
        taken.append(arguments[1])
        return original(*arguments)

    original = running.capture
    monkeypatch.setattr(running, "capture", capture)
    database = tmp_path / "r.sqlite"
    arguments = ["fidelity", "tiny", "--length", str(LENGTH), "--windows", "2", "--k", str(K), "--db", str(database)]
    done = CliRunner().invoke(app, [*arguments, "--scanner", "fathom", "--calibration", str(calibration)])
    assert done.exit_code == 130
    assert "kept in" in done.output
    with Results.open(database, read_only=True) as results:
        assert [window.window for window in load_measurement(results, 1).windows] == [0]
