"""Landmarks: the mean key of each 8-token block, ShadowKV-like (SPEC section 2)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import dot
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, to_fp16


class Landmarks(Scanner):
    """fp16 mean keys of blocks of `block` tokens; a token inherits its block's score. `block` divides 64."""

    name: ClassVar[str] = "landmarks"
    block: int = Field(default=8, ge=1)

    @field_validator("block")
    @classmethod
    def _divides(cls, value: int) -> int:
        if BLOCK % value:
            raise ValueError(f"block={value} must divide the store's block of {BLOCK} tokens")
        return value

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        means = to_fp16(keys.to(torch.float32).unflatten(-2, (-1, self.block)).mean(-2), "landmarks")
        field = means.transpose(-1, -2).unsqueeze(-2).contiguous()
        return Index({"means": field}, {"means": self.block}, keys.shape[-2], block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        every = torch.ones(index.fields["means"].shape[:2], dtype=torch.int64, device=query.device)
        return ReadPlan({"means": every}, tail="keys")

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        scores = dot(query, reads.fields["means"].squeeze(-2))
        return scores.repeat_interleave(self.block, dim=-1)
