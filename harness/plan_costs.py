"""What a scanner reads, keeps and takes, before anything is run: SPEC sections 4 and 8 as arithmetic.

Bits follow from the scanner where its plan is fixed. Where the query decides, they are the budget and a quarter bit for
every channel that is expected to be active: 28, 32, 40 and 48 of 128 at B = 40, 48, 64 and 80, which published and own
measurements agree on. Predicted times rest on rates that are given, measured or stated, and never claim to be measured.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.host.index_store import ROW_BYTES
from leadline.kernels.planes import BLOCK
from leadline.model import ModelShape
from leadline.plan_records import BitsFrom
from leadline.scanners.base import Scanner, scaled
from leadline.scanners.conformance_cases import Case, Trial
from leadline.scanners.fathom import Fathom

UNION_SHARE = 0.78  # of G x k selected rows, how many are distinct: 12,724 of 8 x 4 x 512 in the timed shape
FIXED_MS = 1.6  # of a decode step by kernels: top-k, launches and small kernels
LINK_SHARE = 0.86  # of the pinned-copy rate that scans and row fetches reach
SCAN_GB_PER_SECOND = 280.0  # of planes in GPU memory: arithmetic, not memory, bounds it
GPU_FLOPS = 2e14
GPU_FORCED_MS = 20.0  # per position of a teacher-forced text, where the references must do it
CPU_FLOPS_PER_THREAD = 6e10
CPU_GB_PER_SECOND = 8.4
CPU_LAYER_MS = 0.8  # of a scanned layer, whatever its length
CPU_PLANES_MS = 1.7
CPU_PLANES_GB_PER_SECOND = 0.04
CPU_FORCED_SHARE = 0.2  # of a decode step, per position of a teacher-forced text


@dataclass(frozen=True)
class Setting:
    """What costs depend on beside the scanner. `element` is the bytes of a key's entry; `dense` counts dense layers."""

    shape: ModelShape
    dtype: torch.dtype
    k: int
    dense: int = 0

    @property
    def element(self) -> int:
        """Bytes of one entry of a row."""
        return self.dtype.itemsize

    @property
    def union_rows(self) -> int:
        """Expected distinct rows that a KV head's group selects."""
        return max(self.k, round(UNION_SHARE * self.shape.groups * self.k))


def bits_of(scanner: Scanner, setting: Setting) -> tuple[float, BitsFrom]:
    """Scan bits per token per KV head, and what that stands on."""
    d = setting.shape.head_dim
    budget = getattr(scanner, "budget", None)
    if isinstance(budget, int) and scanner.store.startswith("planes"):
        active = min(d, round((8 + budget / 2) * d / 128))
        return min(scaled(budget, d), 4 * d) + 0.25 * active, "budget + 0.25 x stated active channels"
    trial = _trial(scanner, setting)
    index = trial.build()
    bits = trial.plan(index, trial.case.query(8, seed=9)).bits_per_token(index)
    if not isinstance(bits, Tensor):
        return float(bits), "fixed plan" if bits else "no scan"
    fixed = bool((bits == bits.flatten()[0]).all())
    return float(bits.mean()), "fixed plan" if fixed else "plans of made-up queries"


def store_bytes(scanner: Scanner, setting: Setting, capacity: int) -> int:
    """Bytes of the scanner's store of all scanned layers with room for `capacity` tokens, rows padded to 128 bytes."""
    if scanner.reads_rows:
        return 0
    blocks = capacity // BLOCK
    return len(setting.shape.scanned_layers) * sum(
        field[..., 0].numel() * -(-field.shape[-1] * blocks * field.element_size() // ROW_BYTES) * ROW_BYTES
        for field in _fields(scanner, setting).values()
    )


def step_bytes(scanner: Scanner, bits: float, setting: Setting, n: int) -> tuple[int, int]:
    """Scan and row bytes of one decode step at n tokens, all layers and KV heads, one sequence."""
    shape = setting.shape
    row = 2 * shape.head_dim * setting.element
    dense_rows = setting.dense if scanner.kind != "dense" else len(shape.scanned_layers)
    sparse = len(shape.scanned_layers) - dense_rows
    union = setting.k if scanner.name == "streaming" else min(n, setting.union_rows)
    scan = round(sparse * shape.kv_heads * bits / 8 * n)
    return scan, shape.kv_heads * row * (sparse * union + dense_rows * n)


def gpu_ms(
    scan: int, rows: int, weights: int, *, link: float, memory: float, index_on_host: bool, rows_on_host: bool
) -> float:
    """Milliseconds of a decode step by kernels, from bytes and rates in GB/s: the parts one after the other."""
    scan_rate = LINK_SHARE * link if index_on_host else min(memory, SCAN_GB_PER_SECOND)
    row_rate = LINK_SHARE * link if rows_on_host else memory
    return FIXED_MS + (weights / memory + scan / scan_rate + rows / row_rate) / 1e6


def cpu_ms(scanner: Scanner, scan: int, rows: int, weights: int, setting: Setting) -> float:
    """Milliseconds of a decode step by the references on a CPU, where planes are unpacked bit by bit."""
    if scanner.kind == "dense":
        return (weights + rows) / CPU_GB_PER_SECOND / 1e6
    layer = CPU_PLANES_MS if "planes" in _fields(scanner, setting) else CPU_LAYER_MS
    rate = CPU_PLANES_GB_PER_SECOND if "planes" in _fields(scanner, setting) else CPU_GB_PER_SECOND
    return len(setting.shape.scanned_layers) * layer + ((weights + rows) / CPU_GB_PER_SECOND + scan / rate) / 1e6


def prefill_seconds(tokens: int, end: int, parameters: int, shape: ModelShape, flops: float) -> float:
    """Seconds of a dense prefill of `tokens` tokens that ends at position `end`."""
    pairs = tokens * (end - tokens / 2)
    return (2 * parameters * tokens + 4 * shape.layers * shape.query_heads * shape.head_dim * pairs) / flops


def _trial(scanner: Scanner, setting: Setting) -> Trial:
    shape = setting.shape
    if isinstance(scanner, Fathom) and scanner.allotment == "per-layer":
        # Made-up statistics hold no plan. Over the layers it costs what its mean costs in each.
        scanner = scanner.model_copy(update={"allotment": "flat"})
    return Trial(scanner, Case("skewed", shape.kv_heads, shape.groups, shape.head_dim, blocks=1, dtype=setting.dtype))


@functools.lru_cache(maxsize=128)
def _fields(scanner: Scanner, setting: Setting) -> Mapping[str, Tensor]:
    """The fields of the store of one block of made-up keys."""
    return _trial(scanner, setting).build().fields
