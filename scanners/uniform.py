"""Every channel at one depth: the 2-bit thumbnail and the full 4-bit read (SPEC section 2)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leadline.kernels.planes import BLOCK, DEPTH
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State


class Thumbnail(Scanner):
    """All channels at `planes` planes, FFD-like; 2 is the thumbnail, 4 what `full4` reads."""

    name: ClassVar[str] = "thumbnail"
    planes: int = Field(default=2, ge=1, le=DEPTH)

    @property
    def store(self) -> str:
        return "planes"

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, None, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        heads, d = index.fields["planes"].shape[:2]
        return plane_store.read(torch.full((heads, d), self.planes, dtype=torch.int64, device=query.device))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(query, reads)


class Full4(Thumbnail):
    """All channels at 4 planes: the best any read of this store can do."""

    name: ClassVar[str] = "full4"
    planes: int = Field(default=DEPTH, ge=DEPTH, le=DEPTH)
