"""The Fathom paper's figures for a decode step, to stand beside ours (SPEC section 9).

They were taken on an A100 with PCIe 4, Qwen3-8B, k = 512, batch 1 unless said, with a prototype that staged every read.
Another machine: a ratio can be compared, milliseconds tell how the machines differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MACHINE = "A100, PCIe 4"
Quantity = Literal["gpu_ms", "gpu_ratio", "wall_ratio", "transfer", "scan", "top-k", "rows", "GEMM", "other"]

SCANS_136 = ("sparq:r=32", "loki:r=32", "double_sparsity:channels=32")
FATHOM = "fathom:budget=48"


@dataclass(frozen=True)
class Published:
    """One figure: milliseconds of `label`, or its time over that of `against`, at a context, placement and batch."""

    context: int
    batch: int
    placement: str
    label: str
    quantity: Quantity
    value: float
    against: str | None = None
    note: str = ""


def _ratios(context: int, batch: int, value: float, note: str = "") -> tuple[Published, ...]:
    return tuple(
        Published(context, batch, "host", label, "gpu_ratio", value, FATHOM, note or "136-bit scans")
        for label in SCANS_136
    )


_M = 1 << 20
FIGURES: tuple[Published, ...] = (
    Published(_M, 1, "host", FATHOM, "gpu_ms", 177),
    *(Published(_M, 1, "host", label, "gpu_ms", 296, note="136-bit scans") for label in SCANS_136),
    *_ratios(_M, 1, 1.67),
    *(Published(_M, 1, "host", label, "wall_ratio", 1.38, FATHOM, "136-bit scans") for label in SCANS_136),
    Published(_M, 1, "host", "landmarks", "gpu_ratio", 2.50, FATHOM),
    Published(_M, 1, "host", "landmarks", "wall_ratio", 2.07, FATHOM),
    Published(_M, 1, "host", "thumbnail", "gpu_ratio", 3.12, FATHOM),
    Published(_M, 1, "host", "thumbnail", "wall_ratio", 2.59, FATHOM),
    Published(_M, 1, "host", "sparq:r=16", "gpu_ratio", 1.05, FATHOM),
    Published(_M, 1, "host", "sparq:r=16", "wall_ratio", 0.93, FATHOM, "said as: SparQ is 7% faster"),
    Published(_M, 1, "host", "sparq:r=16", "gpu_ratio", 1.11, "fathom:budget=40"),
    Published(_M, 1, "host", FATHOM, "transfer", 78),
    Published(_M, 1, "host", FATHOM, "scan", 21),
    Published(_M, 1, "host", FATHOM, "top-k", 35),
    Published(_M, 1, "host", FATHOM, "rows", 15),
    Published(_M, 1, "host", FATHOM, "GEMM", 10),
    Published(_M, 1, "host", FATHOM, "other", 19),
    *_ratios(1 << 18, 1, 1.37),
    *_ratios(1 << 18, 2, 1.44),
    *_ratios(1 << 19, 2, 1.63),
    *_ratios(1 << 17, 1, 1.26, "136-bit scans, after a real prefill"),
    Published(1 << 17, 1, "host", "sparq:r=16", "gpu_ratio", 1.00, FATHOM, "after a real prefill"),
    *(
        Published(1 << 17, 1, "rows-host", label, "gpu_ms", 46.5, note="45 to 48 ms for every per-token scan")
        for label in (FATHOM, "sparq:r=16", *SCANS_136)
    ),
)
# The published breakdown has no stages of ours: attention, plans and the tail are in its rest.
STAGES: dict[str, tuple[str, ...]] = {
    "transfer": ("transfer",),
    "scan": ("scan",),
    "top-k": ("top-k",),
    "rows": ("rows",),
    "GEMM": ("GEMM",),
    "other": ("plan", "tail", "attention", "to host", "other"),
}
