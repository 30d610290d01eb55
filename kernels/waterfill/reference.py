"""Reverse water-filling of read depth over channels, in PyTorch (Fathom equation 4, SPEC section 2).

The m-th plane of channel j is worth g_j 4^-(m + 1/2), m = 0..3: t_j = clip(round(log4(g_j / theta)), 0, 4) counts the
values at or above the water line theta. The plan is defined by the exact form, a sort of those values; the paper's
30 bisection steps are kept to compare with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.planes import DEPTH


def _marginal_values(importance: Tensor) -> Tensor:
    """g_j 4^-(m + 1/2) for m = 0..3: `[..., d]` -> `[..., d, 4]`; powers of two, so exact in fp32."""
    powers = torch.exp2(-(2.0 * torch.arange(DEPTH, device=importance.device, dtype=torch.float32) + 1))
    return importance.to(torch.float32).unsqueeze(-1) * powers


def depths(importance: Tensor, budget: int) -> Tensor:
    """Planes to read of each channel, the exact form.

    importance: g `[..., d]`, non-negative. Returns int64 `[..., d]` in 0..4 with sum <= `budget`. The water line stands
    just above the first value that does not fit, and everything equal to it stays out: ties can leave budget unused,
    and a uniform g with budget < d reads nothing. g_j = 0 gives 0. Raises ValueError for a negative budget.
    """
    if budget < 0:
        raise ValueError(f"budget is {budget}; a bit budget is not negative")
    values = _marginal_values(importance)
    flat = values.flatten(-2)
    if budget >= flat.shape[-1]:
        line = torch.zeros_like(flat[..., :1])
    else:
        line = flat.topk(budget + 1, dim=-1).values[..., -1:]
    return (values > line.unsqueeze(-1)).sum(-1)


def depths_by_bisection(importance: Tensor, budget: int, steps: int = 30) -> tuple[Tensor, Tensor]:
    """The paper's form: `steps` bisections on log theta for the smallest theta whose depths fit the budget.

    Returns depths `[..., d]` and theta `[...]`. Agrees with `depths` but where two values nearly tie.
    """
    values = _marginal_values(importance).to(torch.float64)
    positive = torch.where(values > 0, values, torch.inf)
    low = torch.log(positive.flatten(-2).amin(-1)).clamp(max=0) - 1
    high = torch.log(values.flatten(-2).amax(-1).clamp(min=torch.finfo(torch.float64).tiny)) + 1
    low = torch.minimum(torch.nan_to_num(low, posinf=0.0), high)
    for _ in range(steps):
        middle = (low + high) / 2
        used = (values >= middle.exp()[..., None, None]).sum((-1, -2))
        fits = used <= budget
        high = torch.where(fits, middle, high)
        low = torch.where(fits, low, middle)
    theta = high.exp()
    return (values >= theta[..., None, None]).sum(-1), theta
