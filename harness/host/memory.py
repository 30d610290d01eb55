"""How much host memory this process may still take, before it takes any.

MemAvailable alone is wrong twice: a control group may allow less, and a virtual machine whose memory is ballooned shows
a MemTotal that grows as it is used, so that a machine of 256 GiB may read 31 GiB at first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from leadline.errors import UsageError, explain

OVERRIDE = "LEADLINE_HOST_MEMORY_GIB"
_KERNEL_SHARE = 0.05  # of the present pages, a kernel keeps up to this much for itself and never hands it out
_UNLIMITED = 1 << 60  # version 1 control groups write "no limit" as a huge number
_PAGE = os.sysconf("SC_PAGE_SIZE")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes of host memory that can still be taken: the kernel's estimate plus what a balloon holds back, or what the
    control groups leave, whichever is less. `LEADLINE_HOST_MEMORY_GIB` replaces the machine's total.

    UsageError where that variable is no number. `root` is where /proc and /sys are found.
    """
    info = _meminfo(root)
    used = info["MemTotal"] - info["MemAvailable"]
    stated = os.environ.get(OVERRIDE)
    free = info["MemAvailable"] + _ballooned(root) if stated is None else _gib(stated) - used
    return max(0, min([free, *_group_room(root)]))


def resident_bytes() -> int:
    """Bytes of this process that lie in memory now (VmRSS)."""
    return _kib(Path("/proc/self/status").read_text(encoding="utf-8"), "VmRSS")


def _meminfo(root: Path) -> dict[str, int]:
    text = (root / "proc/meminfo").read_text(encoding="utf-8")
    return {name: _kib(text, name) for name in ("MemTotal", "MemAvailable")}


def _kib(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _ballooned(root: Path) -> int:
    """Bytes the machine has but a balloon holds: pages present in its zones and not handed to the kernel."""
    try:
        text = (root / "proc/zoneinfo").read_text(encoding="utf-8")
    except OSError:
        return 0
    present, managed = (
        sum(map(int, re.findall(rf"^\s+{word}\s+(\d+)", text, re.MULTILINE))) for word in ("present", "managed")
    )
    return max(0, int(present * (1 - _KERNEL_SHARE)) - managed) * _PAGE


def _group_room(root: Path) -> list[int]:
    """What each memory limit of this process's control groups, of both versions, leaves."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        below = Path(path.lstrip("/"))
        for folder in {root / base / part for part in (below, *below.parents)}:
            limit, usage = (_number(folder / name) for name in names)
            if limit is not None and usage is not None and limit < _UNLIMITED:
                rooms.append(limit - usage + _reclaimable(folder))
    return rooms


def _reclaimable(folder: Path) -> int:
    """Cached file pages count as usage, and the kernel drops them before it refuses anything."""
    try:
        text = (folder / "memory.stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"^(?:total_)?inactive_file (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _gib(text: str) -> int:
    try:
        return int(float(text) * (1 << 30))
    except (ValueError, OverflowError):
        raise UsageError(
            explain("the machine's memory cannot be read", field=OVERRIDE, found=repr(text), expected="a number of GiB")
        ) from None
