"""The scanners' calibrated states of a session: from a calibration text, or from the session's own prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leadline.errors import UsageError, explain
from leadline.rows import Rows
from leadline.scanners.base import Scanner, State
from leadline.scanners.statistics import LayerStatistics, of_keys


@dataclass
class States:
    """Per-layer states of scanners, from a calibration or the session's own prompt up to its first branch point."""

    layers: Sequence[int]
    calibration: Mapping[int, LayerStatistics] | None
    session: Mapping[int, LayerStatistics] | None = None
    _made: dict[str, dict[int, State]] = field(default_factory=dict)

    def observe_session(self, rows: Rows) -> None:
        """Take the session's statistics from its rows as they stand, at its first branch point."""
        self.session = {layer: of_keys(rows.keys(layer)) for layer in self.layers}

    def of(self, scanner: Scanner) -> dict[int, State]:
        """The scanner's state of every layer, made once. UsageError when it needs a calibration and there is none."""
        key = f"{scanner.label}"
        if key not in self._made:
            source = {"nothing": None, "calibration": self.calibration, "session": self.session}[scanner.needs]
            if source is None and scanner.needs != "nothing":
                raise UsageError(
                    explain(
                        f"scanner {scanner.label} needs {scanner.needs} statistics and there are none",
                        do="give --calibration, or make one with `leadline calibrate`",
                    )
                )
            self._made[key] = {layer: scanner.calibrate(source[layer] if source else None) for layer in self.layers}
        return self._made[key]
