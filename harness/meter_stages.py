"""Which stage of a decode step a kernel belongs to, by its name as the profiler gives it.

Our own kernels belong to the stage of their folder in kernels/; matrix products are known by the names that the
vendor's libraries give them; copies by their direction. Everything else is "other".
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Literal

from leadline import kernels

Stage = Literal[
    "plan", "transfer", "scan", "scan (fused)", "tail", "top-k", "rows", "attention", "GEMM", "to host", "other"
]
# In the order of a step. "transfer" is what staging moves, "rows" the union and the fetch of its rows.
STAGES: tuple[Stage, ...] = (
    "plan", "transfer", "scan", "scan (fused)", "tail", "top-k", "rows", "attention", "GEMM", "to host", "other",
)  # fmt: skip
FOLDERS: dict[str, Stage] = {
    "attention": "attention",
    "channels": "plan",
    "entries": "scan",
    "gate": "other",
    "gather": "transfer",
    "heads": "other",
    "keyscan": "scan",
    "nibbles": "scan",
    "norm": "other",
    "place": "other",
    "planes": "other",
    "rows": "rows",
    "scan": "scan",
    "slots": "plan",
    "tail": "tail",
    "topk": "top-k",
    "waterfill": "plan",
}
_PRODUCTS = re.compile(r"gemm|gemv|cutlass|nvjet|splitk|xmma|cublas|wgmma|dot_kernel|reduce_1Block", re.IGNORECASE)
_COPIES: dict[str, Stage] = {"Memcpy HtoD": "transfer", "Memcpy DtoH": "to host"}


def stage_of(name: str) -> Stage:
    """The stage of a kernel, copy or fill, by the name the profiler gives it."""
    if (own := launched().get(name)) is not None:
        return own
    for start, stage in _COPIES.items():
        if name.startswith(start):
            return stage
    return "GEMM" if _PRODUCTS.search(name) else "other"


@cache
def launched() -> dict[str, Stage]:
    """The stages of this package's kernels by their names. A folder without a stage counts as "other".

    Read from the sources: importing a kernel decides whether Triton compiles or interprets it, and that is not for
    whoever names stages to decide.
    """
    found: dict[str, Stage] = {}
    for root in map(Path, kernels.__path__):
        for source in sorted(root.glob("*/triton.py")):
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and any(
                    ast.unparse(mark) == "jit" for mark in node.decorator_list
                ):
                    found[node.name] = FOLDERS.get(source.parent.name, "other")
    return found
