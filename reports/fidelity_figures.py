"""The figures of a fidelity measurement as a reader wants them: by scanner over windows, and bits of equal error."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leadline.database import Results
from leadline.fidelity.records import FidelityResult, FigureRecord
from leadline.fidelity.storing import load_measurement, measurements
from leadline.reports.fidelity_curves import Curve, Reach
from leadline.reports.stats import Mean, mean_interval

REFERENCE = "exact"
# Equal-error bits are asked for these: the published comparison's scans.
TARGETS = (
    "sparq:r=16",
    "sparq:r=32",
    "loki:r=32",
    "double_sparsity:channels=32",
    "thumbnail",
    "landmarks",
    "quest",
)


@dataclass(frozen=True)
class FidelityLine:
    """One scanner at one k. Means are over windows, of means over layers; `by_layer` and `by_window` are errors.

    times_exact: the error over exact top-k's at the same k, window by window.
    """

    label: str
    family: str
    k: int
    bits: float
    rows: float
    error: Mean
    times_exact: Mean
    recall: Mean
    by_layer: tuple[float, ...]
    by_window: tuple[float, ...]


@dataclass(frozen=True)
class EqualError:
    """The bits at which a family reaches the error of a target scanner (`bits` of its own).

    reached: in how many of `windows` its curve covers that error. mean: geometric mean over windows, where all do.
    below: in how many windows already its smallest budget is at least as good.
    """

    target: str
    family: str
    target_bits: float
    windows: int
    reached: int
    below: int
    mean: float | None
    low: float | None
    high: float | None

    @property
    def saving(self) -> float | None:
        """How many times fewer bits than the target's."""
        return None if self.mean is None else self.target_bits / self.mean


@dataclass(frozen=True)
class FidelityFigures:
    """A measurement, ready to print: lines at every k in the order measured, equal-error bits at the main k.

    `measurement` is its id in the database it was stored in.
    """

    result: FidelityResult
    measurement: int | None
    lines: tuple[FidelityLine, ...]
    equal: tuple[EqualError, ...]

    def at(self, k: int) -> list[FidelityLine]:
        """The lines of one k."""
        return [line for line in self.lines if line.k == k]

    @property
    def main(self) -> list[FidelityLine]:
        """The lines at the measurement's k."""
        return self.at(self.result.spec.k)


def fidelity_figures(result: FidelityResult, measurement: int | None = None) -> FidelityFigures:
    """Everything derived from a measurement. ValueError where it holds no window."""
    if not result.windows:
        raise ValueError("a measurement without windows has no figures")
    grouped: dict[tuple[str, int], list[FigureRecord]] = defaultdict(list)
    for figure in result.figures:
        grouped[figure.label, figure.k].append(figure)
    exact = {
        k: _by_window(figures, len(result.windows)) for (label, k), figures in grouped.items() if label == REFERENCE
    }
    lines = tuple(
        _line(figures, exact[k], result.spec.layers, len(result.windows)) for (_, k), figures in grouped.items()
    )
    main = [line for line in lines if line.k == result.spec.k]
    return FidelityFigures(result, measurement, lines, tuple(_equal(main)))


def stored_fidelity(results: Results) -> tuple[FidelityFigures, ...]:
    """Every fidelity measurement of a database, oldest first."""
    return tuple(fidelity_figures(load_measurement(results, each), each) for each in measurements(results))


def curves(lines: Sequence[FidelityLine], window: int) -> dict[str, Curve]:
    """Error against bits of every family with at least two budgets, in one window."""
    points: Mapping[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if line.bits > 0 and line.label != REFERENCE:
            points[line.family].append((line.bits, line.by_window[window]))
    return {family: Curve.through(found) for family, found in points.items() if len({bits for bits, _ in found}) > 1}


def _equal(lines: Sequence[FidelityLine]) -> list[EqualError]:
    targets = {line.label: line for line in lines if line.label in TARGETS}
    windows = len(lines[0].by_window)
    by_window = [curves(lines, window) for window in range(windows)]
    found = []
    for label in TARGETS:
        target = targets.get(label)
        for family in by_window[0] if target is not None else ():
            assert target is not None
            if family == target.family:
                continue
            reaches = [by_window[w][family].bits_at(target.by_window[w]) for w in range(windows)]
            found.append(_equal_error(target, family, reaches))
    return found


def _equal_error(target: FidelityLine, family: str, reaches: Sequence[Reach]) -> EqualError:
    inside = [reach.bits for reach in reaches if reach.where == "reached"]
    mean = mean_interval([math.log(bits) for bits in inside]) if len(inside) == len(reaches) else None
    return EqualError(
        target=target.label,
        family=family,
        target_bits=target.bits,
        windows=len(reaches),
        reached=len(inside),
        below=sum(reach.where == "below" for reach in reaches),
        mean=None if mean is None else math.exp(mean.mean),
        low=None if mean is None or mean.low is None else math.exp(mean.low),
        high=None if mean is None or mean.high is None else math.exp(mean.high),
    )


def _line(figures: Sequence[FigureRecord], exact: Sequence[float], layers: Sequence[int], windows: int) -> FidelityLine:
    errors = _by_window(figures, windows)
    recalls: list[list[float]] = [[] for _ in range(windows)]
    of_layer: dict[int, list[float]] = defaultdict(list)
    for figure in figures:
        recalls[figure.window].append(figure.recall)
        of_layer[figure.layer].append(figure.error)
    first = figures[0]
    return FidelityLine(
        label=first.label,
        family=first.family,
        k=first.k,
        bits=_mean([figure.bits for figure in figures]),
        rows=_mean([figure.rows for figure in figures]),
        error=_interval(errors),
        times_exact=_interval([error / floor for error, floor in zip(errors, exact, strict=True)]),
        recall=_interval([_mean(found) for found in recalls]),
        by_layer=tuple(_mean(of_layer[layer]) for layer in layers),
        by_window=tuple(errors),
    )


def _by_window(figures: Sequence[FigureRecord], windows: int) -> list[float]:
    found: list[list[float]] = [[] for _ in range(windows)]
    for figure in figures:
        found[figure.window].append(figure.error)
    return [_mean(errors) for errors in found]


def _interval(values: Sequence[float]) -> Mean:
    mean = mean_interval(values)
    assert mean is not None
    return mean


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
