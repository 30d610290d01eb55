"""Synthetic runs for tests: a results database built through `Results` from records with known figures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leadline.config import RunSpec
from leadline.database import Results
from leadline.records import (
    BranchPointRecord,
    BranchRecord,
    Environment,
    Exclusion,
    ModelRecord,
    ScannerRecord,
    SessionRecord,
    StepCost,
    StepResult,
    TeacherForced,
)

LABELS = ("exact", "dense", "exact:prefill=384", "fathom:budget=48", "sparq:r=16")
ROLES = {"exact": "reference", "dense": "dense", "exact:prefill=384": "noise-floor"}
BITS = {"exact": 1024.0, "dense": 0.0, "exact:prefill=384": 1024.0, "fathom:budget=48": 28.5, "sparq:r=16": 34.0}
Agreement = Callable[[str, int, int], float]


def sha(text: str) -> str:
    """A stable 64-digit hash for a synthetic object."""
    return hashlib.sha256(text.encode()).hexdigest()


def spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {"sessions": ("sessions/",), "scanners": LABELS, "k": 128, "max_new_tokens": 64}
    return RunSpec.model_validate(values | changes)


def model(**changes: Any) -> ModelRecord:
    values: dict[str, Any] = {
        "id": "tiny-llama",
        "weights_sha256": sha("weights"),
        "architecture": "LlamaForCausalLM",
        "layers": 4,
        "scanned_layers": (0, 1, 2, 3),
        "query_heads": 6,
        "kv_heads": 3,
        "head_dim": 64,
        "dtype": "float32",
        "device": "cpu",
        "rope": None,
        "template_sha256": sha("template"),
        "template_traits": {"tools": False},
    }
    return ModelRecord.model_validate(values | changes)


def environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {
        "leadline": "0.1.0",
        "git_commit": "c0ffee",
        "git_dirty": False,
        "python": "3.11.7",
        "packages": {"torch": "2.13.0"},
        "platform": "Linux",
        "cpu": "a test CPU",
        "cpu_threads": 2,
        "memory_bytes": 8 << 30,
    }
    return Environment.model_validate(values | changes)


def scanner(label: str, **changes: Any) -> ScannerRecord:
    values: dict[str, Any] = {
        "sha256": sha(f"scanner {label}"),
        "label": label,
        "name": label.split(":")[0],
        "config": {"label": label},
        "calibration_sha256": None,
        "prefill_chunk": 384 if "prefill" in label else None,
        "role": ROLES.get(label, "scanner"),
    }
    return ScannerRecord.model_validate(values | changes)


def session(index: int, source: str | None = None, **changes: Any) -> SessionRecord:
    values: dict[str, Any] = {
        "sha256": sha(f"session {index}"),
        "id": f"session-{index}",
        "format": "chat-openai-tools",
        "path": f"sessions/session-{index}.json",
        "source": source if source is not None else f"repository-{index}",
        "view": "condensed",
        "steps": 12,
        "segments": 1,
        "notes": (("info", "message 3", "an image was replaced by a marker"),),
        "tools_rendered": True,
    }
    return SessionRecord.model_validate(values | changes)


def point(step: int, **changes: Any) -> BranchPointRecord:
    values: dict[str, Any] = {
        "step": step,
        "segment": 0,
        "prompt_tokens": 2000 + step,
        "prompt_sha256": sha(f"prompt {step}"),
        "prefill_from": 0,
        "recorded_tokens": (1, 2, 3),
        "recorded_text": f"recorded step {step}",
        "prompt_tail": "the end of the prompt",
    }
    return BranchPointRecord.model_validate(values | changes)


def forced(text: str, kl: float) -> TeacherForced:
    return TeacherForced.model_validate(
        {
            "text": text,
            "tokens": 2,
            "kl_dense": kl,
            "kl_exact": kl / 2,
            "top1_dense": 1 - kl,
            "top1_exact": 1 - kl / 2,
            "nll": 1.5 + kl,
            "extra_nats": kl,
            "kl_dense_by_token": (kl, kl),
            "kl_exact_by_token": (kl / 2, kl / 2),
        }
    )


def branch(session_sha256: str, step: int, label: str, agreement: float = 1.0, **changes: Any) -> BranchRecord:
    """A branch whose figures follow from its agreement: KL is (1 - agreement) / 10, divergence at 64 * agreement."""
    same = agreement == 1.0
    kl = (1 - agreement) / 10
    result: dict[str, Any] = {
        "tokens": (5, 6, 7),
        "margins": (0.5, 0.25, 1.0),
        "text": f"{label} continues step {step}",
        "stopped": False,
        "agreement": agreement,
        "word_prefix_agreement": agreement,
        "word_positional_agreement": agreement,
        "token_agreement": agreement,
        "exact_match": same,
        "first_divergence": None if same else int(64 * agreement),
        "divergence_margin": None if same else 0.25,
        "dense_agreement": agreement / 2,
        "recorded_agreement": 0.125,
        "action_name_agreement": True,
        "action_agreement": same,
        "recorded_action_name_agreement": None,
        "recorded_action_agreement": None,
        "empty": False,
        "repeating": False,
        "teacher_forced": (forced("reference", kl), forced("recorded", kl * 2)),
    }
    bits = BITS.get(label, 50.0)
    cost: dict[str, Any] = {
        "decode_steps": 64,
        "context_tokens": 2000 + step,
        "block_tokens": 1984,
        "bits_per_token": bits,
        "code_bits": bits * 0.8,
        "active_channels": 16.0,
        "scan_planned_bytes": 64 * 1_000_000,
        "scan_realised_bytes": 64 * 1_000_000,
        "scan_sector_bytes": 64 * 1_100_000,
        "row_bytes": 64 * 2_000_000,
        "union_rows": 200.0,
        "tail_bytes": 64 * 1000,
        "index_bytes": 3_000_000,
        "index_build_seconds": 0.5,
        "layer_bits": (bits,) * 4,
        "wall_ms": 100.0,
        "cpu_seconds": 12.8,
        "timer": "none",
    }
    result |= {key: value for key, value in changes.items() if key in StepResult.model_fields}
    cost |= {key: value for key, value in changes.items() if key in StepCost.model_fields}
    return BranchRecord.model_validate(
        {
            "session_sha256": session_sha256,
            "step": step,
            "scanner_sha256": sha(f"scanner {label}"),
            "result": result,
            "cost": cost,
        }
    )


def plain_agreement(label: str, index: int, step: int) -> float:
    """Agreements that differ by session and step; `fathom` is 0.25 above `sparq` in all but the first session."""
    if ROLES.get(label) == "reference":
        return 1.0
    base = {"dense": 0.875, "exact:prefill=384": 1.0, "sparq:r=16": 0.5}.get(label, 0.75)
    return base if index else 0.5


def fill(
    path: Path,
    *,
    sessions: Sequence[SessionRecord] | int = 3,
    steps: Sequence[int] = (4, 9),
    labels: Sequence[str] = LABELS,
    agreement: Agreement = plain_agreement,
    changes: Callable[[str, int, int], dict[str, Any]] = lambda label, index, step: {},
    point_changes: dict[str, Any] | None = None,
    exclusions: Sequence[Exclusion] = (),
    finish: bool = True,
    run_spec: RunSpec | None = None,
    run_environment: Environment | None = None,
    run_model: ModelRecord | None = None,
    command: str = "leadline replay sessions/",
    fused: Sequence[str] = (),
) -> int:
    """Write one run to the database at `path` (made where missing) and return its id; `fused` labels have kernels."""
    records = [session(index) for index in range(sessions)] if isinstance(sessions, int) else sessions
    with Results.open(path, create=True) as results:
        run = results.start_run(
            run_spec or spec(scanners=tuple(labels)), run_model or model(), run_environment or environment(), command
        )
        results.add_exclusions(run, exclusions)
        for label in labels:
            results.add_scanner(run, scanner(label, fused=label in fused))
        for index, record in enumerate(records):
            results.add_session(run, record)
            results.set_dense_perplexity(run, record.sha256, 4.0 + index)
            for step in steps:
                results.add_branch_point(run, record.sha256, point(step, **(point_changes or {})))
                for label in labels:
                    extra = changes(label, index, step)
                    results.save(run, branch(record.sha256, step, label, agreement(label, index, step), **extra))
        if finish:
            results.finish(run)
    return run
