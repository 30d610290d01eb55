"""Host memory: what is available, and pinned tensors of exact size (with a stand-in for CUDA's registration)."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from leadline.errors import MachineError, UsageError
from leadline.host import pinned
from leadline.host.memory import OVERRIDE, available_bytes, resident_bytes

GIB = 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")


def machine(root: Path, total: int, available: int, present: int | None = None, groups: str = "") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:  {total >> 10} kB\nMemFree: 1 kB\nMemAvailable:  {available >> 10} kB\n"
    )
    (root / "proc/self/cgroup").write_text(groups)
    if present is not None:
        zone = f"Node 0, zone   Normal\n        present  {present // PAGE}\n        managed  {total // PAGE}\n"
        (root / "proc/zoneinfo").write_text(zone)
    return root


def group(folder: Path, limit: object, usage: int, names: tuple[str, str], cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


SECOND = ("memory.max", "memory.current")
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_the_kernels_estimate_is_taken_where_nothing_limits_it(tmp_path: Path) -> None:
    assert available_bytes(machine(tmp_path, 64 * GIB, 40 * GIB)) == 40 * GIB
    assert available_bytes(machine(tmp_path / "zones", 64 * GIB, 40 * GIB, present=66 * GIB)) == 40 * GIB


def test_what_a_balloon_holds_counts(tmp_path: Path) -> None:
    found = available_bytes(machine(tmp_path, 32 * GIB, 30 * GIB, present=256 * GIB))
    assert 230 * GIB < found < 256 * GIB


def test_every_control_group_on_the_way_up_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, 64 * GIB, 40 * GIB, groups="0::/slice/job\n")
    group(root / "sys/fs/cgroup/slice/job", "max", 2 * GIB, SECOND)
    assert available_bytes(root) == 40 * GIB
    group(root / "sys/fs/cgroup/slice", 8 * GIB, 5 * GIB, SECOND, cached=GIB)
    assert available_bytes(root) == 4 * GIB
    group(root / "sys/fs/cgroup", 3 * GIB, 2 * GIB, SECOND)
    assert available_bytes(root) == GIB


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    root = machine(tmp_path, 64 * GIB, 40 * GIB, groups="4:memory:/job\n1:cpu:/\n0::/\n")
    group(root / "sys/fs/cgroup/memory/job", 9223372036854771712, GIB, FIRST)
    assert available_bytes(root) == 40 * GIB
    group(root / "sys/fs/cgroup/memory", 6 * GIB, 4 * GIB, FIRST)
    assert available_bytes(root) == 2 * GIB


def test_the_variable_replaces_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, 64 * GIB, 40 * GIB)
    monkeypatch.setenv(OVERRIDE, "100.5")
    assert available_bytes(root) == 100 * GIB + GIB // 2 - 24 * GIB
    monkeypatch.setenv(OVERRIDE, "10")
    assert available_bytes(root) == 0
    monkeypatch.setenv(OVERRIDE, "plenty")
    with pytest.raises(UsageError, match=OVERRIDE):
        available_bytes(root)


def test_this_machine_can_be_asked() -> None:
    assert available_bytes() > 0
    assert resident_bytes() > 50 << 20  # torch is loaded


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_nothing_is_pinned() -> None:
    with pytest.raises(MachineError, match="needs a GPU"):
        pinned.pinned_empty((4,), torch.int64, "rows")


class Runtime:
    """In place of CUDA's runtime: keeps a list of what is registered."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.registered, self.waited = status, {}, 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert flags == 3
        if self.status == 0:
            self.registered[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        with open("/proc/self/maps", encoding="utf-8") as maps:
            spans = [tuple(int(edge, 16) for edge in line.split()[0].split("-")) for line in maps]
        assert any(low <= address < high for low, high in spans), "unregistered after it was unmapped"
        del self.registered[address]
        return 0

    cudaError = int  # noqa: N815

    def cudaGetErrorString(self, status: int) -> str:  # noqa: N802
        return f"error {status}"


def stand_in(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    def waited() -> None:
        runtime.waited += 1

    monkeypatch.setattr(
        pinned.torch, "cuda", SimpleNamespace(is_available=lambda: True, cudart=lambda: runtime, synchronize=waited)
    )


def test_a_tensor_is_registered_at_its_exact_size_until_its_last_view_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    stand_in(monkeypatch, runtime)
    tensor = pinned.pinned_empty((3, 5, 7), torch.bfloat16, "rows")
    assert tensor.shape == (3, 5, 7)
    assert tensor.is_contiguous()
    assert bool((tensor == 0).all())
    assert runtime.registered == {tensor.data_ptr(): 210}
    assert pinned.pinned_bytes() == {"rows": 210}
    view = tensor[1:, 2]
    tensor.fill_(2.0)
    del tensor
    gc.collect()
    assert runtime.registered
    assert float(view.sum()) == 2 * 14
    del view
    gc.collect()
    assert runtime.registered == {}
    assert runtime.waited == 1
    assert pinned.pinned_bytes() == {}


def test_memory_is_taken_exactly_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Runtime())
    size = (160 << 20) + 12345  # PyTorch's pinned allocator would take 256 MiB
    before = resident_bytes()
    tensor = pinned.pinned_empty((size,), torch.uint8, "buffers").fill_(1)
    grown = resident_bytes() - before
    assert 0.95 * size < grown <= 1.02 * size
    del tensor
    gc.collect()
    assert resident_bytes() - before < 0.1 * size


def test_an_empty_tensor_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    stand_in(monkeypatch, runtime)
    assert pinned.pinned_empty((0, 4), torch.int64).shape == (0, 4)
    assert runtime.registered == {}


def test_a_refusal_gives_the_numbers_and_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    stand_in(monkeypatch, runtime)
    kept = pinned.pinned_empty((1 << 20,), torch.uint8, "rows")
    monkeypatch.setattr(pinned, "available_bytes", lambda: 5 * GIB)
    monkeypatch.setattr(pinned, "_mapping", None)  # never reached
    with pytest.raises(MachineError, match=r"4\.50 GiB asked for, 5\.00 GiB available; pinned so far: rows 0\.00 GiB"):
        pinned.pinned_empty((9 * GIB // 16,), torch.int64, "index")
    assert list(runtime.registered.values()) == [kept.nbytes]


def test_cudas_refusal_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(status=2)
    stand_in(monkeypatch, runtime)
    with pytest.raises(MachineError, match="error 2"):
        pinned.pinned_empty((4,), torch.int64, "index")
    assert pinned.pinned_bytes() == {}
