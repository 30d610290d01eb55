"""The key scan, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.keyscan import reference
from leadline.kernels.planes import BLOCK
from leadline.kernels.sequences import for_each


def key_scan(
    query: Tensor,
    keys: Tensor,
    *,
    first: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """Scores `[N H, G, n]` fp32 of queries `[N H, G, d]` fp32, of N sequences, against the key rows they share.

    keys: `[H, n, d]` of any floating type, contiguous in d, on the GPU or in pinned host memory (they may be halves of
    records). first: int32 `[1]`, how many tokens to score, a multiple of 64 (default n, which must be one); what lies
    past them is neither read nor written. out: `[N H, G, >= n]`. maxima: fp32 `[N H, G, >= n / 64]`, receives each
    block's largest score, +inf where one is not a number. counter: int64 `[1]`, the bytes of the keys read are added.
    """
    if query.is_cuda:
        from leadline.kernels.keyscan import triton

        return triton.key_scan(query, keys, first=first, out=out, maxima=maxima, counter=counter)
    tokens = keys.shape[1] if first is None else min(keys.shape[1], int(first))
    if tokens % BLOCK:
        raise ValueError(f"key scan: {tokens} tokens are not a multiple of {BLOCK}")
    if out is None:
        out = torch.empty(*query.shape[:2], keys.shape[1])
    if tokens:
        scores, peaks = reference.key_scan(query, for_each(keys[:, :tokens], len(query)))
        out[..., :tokens] = scores
        if maxima is not None:
            maxima[..., : tokens // BLOCK] = peaks
    if counter is not None:
        counter += keys[:, :tokens].numel() * keys.element_size()
    return out
