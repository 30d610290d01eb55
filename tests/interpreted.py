"""Kernel modules for tests: compiled where there is a GPU, run by Triton's interpreter on CPU tensors elsewhere.

Whether a function is interpreted is fixed when it is decorated, for Triton's own `tl.sum` and the like as well, and
another test may have imported Triton before. So its standard functions are decorated anew here.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def kernels_of(op: str) -> ModuleType:
    """The Triton module of an op, e.g. "scan"."""
    if DEVICE == "cuda":
        return importlib.import_module(f"leadline.kernels.{op}.triton")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        _interpret_standard_functions()
        return importlib.import_module(f"leadline.kernels.{op}.triton")
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


def _interpret_standard_functions() -> None:
    import triton.experimental.gluon  # noqa: F401  imported by the first launch; it wants the functions as they are now
    import triton.language as tl
    from triton.language import standard
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    for name, value in list(vars(standard).items()):
        if isinstance(value, JITFunction):
            interpreted = InterpretedFunction(value.fn)
            setattr(standard, name, interpreted)
            if getattr(tl, name, None) is value:
                setattr(tl, name, interpreted)
