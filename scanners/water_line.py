"""A water line over values that a plan may buy: what stands above it is read, what equals it is not (SPEC section 2).

The flat plan of `leadline.kernels.waterfill` draws one line per KV head over g_j 4^-(m + 1/2). Here the values may be
any that fall with depth, and the ceiling may differ from query to query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.planes import DEPTH


def modelled_values(importance: Tensor) -> Tensor:
    """g_j 4^-(m + 1/2), what plane m = 0..3 of a channel is worth: `[..., d]` -> `[..., d, 4]` fp32, exact powers."""
    powers = torch.exp2(-(2.0 * torch.arange(DEPTH, device=importance.device, dtype=torch.float32) + 1))
    return importance.to(torch.float32).unsqueeze(-1) * powers


def fill(values: Tensor, ceiling: Tensor) -> Tensor:
    """Planes to read, int64 `[..., c]`: the largest of `values` `[..., c, 4]`, at most `ceiling` `[...]` in all.

    values: not negative and never rising with depth. The line stands just above the first value that does not fit;
    everything equal to it stays out, and so does what is worth 0.
    """
    flat = values.flatten(-2)
    ordered = flat.sort(dim=-1, descending=True).values
    ordered = torch.cat([ordered, torch.zeros_like(ordered[..., :1])], -1)
    place = ceiling.clamp(0, flat.shape[-1]).to(torch.int64)
    line = ordered.gather(-1, place.unsqueeze(-1))
    return (values > line.unsqueeze(-1)).sum(-1)


def above(values: Tensor, line: Tensor) -> Tensor:
    """Planes worth more than a given line, int64 `[..., c]`, of values `[..., c, 4]`."""
    return (values > line).sum(-1)
