"""Scans of fp16 entries, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.entries import reference
from leadline.kernels.planes import BLOCK
from leadline.kernels.sequences import for_each


def entry_scan(
    query: Tensor,
    entries: Tensor,
    tokens_per_entry: int,
    *,
    blocks: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """q.e of queries `[N H, G, c]` fp32 and the entries their N sequences share, `[H, c, e]` fp16, repeated for an
    entry's tokens: fp32 `[N H, G, e tokens_per_entry]`. blocks, out, maxima and counter as in the kernel.
    """
    if query.is_cuda:
        from leadline.kernels.entries import triton

        return triton.entry_scan(
            query, entries, None, tokens_per_entry, blocks=blocks, out=out, maxima=maxima, counter=counter
        )
    kept = _kept(blocks, tokens_per_entry, entries)
    scores = reference.entry_scan(query, for_each(entries[..., :kept], len(query)), tokens_per_entry)
    return _into(scores, out, maxima, counter, 2 * entries[..., :kept].numel())


def page_scan(
    query: Tensor,
    low: Tensor,
    high: Tensor,
    tokens_per_entry: int,
    *,
    blocks: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """Upper bounds sum_j max(q_j low_j, q_j high_j), otherwise as `entry_scan`."""
    if query.is_cuda:
        from leadline.kernels.entries import triton

        return triton.entry_scan(
            query, high, low, tokens_per_entry, blocks=blocks, out=out, maxima=maxima, counter=counter
        )
    kept = _kept(blocks, tokens_per_entry, high)
    bounds = [for_each(side[..., :kept], len(query)) for side in (low, high)]
    scores = reference.page_scan(query, bounds[0], bounds[1], tokens_per_entry)
    return _into(scores, out, maxima, counter, 4 * high[..., :kept].numel())


def _kept(blocks: Tensor | None, tokens_per_entry: int, entries: Tensor) -> int:
    """Entries of the blocks to scan."""
    every = entries.shape[-1]
    return every if blocks is None else min(every, int(blocks) * BLOCK // tokens_per_entry)


def _into(scores: Tensor, out: Tensor | None, maxima: Tensor | None, counter: Tensor | None, nbytes: int) -> Tensor:
    if counter is not None:
        counter += nbytes
    if maxima is not None:
        known = scores.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf"))
        maxima[..., : scores.shape[-1] // BLOCK] = known.unflatten(-1, (-1, BLOCK)).amax(-1)
    if out is None:
        return scores
    out[..., : scores.shape[-1]] = scores
    return out
