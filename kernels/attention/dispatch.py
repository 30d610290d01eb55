"""Attention over fetched rows, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.rows import Union


def attend_rows(
    query: Tensor, keys: Tensor, values: Tensor, rows: Union, scaling: float, lse: Tensor | None = None
) -> Tensor:
    """Outputs `[H, G, d]` fp32 of queries `[H, G, d]` over the rows each head selected: keys, values `[H, U, d]` are
    the fetched union. lse: fp32 `[H, G]`, receives log sum exp of the logits.
    """
    if query.is_cuda:
        from leadline.kernels.attention import triton

        return triton.attend(query, keys, values, rows, scaling, lse=lse)
    width = rows.ids.shape[-1]
    live = torch.arange(width) < rows.count.unsqueeze(-1)
    own = (rows.member.unsqueeze(-2) >> torch.arange(query.shape[1]).unsqueeze(-1)) & 1  # [H, G, U]
    logits = query.to(torch.float32) @ keys[:, :width].to(torch.float32).transpose(-1, -2) * scaling
    logits = logits.masked_fill((own == 0) | ~live.unsqueeze(-2), -torch.inf)
    if lse is not None:
        lse.copy_(torch.logsumexp(logits, -1))
    seen = values[:, :width].to(torch.float32).masked_fill(~live.unsqueeze(-1), 0.0)
    return torch.softmax(logits, -1) @ seen
