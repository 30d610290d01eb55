"""The packed nibble scan, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.nibbles import reference


def nibble_scan(
    query: Tensor, words: Tensor, scales: Tensor, out: Tensor | None = None, maxima: Tensor | None = None
) -> Tensor:
    """Scores `[H, G, n]` fp32 of queries `[H, G, c]` on all c stored channels: words int32 `[H, c, n / 8]`, scales fp16
    `[H, c, n / 64]`, on a GPU or in pinned host memory. out and maxima (on a GPU only) as in the kernel.
    """
    if query.is_cuda:
        from leadline.kernels.nibbles import triton

        return triton.nibble_scan(query, words, scales, out=out, maxima=maxima)
    scores = reference.nibble_scan(query, words, scales)
    if out is None:
        return scores
    out[..., : scores.shape[-1]] = scores
    return out
