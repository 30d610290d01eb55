"""What the contract suite runs a scanner on: small random and adversarial key sets over several head shapes.

A `Trial` is one scanner on one case. It hands out fresh keys, calibrates as the harness would, and runs a decode step
the way the harness does: plan, metered transfer, score.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.scanners.base import Delivery, Index, ReadPlan, Scanner, State
from leadline.scanners.calibration import Accumulator
from leadline.scanners.statistics import LayerStatistics, of_keys
from leadline.scanners.transfer import fetch

KeySet = Literal["normal", "skewed", "spike", "zeros", "constant", "subnormal", "ties"]


class ViolationError(Exception):
    """A clause of the contract is broken; the text says what was expected and what was found."""


def expect(holds: bool, text: str) -> None:
    """Raise ViolationError with `text` unless it holds."""
    if not holds:
        raise ViolationError(text)


@dataclass(frozen=True)
class Case:
    """Keys `[heads, 64 blocks, head_dim]` of one kind, and query heads in groups of `group`."""

    kind: KeySet
    heads: int
    group: int
    head_dim: int
    blocks: int
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.kind} {dtype} keys, H={self.heads} KV heads, G={self.group} query heads each, "
            f"d={self.head_dim}, n={self.blocks * BLOCK}"
        )

    def keys(self, seed: int = 0) -> Tensor:
        """Keys `[H, n, d]`; two seeds give different keys of the same kind."""
        generator = torch.Generator().manual_seed(1000 + seed)
        shape = (self.heads, self.blocks * BLOCK, self.head_dim)
        noise = torch.randn(shape, generator=generator)
        if self.kind == "skewed":  # variances of channels spread over decades, as those of real keys are
            noise = noise * torch.exp(torch.randn(self.heads, 1, self.head_dim, generator=generator))
        elif self.kind == "spike":
            noise = noise * 0.01
            noise[:, 7 + seed, 3] = 1e4
        elif self.kind == "zeros":
            noise = torch.zeros(shape)
        elif self.kind == "constant":
            noise = noise[:, :1].expand(shape).clone()
        elif self.kind == "subnormal":
            noise = noise * 1e-40
        elif self.kind == "ties":
            noise = noise.round()
        return noise.to(self.dtype)

    def query(self, positions: int, seed: int = 0) -> Tensor:
        """Queries `[T, H, G, d]`, fp32."""
        generator = torch.Generator().manual_seed(2000 + seed)
        return torch.randn(positions, self.heads, self.group, self.head_dim, generator=generator)


CASES = (
    Case("normal", heads=2, group=3, head_dim=64, blocks=2),
    Case("normal", heads=1, group=1, head_dim=128, blocks=1),
    Case("skewed", heads=3, group=4, head_dim=64, blocks=5),
    Case("skewed", heads=2, group=7, head_dim=128, blocks=3, dtype=torch.bfloat16),
    Case("spike", heads=2, group=4, head_dim=128, blocks=2),
    Case("ties", heads=2, group=3, head_dim=64, blocks=4),
    Case("constant", heads=2, group=1, head_dim=64, blocks=1),
    Case("zeros", heads=2, group=3, head_dim=64, blocks=1),
    Case("subnormal", heads=2, group=1, head_dim=64, blocks=2),
)


@functools.lru_cache(maxsize=64)
def _statistics(case: Case, needs: Literal["calibration", "session"]) -> LayerStatistics:
    keys = case.keys(seed=5)
    if needs == "session":
        return of_keys(keys)
    sums = Accumulator()
    sums.add(case.query(keys.shape[1], seed=5).permute(1, 2, 0, 3).flatten(0, 1), keys, 0)
    return sums.statistics()


class Trial:
    """One scanner on one case."""

    def __init__(self, scanner: Scanner, case: Case) -> None:
        self.scanner = scanner
        self.case = case
        self.query = case.query(1)

    @cached_property
    def statistics(self) -> LayerStatistics | None:
        """What the harness would calibrate this scanner with; None where it needs nothing."""
        if self.scanner.needs == "nothing":
            return None
        made = _statistics(self.case, self.scanner.needs)
        copies: dict[str, Any] = {
            name: value.clone() for name, value in vars(made).items() if isinstance(value, Tensor)
        }
        return LayerStatistics(**copies)

    @cached_property
    def state(self) -> State:
        """The calibrated state, made once for the case as the harness makes it once for a layer."""
        return self.scanner.calibrate(self.statistics)

    def build(self, seed: int = 0) -> Index:
        """The index of fresh keys."""
        return self.scanner.build(self.case.keys(seed), self.state)

    def plan(self, index: Index, query: Tensor | None = None) -> ReadPlan:
        """The plan of the case's query, or of another."""
        return self.scanner.plan(self.query if query is None else query, self.state, index)

    def deliver(self, index: Index, query: Tensor | None = None) -> Delivery:
        """Plan and transfer."""
        return fetch(index, self.plan(index, query))

    def score(self, delivery: Delivery, query: Tensor | None = None) -> Tensor:
        """Scores `[T, H, G, n]` of what was delivered."""
        return self.scanner.score(self.query if query is None else query, delivery.reads, self.state)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal shape, dtype and bytes; NaN equals itself."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return torch.equal(left.view(whole), right.view(whole))


def close(left: Tensor, right: Tensor, tolerance: float = 1e-4) -> bool:
    """Equal within `tolerance` of the largest finite score, for sums taken in another order."""
    if left.shape != right.shape:
        return False
    largest = float(right.abs().max()) if right.numel() else 0.0
    limit = tolerance * largest if math.isfinite(largest) else tolerance
    return bool(((left - right).abs() <= limit).all())


def static_bits(scanner: Scanner, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> float | None:
    """Scan bits per token per KV head when every query reads the same number, else None. Keys are of `dtype`."""
    trial = Trial(scanner, Case("skewed", heads=2, group=4, head_dim=head_dim, blocks=1, dtype=dtype))
    index = trial.build()
    bits = trial.plan(index, trial.case.query(8, seed=9)).bits_per_token(index)
    if not isinstance(bits, Tensor):
        return float(bits)
    return float(bits.flatten()[0]) if bool((bits == bits.flatten()[0]).all()) else None
