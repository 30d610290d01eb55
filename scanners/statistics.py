"""Statistics of keys and queries, and what scanners derive from them (SPEC sections 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

BasisName = Literal["raw", "rotated"]
_TENSORS = ("key_mean", "key_covariance", "query_moment", "abs_query", "abs_key", "depth_error", "line_bits")


@dataclass(frozen=True)
class Basis:
    """Coordinates (k - mu) V of keys: mean `[H, d]`, vectors `[H, d, d]` with one coordinate a column, variance `[H,
    d]`.
    """

    mean: Tensor
    vectors: Tensor
    variance: Tensor

    def rotate_keys(self, keys: Tensor) -> Tensor:
        """(k - mu) V in fp32: `[H, n, d]` -> `[H, n, d]`."""
        return (keys.to(torch.float32) - self.mean.unsqueeze(-2)) @ self.vectors

    def rotate_query(self, query: Tensor) -> Tensor:
        """q V: `[..., H, G, d]` -> `[..., H, G, d]`."""
        return query @ self.vectors


@dataclass(frozen=True)
class LayerStatistics:
    """Moments of one layer's post-RoPE keys and queries on some text, fp32, accumulated in fp64.

    key_mean `[H, d]`; key_covariance `[H, d, d]` (ddof = 1). Of the queries, where they were seen: query_moment `[H, d,
    d]`, the mean over positions of sum_h q_h q_h^T; abs_query, abs_key `[H, d]`, means of |q| over positions and the
    group and of |k|. depth_error `[H, d, 5]` and line_bits: see `depth_statistics`.

    What a calibration decided with them: `basis_choice`, the store of the model; `layer_budgets`, this layer's budget
    in the per-layer plan of a (store, mean budget).
    """

    key_mean: Tensor
    key_covariance: Tensor
    query_moment: Tensor | None = None
    abs_query: Tensor | None = None
    abs_key: Tensor | None = None
    depth_error: Tensor | None = None
    line_bits: Tensor | None = None
    basis_choice: BasisName | None = None
    layer_budgets: Mapping[tuple[BasisName, int], int] = field(default_factory=dict)

    @property
    def variance(self) -> Tensor:
        """Var(k_j), `[H, d]`."""
        return self.key_covariance.diagonal(dim1=-2, dim2=-1)

    @cached_property
    def basis(self) -> Basis:
        """The KLT of the keys, coordinates ordered by score variance lambda_j E[sum_h (q_h V)_j^2], largest first.

        Without query statistics the order is by eigenvalue. The sign of a vector makes its largest entry positive.
        """
        covariance = self.key_covariance.to(torch.float64).cpu()
        values, vectors = torch.linalg.eigh(covariance)
        values = values.clamp(min=0)
        weight = values
        if self.query_moment is not None:
            moment = self.query_moment.to(torch.float64).cpu()
            weight = values * (vectors * (moment @ vectors)).sum(-2)
        order = weight.argsort(dim=-1, descending=True, stable=True)
        vectors = vectors.gather(-1, order.unsqueeze(-2).expand_as(vectors))
        largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
        vectors = vectors * torch.where(largest < 0, -1.0, 1.0)
        device = self.key_mean.device
        return Basis(
            self.key_mean.to(torch.float32),
            vectors.to(device, torch.float32).contiguous(),
            values.gather(-1, order).to(device, torch.float32),
        )

    def to(self, device: torch.device | str) -> LayerStatistics:
        """The same statistics on another device."""
        held = {name: value for name in _TENSORS if (value := getattr(self, name)) is not None}
        moved: dict[str, Any] = {name: value.to(device) for name, value in held.items()}
        return replace(self, **moved)


def of_keys(keys: Tensor, skip: int = 4) -> LayerStatistics:
    """Statistics of keys `[H, n, d]` alone, all positions but the first `skip` (a session's own prompt)."""
    used = keys[:, skip:].to(torch.float64)
    if used.shape[1] < 2:
        raise ValueError(f"{keys.shape[1]} keys give no variance; at least {skip + 2} are needed")
    mean = used.mean(1)
    centred = used - mean.unsqueeze(1)
    covariance = centred.transpose(-1, -2) @ centred / (used.shape[1] - 1)
    return LayerStatistics(mean.to(torch.float32), covariance.to(torch.float32))
