"""Triton's decorator with a type: kernels are untyped to a type checker, whatever their arguments say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit`. Whether Triton interprets or compiles a kernel is decided here, when its module is imported."""
    return triton.jit(kernel)
