"""The key scan in PyTorch: q.k of every token in fp32 (SPEC section 2, `exact`)."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.scan.reference import dot


def key_scan(query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores `[H, G, n]` fp32 of queries `[H, G, d]` fp32 against keys `[H, n, d]`, n a multiple of 64, and the largest
    of each block `[H, G, n / 64]`, +inf where one is not a number.
    """
    scores = dot(query, keys.float().transpose(-1, -2))
    known = scores.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=-float("inf"))
    return scores, known.unflatten(-1, (-1, BLOCK)).amax(-1)
