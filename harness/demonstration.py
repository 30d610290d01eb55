"""The demo: the main job, small, on the bundled samples and the embedded model, in minutes on a laptop.
 Calibrates on the samples that are not replayed, replays the others under every kind of scanner, writes the report. It
is the ordinary code path with a fixed specification; a second call finds everything done.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from leadline.calibrating import calibrate, windows
from leadline.config import RunSpec
from leadline.engine import Outcome
from leadline.model import load_model
from leadline.replaying import replay
from leadline.scanners.calibration import load, save

SCANNERS = (
    "exact",
    "dense",
    "fathom:budget=48",
    "fathom:budget=80",
    "fathom:budget=48,basis=rotated",
    "fathom:budget=48,statistics=session",
    "sparq:r=16",
    "sparq:r=32",
    "loki:r=32",
    "double_sparsity:channels=32",
    "landmarks",
    "streaming",
)
CALIBRATION_LENGTH = 2048


def samples() -> Path:
    """The folder of bundled samples: `replay` and `calibration`."""
    return Path(str(files("leadline.sessions") / "samples"))


def specification(out: Path) -> RunSpec:
    """The demo's run: three sessions, two branch points each, 32 new tokens, k = 128; no noise floor, to save time."""
    return RunSpec(
        sessions=(str(samples() / "replay"),),
        scanners=SCANNERS,
        calibration=str(out / "calibration.safetensors"),
        max_context=2400,
        k=128,
        steps=2,
        max_new_tokens=32,
        limit=3,
        noise_chunk=0,
    )


def prepare_calibration(out: Path) -> Path:
    """Calibrate the embedded model on the held-out samples, unless `out` holds that already."""
    path = out / "calibration.safetensors"
    if path.exists():
        load(path)
        return path
    model = load_model("embedded")
    held_out = samples() / "calibration"
    layers, provenance = calibrate(
        model, windows(model, held_out, CALIBRATION_LENGTH), CALIBRATION_LENGTH, "bundled samples"
    )
    save(path, layers, provenance)
    return path


def run(out: Path, command: str) -> tuple[Path, int, Outcome]:
    """Run the demo into `out`; returns the database, the run's id and what was done."""
    out.mkdir(parents=True, exist_ok=True)
    prepare_calibration(out)
    database = out / "results.sqlite"
    number, outcome = replay(specification(out), database, command)
    return database, number, outcome
