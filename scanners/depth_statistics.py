"""What a calibration measures for plans beyond Var(k) 4^-t: the error of every depth, and the bits a water line costs.

Two results for one layer. `depth_error`: how far the prefix read of t planes lies from the key, measured instead of
modelled. `line_bits`: how many code bits a water line of fixed height reads on the calibration's own queries, on a grid
of heights, so that a line can be found whose mean is a given budget. Both are of raw channels.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK, DEPTH, codes

_LOWEST, _HIGHEST, _PER_OCTAVE = -32, 32, 8  # log2 of sum_h q_j^2, as a histogram
LOG2_LINES: Final = torch.arange(-40.0, 40.25, 0.25, dtype=torch.float64)  # log2 of the heights that line_bits covers


class DepthMoments:
    """Sums of one layer over windows; positions before `skip` of each window are left out."""

    def __init__(self, skip: int = 4) -> None:
        self._skip = skip
        self._keys = 0
        self._positions = 0
        self._sums: Tensor | None = None  # of error and squared error, [2, H, d, 5] fp64
        self._histogram: Tensor | None = None  # of log2 sum_h q_j^2, [H, d, bins]

    def add(self, query: Tensor, keys: Tensor, first: int) -> None:
        """Add new positions: query `[Hq, T, d]`, their keys `[H, T, d]`, the first of them at position `first`.

        Errors are measured on the 64-token blocks, counted from position 0, that lie whole in these keys.
        """
        self._add_errors(keys, first)
        self._add_queries(query[:, max(0, self._skip - first) :], keys.shape[0])

    def depth_error(self) -> Tensor | None:
        """Variance of k_j - k_j^(t) over positions, `[H, d, 5]` fp32 for t = 0..4; None where no whole block was seen.

        t = 0 is Var(k_j) of these positions. A constant error ranks nothing, so its mean does not count.
        """
        if self._sums is None or self._keys < 2:
            return None
        mean, square = self._sums / self._keys
        variance = (square - mean.square()) * (self._keys / (self._keys - 1))
        found: Tensor = variance.clamp(min=0).to("cpu", torch.float32)
        return found

    def line_bits(self, variance: Tensor) -> Tensor:
        """Mean code bits per token per KV head of the plan t_j = #{m < 4: g_j 4^-(m + 1/2) > theta}, `[lines]` fp32.

        variance: Var(k_j) `[H, d]`, for g_j = sum_h q_j^2 Var(k_j). theta: 2^LOG2_LINES. Never rises with theta.
        """
        assert self._histogram is not None, "no queries were added"
        heads, d, bins = self._histogram.shape
        above = self._histogram.flip(-1).cumsum(-1).flip(-1).to("cpu", torch.float64) / self._positions
        survival = torch.cat([above, above.new_zeros(heads, d, 1)], -1)  # P(log2 q^2 >= edge) at the bins' edges
        spread = torch.log2(variance.to("cpu", torch.float64).clamp(min=torch.finfo(torch.float64).tiny))
        found = torch.zeros(LOG2_LINES.shape, dtype=torch.float64)
        for m in range(DEPTH):
            needed = LOG2_LINES + (2 * m + 1) - spread.unsqueeze(-1)  # log2 q^2 above which plane m is read
            place = ((needed - _LOWEST) * _PER_OCTAVE).clamp(0, bins)
            low = place.floor().clamp(max=bins - 1).to(torch.int64)
            share = torch.lerp(survival.gather(-1, low), survival.gather(-1, low + 1), place - low)
            found += share.sum((0, 1)) / heads
        return found.to(torch.float32)

    def _add_errors(self, keys: Tensor, first: int) -> None:
        start = -first % BLOCK
        whole = (keys.shape[1] - start) // BLOCK * BLOCK
        if whole <= 0:
            return
        used = keys[:, start : start + whole].to(torch.float32)
        code, scales = codes(used)
        top = scales.to(torch.float64).repeat_interleave(BLOCK, -2)
        drop = max(0, self._skip - (first + start))
        exact = used.to(torch.float64)
        sums = []
        for t in range(DEPTH + 1):
            half = 2.0 ** (t - 1)
            read = ((code >> (DEPTH - t)).to(torch.float64) + 0.5 - half) * top / half if t else torch.zeros_like(exact)
            error = (exact - read)[:, drop:]
            sums.append(torch.stack([error.sum(1), error.square().sum(1)]))
        found = torch.stack(sums, -1)
        self._sums = found if self._sums is None else self._sums + found
        self._keys += whole - drop

    def _add_queries(self, query: Tensor, heads: int) -> None:
        if not query.shape[1]:
            return
        size = query.to(torch.float32).unflatten(0, (heads, -1)).square().sum(1)  # [H, T, d]
        bins = (_HIGHEST - _LOWEST) * _PER_OCTAVE
        place = ((torch.log2(size) - _LOWEST) * _PER_OCTAVE).clamp(0, bins - 1).to(torch.int64)  # log2 0 is the lowest
        d = size.shape[-1]
        channel = torch.arange(heads * d, device=size.device).view(heads, 1, d)
        counts = torch.bincount((channel * bins + place).flatten(), minlength=heads * d * bins).view(heads, d, bins)
        self._histogram = counts if self._histogram is None else self._histogram + counts
        self._positions += size.shape[1]


def line_of(bits: Tensor, budget: float) -> float:
    """The height theta at which `line_bits` says a line reads `budget` code bits in the mean; linear in log2 theta.

    Where even the lowest line reads less than the budget, the answer is 0: read every plane worth anything.
    """
    curve = bits.to(torch.float64)
    below = torch.nonzero(curve <= budget).flatten()
    if not below.numel() or int(below[0]) == 0:
        return 0.0 if below.numel() else 2.0 ** float(LOG2_LINES[-1])
    i = int(below[0])
    share = float((curve[i - 1] - budget) / (curve[i - 1] - curve[i]))
    low, high = LOG2_LINES[i - 1 : i + 1].tolist()
    return float(2.0 ** (low + share * (high - low)))
