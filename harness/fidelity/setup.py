"""Sets a fidelity measurement up: scanners, calibration, model, windows; what fails cheaply fails first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leadline.calibrating import windows as cut
from leadline.config import RunSpec, default_k
from leadline.database import Results
from leadline.environment import capture
from leadline.errors import UsageError, explain
from leadline.fidelity.grid import Setting, chosen, full, quick
from leadline.fidelity.records import FidelityResult, FidelitySpec, FigureRecord, WindowRecord
from leadline.fidelity.running import measure_windows
from leadline.fidelity.standard_text import library_windows
from leadline.fidelity.storing import KIND, save_window
from leadline.fidelity.window import CHUNK, ids_sha256, measured_positions
from leadline.model import LoadedModel, load_model
from leadline.replaying import find_calibration
from leadline.scanners.calibration import Calibration

SINK, LOCAL = 4, 32
LIBRARY = "standard library, the files that calibrations do not read"
Texts = list[tuple[str, list[int]]]


@dataclass(frozen=True)
class Job:
    """A measurement that is ready to run."""

    spec: FidelitySpec
    model: LoadedModel
    texts: Texts
    settings: tuple[Setting, ...]
    calibration: Calibration | None

    def run(self, database: Path | None, command: str, tell: Callable[[str], None]) -> FidelityResult:
        """Measure every window; with a database each is stored as soon as it is done."""
        done: list[tuple[WindowRecord, list[FigureRecord]]] = []
        work = measure_windows(self.model, self.texts, self.settings, self.calibration, self.spec, tell)
        if database is None:
            done += work
        else:
            with Results.open(database, create=True) as results:
                number = results.start_measurement(KIND, self.spec, capture(str(self.model.device)), command)
                for window, figures in work:
                    save_window(results, number, window, figures)
                    done.append((window, figures))
                results.finish_measurement(number)
        return FidelityResult(
            spec=self.spec,
            windows=tuple(window for window, _ in done),
            figures=tuple(figure for _, figures in done for figure in figures),
        )


def prepare(
    *,
    model: str,
    text: Path | None,
    length: int,
    windows: int,
    ks: Sequence[int],
    specs: Sequence[str],
    grid: Literal["full", "quick"],
    calibration: Path | None,
    rope: str | None,
    device: str | None,
) -> Job:
    """Check everything, load the model, cut the windows. UsageError for what cannot be measured as asked."""
    k, sweep = _selections(ks, length, full_grid=grid == "full" and not specs)
    found = _calibration(model, calibration, length, _settings(specs, grid, None))
    settings = tuple(_settings(specs, grid, found))
    if found is not None:  # a missing plan or choice is said before anything slow
        first = next(iter(found.layers.values()))
        for setting in settings:
            if setting.scanner.needs == "calibration":
                setting.scanner.calibrate(first)
    loaded = load_model(model, device=device, rope=rope)
    if found is not None:
        found.check(weights_sha256=loaded.weights_sha256, rope=loaded.rope)
    texts, notes = _windows(loaded, text, length, windows, found)
    warning = found.length_warning(length) if found is not None else None
    shape = loaded.shape
    decided = found.provenance.decisions if found is not None else None
    spec = FidelitySpec(
        model=loaded.id,
        weights_sha256=loaded.weights_sha256,
        rope=loaded.rope,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        head_dim=shape.head_dim,
        kv_heads=shape.kv_heads,
        groups=shape.groups,
        layers=shape.scanned_layers,
        text=LIBRARY if text is None else str(text),
        length=length,
        positions=measured_positions(length),
        k=k,
        sweep=sweep,
        sink=SINK,
        local=LOCAL,
        chunk=CHUNK,
        grid="chosen" if specs else grid,
        calibration_sha256=found.sha256 if found is not None else None,
        calibration_length=found.provenance.length if found is not None else None,
        basis_choice=decided.basis.choice if decided is not None else None,
        notes=(*notes, *([warning] if warning else [])),
    )
    return Job(spec, loaded, texts, settings, found)


def _settings(specs: Sequence[str], grid: str, calibration: Calibration | None) -> list[Setting]:
    if specs:
        return chosen(specs, calibration)
    return full(calibration) if grid == "full" else quick()


def _selections(ks: Sequence[int], length: int, full_grid: bool) -> tuple[int, tuple[int, ...]]:
    """The main k and the others: as given, or by length with half, twice and four times as many for a full grid."""
    most = length - measured_positions(length)
    for k in ks:
        if not SINK + LOCAL < k <= most:
            raise UsageError(
                explain(
                    "no selection of this size can be measured",
                    field="--k",
                    found=k,
                    expected=f"more than the {SINK + LOCAL} sinks and local tokens, and at most {most}",
                    do="choose another --k or --length",
                )
            )
    if ks:
        return ks[0], tuple(dict.fromkeys(k for k in ks[1:] if k != ks[0]))
    main = min(default_k(length), most)
    others = (main // 2, main * 2, main * 4) if full_grid else ()
    return main, tuple(k for k in others if SINK + LOCAL < k <= length // 4)


def _calibration(model: str, path: Path | None, length: int, settings: Sequence[Setting]) -> Calibration | None:
    """The named artifact or the embedded model's; None where nothing needs one."""
    needing = tuple(each.scanner.label for each in settings if each.scanner.needs == "calibration")
    named = str(path) if path is not None else None
    return find_calibration(
        RunSpec(sessions=(), scanners=needing, model=model, calibration=named, max_context=max(256, length))
    )


def _windows(
    model: LoadedModel, text: Path | None, length: int, count: int, calibration: Calibration | None
) -> tuple[Texts, list[str]]:
    """Up to `count` windows of the full length that the calibration has not seen, and what there is to say of them."""
    if text is None:
        return library_windows(model.tokenizer, length, count, "held-out"), []
    seen = set(calibration.provenance.window_sha256s) if calibration is not None else set()
    whole = [(name, ids) for name, ids in cut(model, text, length, count, seen) if len(ids) == length]
    kept = [(name, ids) for name, ids in whole if ids_sha256(ids) not in seen]
    notes = (
        [f"{len(whole) - len(kept)} windows left out: the calibration was made on them"]
        if seen and len(kept) < len(whole)
        else []
    )
    if not kept:
        raise UsageError(
            explain(
                "no held-out window of this length",
                field="--text",
                found=f"{len(whole)} windows of {length} tokens, all of them the calibration's" if whole else "none",
                expected=f"at least one of {length} tokens",
                do="give other or longer text, or a smaller --length",
            )
        )
    if len(kept) < count:
        notes.append(f"{len(kept)} of the {count} windows asked for: the text holds no more")
    return kept[:count], notes
