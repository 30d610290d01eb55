"""The bit-plane store as scanners use it: built raw or in a basis, read to planned depths, scored (SPEC section 1)."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.planes import BLOCK, pack
from leadline.kernels.scan import plane_scan
from leadline.scanners.base import Index, ReadPlan, Reads
from leadline.scanners.statistics import Basis


def build(keys: Tensor, basis: Basis | None, block: int = BLOCK) -> Index:
    """Planes and scales of keys `[H, n, d]`, or of (k - mu) V where a basis is given (its columns are the channels)."""
    values = keys if basis is None else basis.rotate_keys(keys)
    planes, scales = pack(values, block)
    return Index(
        fields={"planes": planes, "scales": scales.unsqueeze(-2)},
        tokens_per_item={"planes": block, "scales": block},
        tokens=keys.shape[-2],
        block=block,
        basis=basis,
    )


def read(depth: Tensor) -> ReadPlan:
    """Plan to read `depth` planes `[..., H, d]` of every channel, and the scales of the channels it touches."""
    return ReadPlan({"planes": depth, "scales": (depth > 0).to(depth.dtype)})


def score(query: Tensor, reads: Reads) -> Tensor:
    """Scores `[..., H, G, n]` of queries `[..., H, G, d]` that are already in the store's basis."""
    scales = reads.fields["scales"].squeeze(-2)
    return plane_scan(reads.query(query), reads.fields["planes"], scales, reads.depth["planes"], reads.block)
