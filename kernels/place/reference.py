"""A strided copy, in PyTorch."""

from __future__ import annotations

from torch import Tensor


def place(source: Tensor, destination: Tensor) -> None:
    """Copy source `[..., t]` into destination `[..., t]` of the same type. ValueError for other shapes or types."""
    check(source, destination)
    destination.copy_(source)


def check(source: Tensor, destination: Tensor) -> None:
    """ValueError unless a copy is one of equal shapes and types (nothing is broadcast or converted)."""
    if source.shape != destination.shape or source.dtype != destination.dtype:
        raise ValueError(
            f"place: a source of {list(source.shape)} {source.dtype} does not fit a destination of "
            f"{list(destination.shape)} {destination.dtype}"
        )
