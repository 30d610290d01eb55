"""SparQ: the query picks the channels with the largest |q| and reads them at full depth (SPEC section 2)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leadline.kernels.planes import BLOCK, DEPTH
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, scaled


class Sparq(Scanner):
    """Top-r channels by the sum of |q_j| over the group, 4-bit codes. Ties break to the smallest channel.

    r: channels per 128. pick: "group" is SparQ's rule, one set per KV head; "head" lets every query head pick its own r
    and reads their union, on all of which every head then scores (an ablation, not SparQ's method).
    """

    name: ClassVar[str] = "sparq"
    headline: ClassVar[tuple[str, ...]] = ("r",)
    r: int = Field(default=16, ge=1, le=128)
    pick: Literal["group", "head"] = "group"

    @property
    def store(self) -> str:
        return "planes"

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, None, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        r = scaled(self.r, query.shape[-1])
        size = query.abs()
        chosen = largest(size.sum(-2), r) if self.pick == "group" else largest(size, r).any(-2)
        return plane_store.read(chosen.to(torch.int64) * DEPTH)

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(query, reads)


def largest(values: Tensor, r: int) -> Tensor:
    """Mask `[..., d]` of the r largest values, ties to the smallest index."""
    order = values.argsort(dim=-1, descending=True, stable=True)[..., :r]
    return torch.zeros_like(values, dtype=torch.bool).scatter(-1, order, True)
