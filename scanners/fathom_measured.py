"""Fathom whose planes are worth what a calibration measured, not what a model of the quantizer says.

The flat plan takes the squared error of a channel to fall by 4 with every plane. Measured, the first plane removes much
less than that and the second much more, by amounts that differ between channels: a block's scale is its largest key, so
the one-bit read of a bell-shaped channel lies far outside most keys.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leadline.errors import UsageError, explain
from leadline.kernels.planes import BLOCK, DEPTH
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, scaled
from leadline.scanners.statistics import LayerStatistics
from leadline.scanners.water_line import fill


class FathomMeasured(Scanner):
    """Greedy by the error each plane was measured to remove: sum_h q_j^2 (e_j(m) - e_j(m + 1)) over raw channels.

    e_j(t) is the variance of k_j - k_j^(t) on the calibration's keys. Gains that rise with depth are averaged over the
    planes that must be bought together (the upper hull), so such planes are read all or none. budget: code bits per
    token per 128 channels, a ceiling; one plan per KV head, shared by its group.
    """

    name: ClassVar[str] = "fathom_measured"
    headline: ClassVar[tuple[str, ...]] = ("budget",)
    budget: int = Field(default=48, ge=1)

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        return "calibration"

    @property
    def store(self) -> str:
        return "planes"

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        assert statistics is not None
        if statistics.depth_error is None:
            raise UsageError(
                explain(
                    f"{self.label} needs the measured error of every depth",
                    field="--calibration",
                    found="a calibration without it, of an older leadline",
                    do="make it again with `leadline calibrate`",
                )
            )
        return State(extra={"gains": hull_gains(statistics.depth_error)})

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, None, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        values = torch.square(query).sum(-2).unsqueeze(-1) * state.extra["gains"]  # [..., H, d, 4]
        ceiling = torch.full(values.shape[:-2], scaled(self.budget, query.shape[-1]), device=query.device)
        return plane_store.read(fill(values, ceiling))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(query, reads)


def hull_gains(error: Tensor) -> Tensor:
    """What each plane removes, made never to rise with depth: errors `[..., 5]` of depths 0..4 -> gains `[..., 4]`.

    The slopes of the upper concave hull of error(0) - error(t); 0 past the depth of the least error.
    """
    removed = (error[..., :1] - error).to(torch.float64)
    gains = []
    for m in range(DEPTH):
        # The hull's slope from m to m + 1: the least, over starts up to m, of the best average slope from there on.
        best = []
        for start in range(m + 1):
            ends = range(m + 1, DEPTH + 1)
            slopes = [(removed[..., end] - removed[..., start]) / (end - start) for end in ends]
            best.append(torch.stack(slopes).amax(0))
        gains.append(torch.stack(best).amin(0).clamp(min=0))
    return torch.stack(gains, -1).to(torch.float32)
