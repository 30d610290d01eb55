"""The settings of a fidelity measurement: every family of scanners over its budgets, and ablations of Fathom and SparQ.

A family is a curve of error against bits: the same scanner at growing budgets. Budgets are per 128 channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from leadline.errors import UsageError, explain
from leadline.registry import create
from leadline.scanners.base import Scanner
from leadline.scanners.calibration import Calibration
from leadline.scanners.fathom import Fathom


class Setting(NamedTuple):
    """A scanner and the family whose curve it is a point of; `swept` ones are measured at every k."""

    scanner: Scanner
    family: str
    swept: bool = False


_FULL: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("fathom", "fathom:budget={}", (16, 24, 32, 40, 48, 64, 80, 96, 128, 192)),
    ("fathom rotated", "fathom:budget={},basis=rotated", (16, 24, 32, 48, 64, 96, 128, 192)),
    ("fathom self-calibrated", "fathom:budget={},statistics=session", (24, 48, 96)),
    ("fathom rotated, self-calibrated", "fathom:budget={},basis=rotated,statistics=session", (24, 48, 96)),
    ("fathom by q^2", "fathom:budget={},weight=q2", (24, 48, 96)),
    ("fathom by |q|", "fathom:budget={},weight=absq", (24, 48, 96)),
    ("fathom, one line a layer", "fathom_global:budget={}", (24, 48, 96)),
    ("fathom, one line a model", "fathom_global:budget={},scope=model", (24, 48, 96)),
    ("fathom, measured gains", "fathom_measured:budget={}", (24, 48, 96)),
    ("uniform depth", "thumbnail:planes={}", (1, 2, 3)),
    ("uniform depth", "full4", (4,)),
    ("sparq", "sparq:r={}", (4, 8, 16, 32, 64)),
    ("sparq per head", "sparq:r={},pick=head", (4, 8, 16, 32)),
    ("loki", "loki:r={}", (8, 16, 32, 64)),
    ("loki fp16", "loki:r={},precision=fp16", (8, 16, 32)),
    ("double_sparsity", "double_sparsity:channels={}", (8, 16, 32, 64)),
    ("landmarks", "landmarks:block={}", (64, 32, 16, 8, 4)),
    ("quest", "quest:page={}", (64, 32, 16, 8)),
)
_QUICK: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("fathom", "fathom:budget={}", (24, 48, 64, 96)),
    ("fathom rotated", "fathom:budget={},basis=rotated", (48, 96)),
    ("uniform depth", "thumbnail:planes={}", (1, 2)),
    ("sparq", "sparq:r={}", (8, 16, 32)),
    ("loki", "loki:r={}", (16, 32)),
    ("double_sparsity", "double_sparsity:channels={}", (16, 32)),
    ("landmarks", "landmarks:block={}", (8,)),
)
# Enough to see how each kind of scan answers to k; the rest of a grid is measured at one k.
_SWEPT = (
    "exact",
    "streaming",
    "fathom:budget=48",
    "fathom:budget=96",
    "sparq:r=16",
    "sparq:r=32",
    "loki:r=32",
    "double_sparsity:channels=32",
    "landmarks",
)


def full(calibration: Calibration | None) -> list[Setting]:
    """Every family; per-layer plans where the calibration holds them, measured errors where it measured them."""
    found = _grid(_FULL)
    planned = calibration.provenance.decisions if calibration is not None else None
    for path in planned.paths if planned is not None else ():
        family = "fathom per layer" if path.basis == "raw" else "fathom rotated, per layer"
        found += [
            Setting(Fathom(budget=plan.mean, basis=path.basis, allotment="per-layer"), family) for plan in path.plans
        ]
    held = next(iter(calibration.layers.values())) if calibration is not None else None
    if held is None or held.depth_error is None:
        found = [each for each in found if each.family not in ("fathom, one line a model", "fathom, measured gains")]
    return found


def quick() -> list[Setting]:
    """A seventh of the full grid: one look at a model."""
    return _grid(_QUICK)


def chosen(specs: Sequence[str], calibration: Calibration | None) -> list[Setting]:
    """The scanners asked for, each a curve of its own name, all of them swept; exact and streaming always take part."""
    choice = calibration.provenance.decisions.basis.choice if calibration and calibration.provenance.decisions else None
    found = []
    for spec in specs:
        scanner = create(spec)
        if scanner.kind == "dense":
            raise UsageError(
                explain("dense attention is what errors are measured against", field="--scanner", found=spec)
            )
        if isinstance(scanner, Fathom):
            scanner = scanner.settled(choice)
        found.append(Setting(scanner, scanner.name, True))
    return _unique([*_ends(), *found])


def _grid(families: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[Setting]:
    found = _ends()
    for family, pattern, budgets in families:
        for budget in budgets:
            scanner = create(pattern.format(budget))
            found.append(Setting(scanner, family, scanner.label in _SWEPT))
    return _unique(found)


def _ends() -> list[Setting]:
    return [Setting(create("exact"), "exact", True), Setting(create("streaming"), "streaming", True)]


def _unique(settings: Iterable[Setting]) -> list[Setting]:
    return list({setting.scanner.label: setting for setting in reversed(list(settings))}.values())[::-1]
