"""Quest: an upper bound of the score from per-channel minimum and maximum of each page (SPEC section 2)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import dot
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, to_fp16


class Quest(Scanner):
    """sum_j max(q_j min_j, q_j max_j) over pages of `page` tokens, fp16 entries; a token inherits its page's score."""

    name: ClassVar[str] = "quest"
    page: int = Field(default=16, ge=1)

    @field_validator("page")
    @classmethod
    def _divides(cls, value: int) -> int:
        if BLOCK % value:
            raise ValueError(f"page={value} must divide the store's block of {BLOCK} tokens")
        return value

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        pages = keys.to(torch.float32).unflatten(-2, (-1, self.page))
        fields = {
            name: to_fp16(extreme, "pages").transpose(-1, -2).unsqueeze(-2).contiguous()
            for name, extreme in (("minimum", pages.amin(-2)), ("maximum", pages.amax(-2)))
        }
        return Index(fields, dict.fromkeys(fields, self.page), keys.shape[-2], block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        every = torch.ones(index.fields["minimum"].shape[:2], dtype=torch.int64, device=query.device)
        return ReadPlan({"minimum": every, "maximum": every}, tail="keys")

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        low, high = (reads.fields[name].squeeze(-2) for name in ("minimum", "maximum"))
        bound = dot(query.clamp(min=0), high) + dot(query.clamp(max=0), low)
        return bound.repeat_interleave(self.page, dim=-1)
