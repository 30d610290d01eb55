"""The meter: grouping of made-up profiler events, stages against the kernels that exist, its fall-back on a CPU."""

from __future__ import annotations

import ast
import os
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from leadline import kernels, meter
from leadline.errors import MachineError
from leadline.meter_figures import StepTime, TimedStep, spread, stages, summarise
from leadline.meter_stages import FOLDERS, STAGES, stage_of
from leadline.meter_windows import WINDOW, Activity, by_window

MS = 1_000_000


def event(name: str, kind: str, start: float, ms: float, correlation: int = 0, stream: int = 7) -> Activity:
    """An activity at `start` ms for `ms`."""
    return Activity(name, kind, int(start * MS), int(ms * MS), correlation, stream)


def window(place: int, start: float, end: float) -> Activity:
    return event(f"{WINDOW}{place}", "user_annotation", start, end - start)


GRAPH = [event("_fetch_rows", "kernel", 10, 2, 5), event("nvjet_tst_64x8", "kernel", 12, 1, 5)]


def test_the_kernels_of_one_launch_belong_to_the_window_of_the_launch() -> None:
    launches = [event("cudaGraphLaunch", "cuda_runtime", 1, 0.1, 5), event("cudaGraphLaunch", "cuda_driver", 31, 1, 6)]
    # The device's clock runs 40 ms ahead of the host's: only the correlation tells whose these are.
    second = [event("_fetch_rows", "kernel", 70, 3, 6)]
    found = by_window([window(1, 30, 60), *second, *GRAPH, window(0, 0, 20), *launches], 2)
    assert found == [GRAPH, second]


def test_without_a_launch_on_record_time_decides() -> None:
    assert by_window([window(0, 0, 9), window(1, 9.5, 20), *GRAPH], 2) == [[], GRAPH]


def test_side_streams_count_and_preparation_does_not() -> None:
    side = event("_fetch_rows", "kernel", 3, 1, 8, stream=20)
    before = event("fill", "kernel", 1, 1, 7)  # launched before the window, and running into it
    launches = [event("cudaLaunchKernel", "cuda_runtime", at, 0.1, which) for at, which in ((0.5, 7), (2.5, 8))]
    found = by_window([window(0, 2, 6), side, before, *launches], 1)
    assert found == [[side]]


def test_only_what_the_device_did_is_summed() -> None:
    others = [
        event(f"{WINDOW}0", "gpu_user_annotation", 1, 50, 5),
        event("Context Sync", "cuda_sync", 1, 50, 5),
        event("aten::mm", "cpu_op", 1, 50, 5),
        event("Lazy Function Loading", "overhead", 1, 50),
        event("cudaDeviceSynchronize", "cuda_runtime", 2, 50, 9),
    ]
    copies = [event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 3, 4, 6), event("Memset", "gpu_memset", 7, 1, 6)]
    launch = event("cudaMemcpyAsync", "cuda_runtime", 2, 0.1, 6)
    # An operator of the CPU counts its own correlations: 6 here is not the copy's.
    confusing = event("aten::add", "cpu_op", 90, 1, 6)
    assert by_window([window(0, 0, 60), *others, *copies, launch, confusing], 1) == [copies]


def test_lost_windows_are_an_error() -> None:
    with pytest.raises(MachineError, match="1 of 2 timed steps"):
        by_window([window(1, 0, 1)], 2)


def test_names_have_their_stages() -> None:
    assert stage_of("Memcpy HtoD (Pinned -> Device)") == "transfer"
    assert stage_of("Memcpy DtoH (Device -> Pinned)") == "to host"
    assert {stage_of(name) for name in ("Memcpy DtoD (Device -> Device)", "Memset (Device)", "_unheard_of")} == {
        "other"
    }
    products = (
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_tn_align8>(...)",
        "void gemvNSP_kernel<__nv_bfloat16, float>(...)",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>(...)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(...)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
        "void dot_kernel<float, 128, 0>(...)",
    )
    assert {stage_of(name) for name in products} == {"GEMM"}
    assert stage_of("void at::native::vectorized_elementwise_kernel<4, ...>(...)") == "other"
    own = {"_topk_choose": "top-k", "_fetch_rows": "rows", "_attend_rows": "attention", "_stage": "transfer"}
    assert {name: stage_of(name) for name in own} == own


def launches(folder: Path) -> set[str]:
    """The kernels that a folder's triton.py launches: what stands before `[grid](...)`."""
    tree = ast.parse((folder / "triton.py").read_text(encoding="utf-8"))
    jitted = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "jit" for mark in node.decorator_list)
    }
    subscripts = {
        node.func.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and isinstance(node.func.value, ast.Name)
    }
    return jitted & subscripts


def test_every_kernel_launched_has_a_stage_and_a_name_of_its_own() -> None:
    root = Path(next(iter(kernels.__path__)))
    found = {path.parent.name: launches(path.parent) for path in sorted(root.glob("*/triton.py"))}
    assert len(found) >= 10
    assert all(found.values()), "a folder launches nothing that this test can see"
    assert set(found) <= set(FOLDERS), "a folder of kernels has no stage"
    names = sorted(chain.from_iterable(found.values()))
    twice = {name: [folder for folder in found if name in found[folder]] for name in names if names.count(name) > 1}
    assert twice == {}
    if os.environ.get("TRITON_INTERPRET") != "1":
        wrong = {name: folder for folder in found for name in found[folder] if stage_of(name) != FOLDERS[folder]}
        assert wrong == {}


@pytest.mark.parametrize(
    ("name", "device", "annotation", "kind"),
    [
        (f"{WINDOW}3", "CPU", True, "user_annotation"),
        (f"{WINDOW}3", "CUDA", True, "gpu_user_annotation"),
        ("_fetch_rows", "CUDA", False, "kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "CUDA", False, "gpu_memcpy"),
        ("Memset (Device)", "CUDA", False, "gpu_memset"),
        ("cudaGraphLaunch", "CPU", False, "cuda_runtime"),
        ("cuLaunchKernelEx", "CPU", False, "cuda_runtime"),
        ("aten::cumsum", "CPU", False, "cpu_op"),
        ("cumsum", "CPU", False, "cpu_op"),
    ],
)
def test_kinds_are_told_where_torch_does_not_name_them(name: str, device: str, annotation: bool, kind: str) -> None:
    old = SimpleNamespace(
        name=lambda: name, device_type=lambda: SimpleNamespace(name=device), is_user_annotation=lambda: annotation
    )
    assert meter._kind(old) == kind
    assert meter._kind(SimpleNamespace(**vars(old), activity_type=lambda: "as torch says")) == "as torch says"


def test_kinds_agree_with_what_torch_names() -> None:
    """On events of a real profile, by the way of a torch that does not name them."""
    watched = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with watched as profiler, torch.profiler.record_function(f"{WINDOW}0"):
        torch.ones(2).add_(1)
    events = profiler.profiler.kineto_results.events()
    if not hasattr(events[0], "activity_type"):
        pytest.skip("this torch names no kinds, so there is nothing to agree with")
    for each in events:
        nameless = SimpleNamespace(
            name=each.name, device_type=each.device_type, is_user_annotation=each.is_user_annotation
        )
        assert meter._kind(nameless) == each.activity_type(), each.name()


def test_stages_are_summed_and_a_fused_scan_is_named_so() -> None:
    launched = (*GRAPH, event("_scan_nibbles", "kernel", 20, 4), event("_fetch_rows", "kernel", 30, 3))
    assert stages(launched, fused=False) == {"scan": 4.0, "rows": 5.0, "GEMM": 1.0}
    assert list(stages(launched, fused=True)) == ["scan (fused)", "rows", "GEMM"]
    assert list(stages(launched, fused=True)) == [s for s in STAGES if s in {"scan (fused)", "rows", "GEMM"}]


def test_medians_ranges_and_counts() -> None:
    def step(wall: float, gpu: float, extra: int = 0, stream: int = 7) -> TimedStep:
        more = [event("_topk_choose", "kernel", 9, 1, stream=stream)] * extra
        return TimedStep(wall, wall - 0.5, (event("_fetch_rows", "kernel", 1, gpu), *more))

    time = summarise([step(10, 4), step(12, 6), step(20, 5, extra=1, stream=9)], fused=False)
    assert (time.gpu_ms, time.event_ms, time.wall_ms, time.steps) == (6.0, 11.5, 12.0, 3)
    assert (time.gpu_iqr_ms, time.wall_iqr_ms) == (1.0, 5.0)
    assert time.stage_ms == {"top-k": 0.0, "rows": 5.0}
    assert (time.timer, time.kernels, time.uneven, time.streams) == ("cupti", 1, True, 2)
    assert StepTime.model_validate_json(time.model_dump_json()) == time
    assert spread([3.0]) == 0.0


def test_a_refused_profiler_leaves_the_events_and_says_so() -> None:
    time = summarise([TimedStep(10, 9, None), TimedStep(11, 8, None)], fused=True)
    assert (time.timer, time.gpu_ms, time.stage_ms, time.kernels, time.streams) == ("events", 8.5, None, None, None)


def test_steps_are_interleaved() -> None:
    assert list(meter.schedule(["a", "b"], 3)) == ["a", "b", "a", "b", "a", "b"]


def test_the_profiler_sees_every_window_and_no_device_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real profiler, told to watch a GPU that is not there: every step runs in its turn and none has GPU time."""
    if torch.cuda.is_available():  # its own test there is tests/gpu/check_meter.py
        pytest.skip("there is a CUDA device here")
    kinds = torch.profiler.ProfilerActivity
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {kinds.CPU, kinds.CUDA})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ran: list[str] = []
    windows = meter._under_the_profiler(
        {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 2, lambda name: ran.append(f"reset {name}")
    )
    assert windows is None
    assert ran == ["reset a", "a", "reset b", "b"] * 3

    def broken() -> None:
        raise RuntimeError("the step's own fault")

    with pytest.raises(RuntimeError, match="own fault"):
        meter._under_the_profiler({"a": broken}, 1, lambda _: None)


def test_measuring_needs_a_gpu_and_rounds() -> None:
    with pytest.raises(ValueError, match="0 rounds"):
        meter.measure({"a": lambda: None}, 0)
    if not torch.cuda.is_available():
        assert meter.prime() == "events"
        with pytest.raises(MachineError, match="no CUDA device"):
            meter.measure({"a": lambda: None})
