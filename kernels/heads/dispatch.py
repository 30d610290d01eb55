"""Queries and the new K/V record of one token a sequence, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.heads import reference
from leadline.kernels.heads.reference import HeadForm


def split_heads(
    joint: Tensor,
    form: HeadForm,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    first: Tensor,
    query: Tensor,
    tail: Tensor,
    key: Tensor | None = None,
) -> None:
    """Write queries fp32 `[N H, G, d]` and the token's record into the tail `[N H, t, 2, d]` at position - first.

    Its key goes to key `[N H, d]` fp32 as well where that is given.
    """
    if joint.is_cuda:
        from leadline.kernels.heads import triton

        triton.split_heads(joint, form, cos, sin, position, first, query, tail, key)
    else:
        reference.split_heads(joint, form, cos, sin, position, first, query, tail, key)
