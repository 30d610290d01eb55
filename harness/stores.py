"""The scanners' stores at a branch point: calibrated states, and indexes built once per store and shared by its
scanners.
 Only complete 64-token blocks are ever indexed: floor((n - 1) / 64) of a prompt of n tokens (SPEC section 1). Indexes
are immutable; branches share them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leadline.errors import UsageError, explain
from leadline.kernels.planes import BLOCK
from leadline.rows import Rows
from leadline.scanners.base import Index, Scanner, State
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


@dataclass(frozen=True)
class Store:
    """A scanner's indexes by layer, what they hold and how long building them took."""

    indexes: Mapping[int, Index]
    nbytes: int
    build_seconds: float


class Stores:
    """Builds and keeps the stores of one branch point."""

    def __init__(self, rows: Rows, prompt_tokens: int, layers: Sequence[int]) -> None:
        self._rows = rows
        self._layers = layers
        self.tokens = (prompt_tokens - 1) // BLOCK * BLOCK
        self._built: dict[str, Store] = {}

    def of(self, scanner: Scanner, states: Mapping[int, State]) -> Store:
        """The store of a scanner; scanners with equal `store` names share one."""
        if scanner.store not in self._built:
            begun = time.perf_counter()
            indexes = {
                layer: scanner.build(self._rows.keys(layer)[:, : self.tokens], states[layer]) for layer in self._layers
            }
            seconds = time.perf_counter() - begun
            nbytes = 0 if scanner.reads_rows else sum(index.nbytes for index in indexes.values())
            self._built[scanner.store] = Store(indexes, nbytes, seconds)
        return self._built[scanner.store]
