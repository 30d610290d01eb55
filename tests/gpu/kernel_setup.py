"""What the checks of the kernels stand on: the device, `leadline.kernels` without the rest of the package, inputs.

The machine with the GPU may hold torch, triton and numpy alone, so only the folder kernels/ is imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

REHEARSAL = "--rehearse" in sys.argv  # small shapes through Triton's interpreter, no timing
SMALL = REHEARSAL or "--small" in sys.argv  # the same shapes on a GPU, no timing: for tools that slow kernels down
if REHEARSAL:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
from torch import Tensor  # noqa: E402


def find_kernels() -> None:
    """Make `leadline.kernels` the folder kernels/ of this checkout, unless leadline is already importable."""
    if importlib.util.find_spec("leadline") is not None:
        return
    folder = Path(__file__).resolve().parents[2] / "kernels"
    package = ModuleType("leadline")
    package.__path__ = []
    sys.modules["leadline"] = package
    spec = importlib.util.spec_from_file_location(
        "leadline.kernels", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    sys.modules["leadline.kernels"] = kernels
    spec.loader.exec_module(kernels)


find_kernels()

from leadline.kernels.attention import triton as attention  # noqa: E402
from leadline.kernels.entries import triton as entries  # noqa: E402
from leadline.kernels.gather import triton as gather  # noqa: E402
from leadline.kernels.keyscan import triton as keyscan  # noqa: E402
from leadline.kernels.nibbles import triton as nibbles  # noqa: E402
from leadline.kernels.planes import triton as planes  # noqa: E402
from leadline.kernels.rows import triton as rows  # noqa: E402
from leadline.kernels.scan import triton as scan  # noqa: E402
from leadline.kernels.slots import triton as slots  # noqa: E402
from leadline.kernels.topk import triton as topk  # noqa: E402
from leadline.kernels.waterfill import triton as waterfill  # noqa: E402

__all__ = [
    "DEVICE",
    "LONG",
    "REHEARSAL",
    "SMALL",
    "Report",
    "attention",
    "entries",
    "gather",
    "keyscan",
    "nibbles",
    "normal",
    "pinned",
    "planes",
    "poison",
    "rows",
    "scan",
    "slots",
    "topk",
    "waterfill",
]

DEVICE = torch.device("cpu" if REHEARSAL else "cuda")
LONG = 4096 if SMALL else 1 << 20  # tokens


@dataclass
class Report:
    """Outcomes of named checks; a check that raises has failed."""

    failed: int = 0
    passed: int = 0

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Run the body as one check and print its outcome."""
        try:
            yield
            if not REHEARSAL:
                torch.cuda.synchronize()
        except Exception as error:
            self.failed += 1
            print(f"FAIL  {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            self.passed += 1
            print(f"ok    {name}", flush=True)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal deviates on the device."""
    generator = torch.Generator(DEVICE).manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, device=DEVICE, dtype=dtype)


def pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned host memory."""
    if REHEARSAL:
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor)


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of NaN, or of -1, on the device."""
    return torch.full(shape, torch.nan if dtype.is_floating_point else -1, dtype=dtype, device=DEVICE)
