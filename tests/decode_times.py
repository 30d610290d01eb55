"""Timed decode steps with known figures, for what stores, compares and prints them."""

from __future__ import annotations

from typing import Any

from leadline.bench.records import DecodeTime
from leadline.meter_figures import StepTime
from reports import factory

# label -> (bits, GPU ms); 1M tokens
STEPS = {
    "fathom:budget=48": (56.0, 50.0),
    "fathom:budget=40": (47.0, 40.0),
    "sparq:r=16": (68.0, 60.0),
    "sparq:r=32": (136.0, 100.0),
    "landmarks": (256.0, 175.0),
    "thumbnail": (288.0, 200.0),
}


def step_time(gpu_ms: float = 50.0, **changes: Any) -> StepTime:
    """A step whose scan takes all but 10 ms, wall-clock 2 ms above."""
    values: dict[str, Any] = {
        "gpu_ms": gpu_ms,
        "gpu_iqr_ms": 0.25,
        "stage_ms": {"plan": 0.5, "scan (fused)": gpu_ms - 10.0, "top-k": 2.0, "rows": 3.0, "attention": 1.0,
                     "GEMM": 3.0, "other": 0.5},
        "event_ms": gpu_ms + 1.0,
        "event_iqr_ms": 0.5,
        "wall_ms": gpu_ms + 2.0,
        "wall_iqr_ms": 0.75,
        "steps": 10,
        "timer": "cupti",
        "kernels": 900,
        "uneven": False,
        "streams": 1,
    }  # fmt: skip
    return StepTime.model_validate(values | changes)


def decode_time(label: str = "fathom:budget=48", context: int = 1 << 20, **changes: Any) -> DecodeTime:
    """A step of `STEPS` at a context; `time` may be given as one of `step_time`."""
    bits, gpu_ms = STEPS.get(label, (100.0, 80.0))
    tokens = (context - 1) // 64 * 64
    planned = bits / 8 * tokens * 36 * 8
    values: dict[str, Any] = {
        "shape": "qwen3-8b",
        "context": context,
        "batch": 1,
        "placement": "host",
        "transfer": "fused",
        "k": 512,
        "seed": 0,
        "scanner_sha256": factory.sha(f"scanner {label}"),
        "label": label,
        "name": label.split(":")[0],
        "config": {"version": 1},
        "calibration_sha256": None,
        "layers": 36,
        "block_tokens": tokens,
        "capacity": tokens,
        "weight_bytes": 15 * 10**9,
        "index_bytes": 2 * 10**10,
        "distinct_rows_layers": 8,
        "distinct_index_layers": 36,
        "moved": {
            "scan_planned_bytes": planned,
            "scan_counted_bytes": planned,
            "row_bytes": 2e8,
            "union_rows": 1356.5,
            "bits_per_token": bits,
        },
        "time": step_time(gpu_ms),
        "link_before_gb_per_second": 55.0,
        "link_after_gb_per_second": 56.0,
        "scan_gb_per_second": planned / (gpu_ms - 10) / 1e6,
        "scan_link_share": 0.92,
        "row_gb_per_second": 66.7,
    }
    return DecodeTime.model_validate(values | changes)
