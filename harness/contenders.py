"""The rows of a run's tables: the reference, dense, the noise floor and the scanners, each with its identity."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.config import RunSpec
from leadline.errors import UsageError, explain
from leadline.records import ScannerRecord
from leadline.registry import create
from leadline.scanners.base import Scanner


@dataclass(frozen=True)
class Contender:
    """A scanner as it takes part in a run."""

    scanner: Scanner
    record: ScannerRecord

    @property
    def sha256(self) -> str:
        """The identity its results are stored under."""
        return self.record.sha256


def contenders(spec: RunSpec, calibration_sha256: str | None) -> tuple[Contender, ...]:
    """Reference first, then dense, the noise floor (unless noise_chunk is 0) and the scanners in the order asked for.

    `exact` and `dense` always take part: every figure of a run stands against them. A scanner asked for twice takes
    part once. Raises UsageError for an unknown scanner, option, baseline or family member.
    """
    exact, dense = create("exact"), create("dense")
    found = [_contender(exact, "reference", calibration_sha256), _contender(dense, "dense", calibration_sha256)]
    if spec.noise_chunk:
        found.append(_contender(exact, "noise-floor", calibration_sha256, prefill_chunk=spec.noise_chunk))
    known = {contender.sha256 for contender in found}
    for text in spec.scanners:
        contender = _contender(create(text), "scanner", calibration_sha256)
        if contender.sha256 not in known:
            known.add(contender.sha256)
            found.append(contender)
    _check_unique_labels(found)
    return tuple(found)


def needing_calibration(spec: RunSpec) -> tuple[str, ...]:
    """Labels of the scanners that need a calibration text's statistics."""
    return tuple(s.label for s in map(create, spec.scanners) if s.needs == "calibration")


def canonical(spec: RunSpec) -> RunSpec:
    """The same spec with baseline and family written as labels. UsageError for an unknown scanner or option."""
    return spec.model_copy(
        update={
            "baseline": create(spec.baseline).label,
            "family": tuple((create(scanner).label, create(baseline).label) for scanner, baseline in spec.family),
        }
    )


def _contender(scanner: Scanner, role: str, calibration: str | None, prefill_chunk: int | None = None) -> Contender:
    used = calibration if scanner.needs == "calibration" else None
    identity = {
        "name": scanner.name,
        "version": scanner.version,
        "options": scanner.options(),
        "code": _foreign_code(scanner),
        "calibration": used,
        "prefill_chunk": prefill_chunk,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    label = scanner.label if prefill_chunk is None else f"{scanner.label} (prefill in {prefill_chunk}s)"
    record = ScannerRecord.model_validate(
        {
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "label": label,
            "name": scanner.name,
            "config": {
                "version": scanner.version,
                **scanner.options(),
                **({"code": identity["code"]} if identity["code"] else {}),
            },
            "calibration_sha256": used,
            "prefill_chunk": prefill_chunk,
            "role": role,
        }
    )
    return Contender(scanner, record)


def _foreign_code(scanner: Scanner) -> str | None:
    """Hash of a plugin's source file: an edited plugin is another scanner. None for built-ins, which have `version`."""
    if type(scanner).__module__.startswith("leadline."):
        return None
    source = inspect.getsourcefile(type(scanner))
    return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else None


def _check_unique_labels(found: Sequence[Contender]) -> None:
    seen: dict[str, Contender] = {}
    for contender in found:
        other = seen.setdefault(contender.record.label, contender)
        if other is not contender:
            raise UsageError(
                explain(
                    f"two scanners share the label {contender.record.label}",
                    found=f"{type(other.scanner).__module__} and {type(contender.scanner).__module__}",
                    do="rename one of them (its `name`)",
                )
            )
