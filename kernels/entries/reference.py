"""Scans of fp16 entries in PyTorch: a token inherits the score of its entry."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.scan import dot


def entry_scan(query: Tensor, entries: Tensor, tokens_per_entry: int) -> Tensor:
    """q.e: queries `[H, G, c]` fp32 and entries `[H, c, e]` fp16 -> `[H, G, e tokens_per_entry]` fp32."""
    return dot(query, entries).repeat_interleave(tokens_per_entry, dim=-1)


def page_scan(query: Tensor, low: Tensor, high: Tensor, tokens_per_entry: int) -> Tensor:
    """Upper bound sum_j max(q_j low_j, q_j high_j) of entries low, high `[H, c, e]`, shaped as `entry_scan`."""
    bound = dot(query.clamp(min=0), high) + dot(query.clamp(max=0), low)
    return bound.repeat_interleave(tokens_per_entry, dim=-1)
