"""What the link gives to a plain copy, measured in the same run as the scans that are compared with it."""

from __future__ import annotations

import statistics
from typing import Any

import torch

NBYTES = 1 << 30
COPIES = 7


def copy_rate(device: torch.device, nbytes: int = NBYTES, copies: int = COPIES) -> float:
    """GB/s (10^9 bytes) of copies of `nbytes` from pinned host memory to the device: the median of some copies."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    cuda: Any = torch.cuda  # its events carry no types
    times = []
    with torch.cuda.device(device):
        target.copy_(host, non_blocking=True)
        for _ in range(copies):
            first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            first.record()
            target.copy_(host, non_blocking=True)
            last.record()
            last.synchronize()
            times.append(float(first.elapsed_time(last)))
    return nbytes / statistics.median(times) / 1e6
