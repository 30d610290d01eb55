"""silu(gate) * up in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def gated(both: Tensor) -> Tensor:
    """silu(gate) * up of `[N, 2 w]`, gate first; silu is rounded to the model's precision before the product."""
    gate, up = both.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
