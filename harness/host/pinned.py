"""Pinned host memory of exactly the size asked for.

PyTorch's own pinned allocator rounds up to powers of two, so 33 GiB become 64. Here a tensor lies over an anonymous
mapping that is registered with CUDA, in huge pages where the kernel grants them (registering is several times faster),
and is given back when the last tensor over it dies. The GPU reads and writes it in place.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline.errors import MachineError, explain
from leadline.host.memory import OVERRIDE, available_bytes

RESERVE = 1 << 30  # bytes left to everything else on the machine
_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped
_GIB = 1 << 30

_lock = threading.Lock()
_held: Counter[str] = Counter()


def pinned_empty(shape: Sequence[int], dtype: torch.dtype, purpose: str = "buffers") -> Tensor:
    """A zeroed contiguous tensor in pinned host memory that every GPU can address.

    `purpose` is what `pinned_bytes` and errors list it under. Raises MachineError, before anything is allocated, where
    there is no CUDA or the memory would not be enough.
    """
    size = math.prod(shape) * dtype.itemsize
    if not torch.cuda.is_available():
        raise MachineError(
            explain(
                f"pinned memory for {purpose} needs a GPU",
                found="no CUDA device",
                expected="a CUDA device",
                do="use placement device, or run on a machine with a GPU",
            )
        )
    if size == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    check_room(size, purpose)
    host = _mapping(size, purpose)
    _register(host, size, purpose)
    return torch.from_numpy(host).view(dtype).view(tuple(shape))


def pinned_bytes() -> dict[str, int]:
    """Bytes pinned now, by purpose."""
    with _lock:
        return dict(+_held)


def check_room(size: int, purpose: str) -> None:
    """MachineError, with the numbers, where pinning `size` bytes would leave the machine less than 1 GiB."""
    available = available_bytes()
    if size <= available - RESERVE:
        return
    held = ", ".join(f"{name} {count / _GIB:.2f} GiB" for name, count in pinned_bytes().items()) or "nothing"
    raise MachineError(
        explain(
            f"not enough host memory for {purpose}",
            found=f"{size / _GIB:.2f} GiB asked for, {available / _GIB:.2f} GiB available; pinned so far: {held}",
            expected=f"the memory asked for and {RESERVE / _GIB:.0f} GiB for the rest of the machine",
            do="lower --max-context, choose fewer scanners with stores of their own, or put parts into GPU memory with "
            f"another placement; where the machine's memory grows as it is used, say how far with {OVERRIDE}",
        )
    )


def _mapping(size: int, purpose: str) -> Any:
    """An anonymous private mapping as a numpy array `[size]` of bytes, which keeps the mapping alive."""
    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MachineError(
            explain(f"the system gave no memory for {purpose}", found=f"{error} ({size / _GIB:.2f} GiB asked for)")
        ) from error
    with suppress(OSError):  # a kernel without transparent huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, dtype=np.uint8, count=size)


def _register(host: Any, size: int, purpose: str) -> None:
    address = int(host.ctypes.data)
    runtime: Any = torch.cuda.cudart()
    status = int(runtime.cudaHostRegister(address, size, _PORTABLE_AND_MAPPED))
    if status != 0:
        raise MachineError(
            explain(
                f"CUDA could not pin the memory for {purpose}",
                found=f"{runtime.cudaGetErrorString(runtime.cudaError(status))} ({size / _GIB:.2f} GiB asked for)",
                do="lower --max-context, or put parts into GPU memory with another placement",
            )
        )
    with _lock:
        _held[purpose] += size
    # Weak references to an array die before what it stands on: the memory is unregistered while it is still mapped.
    # At exit the process's memory goes anyway, and kernels may still be reading it.
    weakref.finalize(host, _release, address, size, purpose).atexit = False


def _release(address: int, size: int, purpose: str) -> None:
    """Unregister, when no kernel that was given the memory can still be running."""
    torch.cuda.synchronize()
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(address)
    with _lock:
        _held[purpose] -= size
