"""Where the parts of a store lie, index and rows each in GPU or in host memory, and memory of either kind.

The three regimes of SPEC section 8: "host" puts both into pinned host memory, "rows-host" keeps the index on the GPU,
"device" keeps everything there. Without a GPU there is only "device", which is ordinary memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from leadline.errors import MachineError, UsageError, explain
from leadline.host.pinned import pinned_empty

Where = Literal["host", "device"]
_REGIMES: dict[str, tuple[Where, Where]] = {
    "device": ("device", "device"),
    "rows-host": ("device", "host"),
    "host": ("host", "host"),
}
_GIB = 1 << 30


@dataclass(frozen=True)
class Placement:
    """Where the scanners' indexes and the K/V rows of complete blocks lie."""

    index: Where = "device"
    rows: Where = "device"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The placement called "device", "rows-host" or "host". UsageError for another word."""
        if text not in _REGIMES:
            raise UsageError(
                explain("no such placement", field="placement", found=repr(text), expected=" or ".join(_REGIMES))
            )
        return cls(*_REGIMES[text])

    @property
    def name(self) -> str:
        """The word `parse` takes; an index in host memory with rows on the GPU has none and is called "index-host"."""
        return next((name for name, parts in _REGIMES.items() if parts == (self.index, self.rows)), "index-host")


def empty(shape: Sequence[int], dtype: torch.dtype, where: Where, device: torch.device, purpose: str) -> Tensor:
    """Memory of this shape, pinned on the host or on `device`. MachineError with the numbers where there is too little,
    and for "host" without a GPU.
    """
    if where == "host":
        return pinned_empty(shape, dtype, purpose)
    try:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        asked = torch.Size(shape).numel() * dtype.itemsize
        raise MachineError(
            explain(
                f"not enough GPU memory for {purpose}",
                found=f"{asked / _GIB:.2f} GiB asked for, {free / _GIB:.2f} of {total / _GIB:.2f} GiB free",
                do="lower --max-context, or put parts into host memory with another placement",
            )
        ) from error
