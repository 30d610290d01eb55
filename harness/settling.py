"""What a loaded calibration settles in a run's spec before anything slow: the store of `basis=auto`, and whether it
holds what the scanners want of it.
"""

from __future__ import annotations

from leadline.config import RunSpec
from leadline.registry import create
from leadline.scanners.calibration import Calibration
from leadline.scanners.fathom import Fathom


def settled(spec: RunSpec, calibration: Calibration | None) -> RunSpec:
    """The spec with every `basis=auto` replaced by the calibration's choice, so that labels say which store was read.

    UsageError where a scanner wants a plan, a choice or a statistic that the calibration does not hold.
    """
    if calibration is None:
        return spec
    first = next(iter(calibration.layers.values()))

    def name(text: str) -> str:
        scanner = create(text)
        if not isinstance(scanner, Fathom) or scanner.basis != "auto":
            return text
        return scanner.settled(first.basis_choice).label

    changed = spec.model_copy(
        update={
            "scanners": tuple(dict.fromkeys(map(name, spec.scanners))),
            "baseline": name(spec.baseline),
            "family": tuple((name(scanner), name(baseline)) for scanner, baseline in spec.family),
        }
    )
    for text in changed.scanners:
        scanner = create(text)
        if scanner.needs == "calibration":
            scanner.calibrate(first)
    return changed
