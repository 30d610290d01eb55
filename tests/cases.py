"""The one list of scanner specs that every contract test runs over, with the scan bits SPEC section 2 states for them.

Bits are per token per KV head at head_dim 128 and 64; None where a query's plan decides. The per-layer plan is no spec
of its own, and `dense` scans nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class ScannerCase(NamedTuple):
    """A spec and its scan bits at d = 128 and d = 64."""

    spec: str
    bits_128: float | None
    bits_64: float | None


CASES = (
    ScannerCase("exact", 2048, 1024),  # rows in bf16
    ScannerCase("fathom:budget=40", None, None),
    ScannerCase("fathom:budget=48", None, None),
    ScannerCase("fathom:budget=64", None, None),
    ScannerCase("fathom:budget=80", None, None),
    ScannerCase("fathom:budget=48,basis=rotated", None, None),
    ScannerCase("fathom:budget=48,statistics=session", None, None),
    ScannerCase("fathom:budget=48,basis=rotated,statistics=session", None, None),
    ScannerCase("fathom_global:budget=48", None, None),
    ScannerCase("fathom_global:budget=48,weight=relative,basis=rotated", None, None),
    ScannerCase("fathom_global:budget=48,scope=model", None, None),
    ScannerCase("fathom_measured:budget=48", None, None),
    ScannerCase("landmark_fathom:budget=80,fraction=0.5", None, None),
    ScannerCase("landmark_fathom:budget=48,fraction=0.4,landmark=8", None, None),
    ScannerCase("sparq:r=16", 68, 34),
    ScannerCase("sparq:r=32", 136, 68),
    ScannerCase("sparq:r=16,pick=head", None, None),
    ScannerCase("loki:r=32", 136, 68),
    ScannerCase("loki:r=64", 272, 136),
    ScannerCase("loki:r=32,precision=fp16", 512, 256),
    ScannerCase("double_sparsity:channels=8", 34, 17),
    ScannerCase("double_sparsity:channels=16", 68, 34),
    ScannerCase("double_sparsity:channels=32", 136, 68),
    ScannerCase("double_sparsity:channels=64", 272, 136),
    ScannerCase("thumbnail", 288, 144),
    ScannerCase("full4", 544, 272),
    ScannerCase("landmarks", 256, 128),
    ScannerCase("quest", 256, 128),
    ScannerCase("streaming", 0, 0),
)
SCANNERS = tuple(case.spec for case in CASES)
