"""A fidelity measurement from window to window: captured, measured layer by layer, handed on as figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from leadline.fidelity.grid import Setting
from leadline.fidelity.measure import LayerMeter
from leadline.fidelity.records import FidelitySpec, FigureRecord, WindowRecord
from leadline.fidelity.window import Window, capture
from leadline.model import LoadedModel
from leadline.scanners.calibration import Calibration
from leadline.scanners.statistics import LayerStatistics, of_keys
from leadline.states import States


def measure_windows(
    model: LoadedModel,
    texts: Sequence[tuple[str, Sequence[int]]],
    settings: Sequence[Setting],
    calibration: Calibration | None,
    spec: FidelitySpec,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[WindowRecord, list[FigureRecord]]]:
    """Windows in order, each with the figures of every setting in every layer.

    One window is held at a time, and of it the scores and stores of one layer. `tell` hears of every window and layer.
    UsageError where a setting needs a calibration, a plan or a choice that is not there.
    """
    layers = calibration.on(model.device) if calibration is not None else None
    for number, (name, ids) in enumerate(texts):
        tell(f"window {number + 1} of {len(texts)}: {name}, {len(ids)} tokens")
        window = capture(model, name, ids, spec.positions, spec.chunk)
        states = States(spec.layers, layers, _session(window, settings))
        of = [states.of(setting.scanner) for setting in settings]
        figures = []
        for place, layer in enumerate(spec.layers):
            meter = LayerMeter(window.layer(layer), (spec.k, *spec.sweep), spec.sink, spec.local)
            measured = meter.measure(
                [(setting.scanner, state[layer]) for setting, state in zip(settings, of, strict=True)],
                [(spec.k, *(spec.sweep if setting.swept else ())) for setting in settings],
            )
            figures += [
                FigureRecord(
                    label=setting.scanner.label,
                    family=setting.family,
                    k=k,
                    window=number,
                    layer=layer,
                    error=found.error,
                    recall=found.recall,
                    bits=found.bits,
                    rows=found.rows,
                )
                for setting, by_k in zip(settings, measured, strict=True)
                for k, found in by_k.items()
            ]
            tell(f"  layer {place + 1} of {len(spec.layers)}")
        yield WindowRecord(window=number, name=name, sha256=window.sha256), figures


def _session(window: Window, settings: Sequence[Setting]) -> dict[int, LayerStatistics] | None:
    """The window's own statistics, of what lies before its first measured position; None where nobody needs them."""
    if all(setting.scanner.needs != "session" for setting in settings):
        return None
    return {layer: of_keys(window.layer(layer).keys[:, : window.layer(layer).first]) for layer in window.layers}
