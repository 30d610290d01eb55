"""Landmarks propose blocks, planes confirm tokens inside them: a scan in two stages, the second of which is short.

The landmarks (fp16 mean keys) are read whole. The `fraction` of the 64-token blocks that hold the best landmark of any
query head are then read to the depths of Fathom's plan. Everywhere else a token keeps the score its landmark gives it,
and so do the channels that the plan leaves out: both are estimates of the same q.k, so all tokens stay comparable (a
score of minus infinity would make the choice arbitrary where k tokens do not fit into the proposed blocks).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import dot
from leadline.kernels.waterfill import depths
from leadline.scanners import plane_store
from leadline.scanners.base import Gate, Index, ReadPlan, Reads, Scanner, State, scaled, to_fp16
from leadline.scanners.statistics import LayerStatistics


class LandmarkFathom(Scanner):
    """Mean keys of `landmark` tokens choose blocks of 64; Fathom's planes are read only there.

    budget: code bits per token per 128 channels inside a proposed block. fraction: part of the blocks that are
    proposed, rounded up, per query and KV head. landmark: tokens of a mean key; divides 64. A block is proposed by its
    best landmark, measured for every query head from that head's best, so that the group's heads speak with one voice.
    Reads are fragmented: count 32-byte sectors beside the payload.
    """

    name: ClassVar[str] = "landmark_fathom"
    headline: ClassVar[tuple[str, ...]] = ("budget", "fraction", "landmark")
    budget: int = Field(default=80, ge=1)
    fraction: float = Field(default=0.5, gt=0, le=1)
    landmark: int = Field(default=64, ge=1)

    @field_validator("landmark")
    @classmethod
    def _divides(cls, value: int) -> int:
        if BLOCK % value:
            raise ValueError(f"landmark={value} must divide the store's block of {BLOCK} tokens")
        return value

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        return "calibration"

    @property
    def store(self) -> str:
        return f"planes+landmarks:{self.landmark}"

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        assert statistics is not None
        return State(variance=statistics.variance)

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        planes = plane_store.build(keys, None, block)
        means = to_fp16(keys.to(torch.float32).unflatten(-2, (-1, self.landmark)).mean(-2), "landmarks")
        fields = {"means": means.transpose(-1, -2).unsqueeze(-2).contiguous(), **planes.fields}
        return Index(fields, {"means": self.landmark, **planes.tokens_per_item}, planes.tokens, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        assert state.variance is not None
        importance = torch.square(query).sum(-2) * state.variance
        inside = plane_store.read(depths(importance, scaled(self.budget, query.shape[-1]))).depth
        every = torch.ones(index.fields["means"].shape[:2], dtype=torch.int64, device=query.device)
        items = -int(-index.fields["scales"].shape[-1] * self.fraction // 1)
        gate = Gate(("planes", "scales"), items, partial(self._propose, query, index.block))
        return ReadPlan({"means": every, **inside}, tail="keys", gate=gate)

    def _propose(self, query: Tensor, block: int, reads: Reads) -> Tensor:
        """Priority of every block `[..., H, m]`: how near its best landmark comes to the best of any query head."""
        scores = dot(query, reads.fields["means"].squeeze(-2))
        best: Tensor = scores.unflatten(-1, (-1, block // self.landmark)).amax(-1)  # [..., H, G, m]
        if best.shape[-1]:
            best = best - best.amax(-1, keepdim=True)
        return best.amax(-2)

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        assert reads.items is not None
        means = reads.fields["means"].squeeze(-2)
        coarse = dot(query, means).repeat_interleave(self.landmark, dim=-1)
        left_out = query * (reads.depth["planes"] == 0).unsqueeze(-2)
        fine = plane_store.score(query, reads) + dot(left_out, means).repeat_interleave(self.landmark, dim=-1)
        proposed = reads.items.repeat_interleave(reads.block, dim=-1).unsqueeze(-2)
        return torch.where(proposed, fine, coarse)
