"""The machine and the software a run happens on: versions, commit, CPU, memory, and with CUDA the GPU and its link.

What cannot be known here is None. The link's speed is measured, not looked up: the time of a decode step with keys in
host memory is set by it (SPEC section 8).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leadline import __version__
from leadline.errors import MachineError, explain
from leadline.records import Environment

COPY_BYTES = 256 << 20
COPIES = 5


def capture(device: str) -> Environment:
    """The environment of a run on `device` ("cpu", "cuda", "cuda:1").

    With a CUDA device this takes a pinned 256 MiB copy to it, five times. Raises MachineError where it is not there.
    """
    commit, dirty = _commit()
    return Environment(
        leadline=__version__,
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        packages=_packages(),
        platform=platform.platform(),
        cpu=_cpu(),
        cpu_threads=torch.get_num_threads(),
        memory_bytes=_memory(),
        **(_gpu(torch.device(device)) if device.startswith("cuda") else {}),
    )


def command_line() -> str:
    """This process's command as it was typed, without the folder its program lies in."""
    return shlex.join(["leadline", *sys.argv[1:]])


def default_device() -> str:
    """ "cuda" where torch sees a CUDA device, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _commit() -> tuple[str | None, bool | None]:
    """Commit and dirtiness of leadline's own checkout; where git cannot tell, what LEADLINE_COMMIT says."""
    here = Path(__file__).resolve().parent
    # A wheel lies in site-packages/leadline, perhaps inside somebody else's repository, whose commit says nothing.
    if here.name == "harness" and (here.parent / ".git").exists():
        head = _git(here.parent, "rev-parse", "HEAD")
        if head is not None:
            status = _git(here.parent, "status", "--porcelain")
            return head, None if status is None else bool(status)
    return os.environ.get("LEADLINE_COMMIT") or None, None


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _packages() -> dict[str, str]:
    """Versions of leadline's direct dependencies that are installed."""
    try:
        requirements = importlib.metadata.requires("leadline") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    versions = {}
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        if name is None or "extra ==" in requirement:
            continue
        try:
            versions[name[0]] = importlib.metadata.version(name[0])
        except importlib.metadata.PackageNotFoundError:
            continue
    return dict(sorted(versions.items()))


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's limit where that is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine


def _gpu(device: torch.device) -> dict[str, Any]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        raise MachineError(
            explain("no such CUDA device", found=f"{count} devices", expected=str(device), do="use --device cpu")
        )
    properties = torch.cuda.get_device_properties(index)
    found: dict[str, Any] = {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "link_gb_per_second": _link(torch.device("cuda", index)),
    }
    # After the copies: an idle link and clock are turned down and would be recorded too low.
    return found | _nvml(str(properties.uuid))


def _link(device: torch.device) -> float:
    """Pinned host-to-device copy in GB/s (10^9 bytes): the best of five copies of 256 MiB."""
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    cuda: Any = torch.cuda  # its events carry no types
    best = float("inf")
    with torch.cuda.device(device):
        target.copy_(host, non_blocking=True)
        for _ in range(COPIES):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            start.record()
            target.copy_(host, non_blocking=True)
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end))
    return COPY_BYTES / best / 1e6


def _nvml(uuid: str) -> dict[str, Any]:
    """What only the driver knows of the GPU with this uuid; nothing where NVML is not to be had."""
    pynvml: Any = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        queries: dict[str, Callable[[], Any]] = {
            "driver": lambda: pynvml.nvmlSystemGetDriverVersion(),
            "pcie_generation": lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_width": lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            "gpu_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "numa_node": lambda: _numa_node(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        }
        found: dict[str, Any] = {}
        for field, query in queries.items():
            try:
                found[field] = query()
            except pynvml.NVMLError:
                found[field] = None
        return found
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()


def _numa_node(bus_id: str | bytes) -> int | None:
    """The NUMA node of a PCI device by its NVML bus id ("00000000:17:00.0"), from sysfs."""
    name = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).lower()[-12:]
    try:
        node = int(Path(f"/sys/bus/pci/devices/{name}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
