"""Where decoding stands: the few numbers that change from step to step, in GPU memory, where a captured graph reads
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK


@dataclass(frozen=True)
class Selection:
    """How many tokens a query head attends to, and which it attends to whatever their score (SPEC section 3)."""

    k: int
    sink: int
    local: int


@dataclass(frozen=True)
class Cursor:
    """token: int64 `[N]`, fed next. position: int32 `[1]`, its place. length: position + 1, what the step sees. blocks:
    complete blocks of the store. first: 64 blocks, the first token of the tail.
    """

    token: Tensor
    position: Tensor
    length: Tensor
    blocks: Tensor
    first: Tensor

    @classmethod
    def empty(cls, sequences: int, device: torch.device) -> Self:
        """A cursor at position 0."""
        one = [torch.zeros(1, dtype=torch.int32, device=device) for _ in range(4)]
        return cls(torch.zeros(sequences, dtype=torch.int64, device=device), *one)

    def set(self, token: int, length: int, blocks: int) -> None:
        """Stand at the last of `length` tokens."""
        if not blocks * BLOCK < length:
            raise ValueError(f"a store of {blocks} blocks leaves no tail of {length} tokens")
        self.token.fill_(token)
        self.position.fill_(length - 1)
        self.length.fill_(length)
        self.blocks.fill_(blocks)
        self.first.fill_(blocks * BLOCK)

    def advance(self, token: Tensor) -> None:
        """Go on with `token` `[N]`; enqueued like any kernel."""
        self.token.copy_(token)
        self.position.add_(1)
        self.length.add_(1)
