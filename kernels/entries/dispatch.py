"""Scans of fp16 entries, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.entries import reference


def entry_scan(
    query: Tensor, entries: Tensor, tokens_per_entry: int, out: Tensor | None = None, maxima: Tensor | None = None
) -> Tensor:
    """q.e of queries `[H, G, c]` fp32 and entries `[H, c, e]` fp16, repeated for an entry's tokens: fp32
    `[H, G, e tokens_per_entry]`. out and maxima (on a GPU only) as in the kernel.
    """
    if query.is_cuda:
        from leadline.kernels.entries import triton

        return triton.entry_scan(query, entries, None, tokens_per_entry, out=out, maxima=maxima)
    return _into(out, reference.entry_scan(query, entries, tokens_per_entry))


def page_scan(
    query: Tensor,
    low: Tensor,
    high: Tensor,
    tokens_per_entry: int,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
) -> Tensor:
    """Upper bounds sum_j max(q_j low_j, q_j high_j), otherwise as `entry_scan`."""
    if query.is_cuda:
        from leadline.kernels.entries import triton

        return triton.entry_scan(query, high, low, tokens_per_entry, out=out, maxima=maxima)
    return _into(out, reference.page_scan(query, low, high, tokens_per_entry))


def _into(out: Tensor | None, scores: Tensor) -> Tensor:
    if out is None:
        return scores
    out[..., : scores.shape[-1]] = scores
    return out
