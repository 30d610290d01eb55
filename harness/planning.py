"""The dry run: what a replay would do, read, keep and take, worked out without loading a weight.

Sessions are found, rendered and chosen from exactly as a replay does it; sizes come from the model's configuration,
bits from the scanners, memory from this machine. `leadline plan` prints it before anything is spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from leadline import plan_costs as costs
from leadline.config import RunSpec
from leadline.contenders import Contender, canonical, contenders
from leadline.environment import capture, default_device
from leadline.errors import UsageError, explain
from leadline.graph.lanes import has_lane
from leadline.host.memory import available_bytes
from leadline.host.pinned import RESERVE
from leadline.host.placement import Placement
from leadline.kernels.planes import BLOCK
from leadline.model import DTYPES, LoadedModel
from leadline.outline import outline, step_weight_bytes, weight_bytes
from leadline.plan_measured import Measured
from leadline.plan_records import MemoryPlan, PointPlan, Rates, RunPlan, ScannerPlan, SessionPlan
from leadline.records import Exclusion
from leadline.replaying import find_calibration
from leadline.sessions.directory import discover
from leadline.sessions.render import Renderer, common_tokens
from leadline.sessions.schema import Session
from leadline.sessions.tables import parse_filters
from leadline.settling import settled
from leadline.workload import SessionWork, capacity, choose

STATED_LINK, STATED_MEMORY = 25.0, 1500.0  # GB/s of a GPU nothing else is known of
STATED_BY_NAME = {"H200": 3900.0, "H100": 2700.0, "A100": 1500.0}  # GB/s of its memory that large reads reach


@dataclass(frozen=True)
class Given:
    """Rates a person gave, and a results database whose measured times stand in for stated ones."""

    link: float | None = None
    memory: float | None = None
    like: Path | None = None


def plan(spec: RunSpec, given: Given | None = None) -> RunPlan:
    """The dry run of `spec`. Raises UsageError for what a replay would refuse before it loads the model, a missing
    calibration included; too little memory is said in the plan (`MemoryPlan.shortages`), not raised.
    """
    given = given or Given()
    spec = canonical(spec)
    calibration = find_calibration(spec)
    spec = settled(spec, calibration)
    parts = contenders(spec, calibration.sha256 if calibration else None)
    device = spec.device or default_device()
    dtype = spec.dtype or ("float32" if device == "cpu" else "bfloat16")
    model = outline(spec.model, dtype=dtype, rope=spec.rope)
    works, exclusions = _choose(spec, Renderer(model.tokenizer))
    setting = costs.Setting(model.shape, DTYPES[dtype], spec.selected, len(spec.dense_layers))
    sessions = tuple(map(_session, works))
    longest = max((p.prompt_tokens for s in sessions for p in s.points), default=0)
    room = max((capacity(work.points, spec.max_new_tokens) for work in works), default=0)
    rates = _rates(device, given)
    placement = Placement.parse(spec.placement)
    points = sum(len(session.points) for session in sessions)
    scanners = tuple(_scanners(parts, setting, model, placement, rates, longest, room, points))
    chunk_sizes = len({part.record.prefill_chunk or spec.prefill_chunk for part in parts})
    on_gpu = device != "cpu"
    seconds, seconds_from = _seconds(spec, given, model, setting, scanners, parts, sessions, rates, chunk_sizes, on_gpu)
    return RunPlan(
        model=model.id,
        dtype=dtype,
        device=device,
        placement=placement.name,
        k=spec.selected,
        max_new_tokens=spec.max_new_tokens,
        layers=model.shape.layers,
        scanned_layers=len(model.shape.scanned_layers),
        kv_heads=model.shape.kv_heads,
        query_heads_per_kv_head=model.shape.groups,
        head_dim=model.shape.head_dim,
        longest_prompt_tokens=longest,
        prefill_tokens=chunk_sizes * sum(p.prefilled_tokens for s in sessions for p in s.points),
        branch_points=points,
        branches=points * len(parts),
        weight_bytes_per_step=step_weight_bytes(model),
        union_rows=setting.union_rows,
        sessions=sessions,
        exclusions=tuple(exclusions),
        scanners=scanners,
        memory=_memory(model, setting, placement, device, room, scanners, chunk_sizes),
        rates=rates,
        seconds=seconds,
        seconds_from=seconds_from,
    )


def _choose(spec: RunSpec, renderer: Renderer) -> tuple[list[SessionWork], list[Exclusion]]:
    """The sessions with branch points, at most `limit` of them, and everything left out."""
    works: list[SessionWork] = []
    exclusions: list[Exclusion] = []
    any_session = False
    for session in _sessions(spec, exclusions):
        any_session = True
        if spec.limit is not None and len(works) >= spec.limit:
            break
        work = choose(session, renderer.render(session), spec)
        exclusions.extend(work.exclusions)
        if work.points:
            works.append(work)
    if not any_session:
        reasons = "; ".join(f"{one.path}: {one.reason}" for one in exclusions[:3]) or "empty"
        raise UsageError(
            explain(
                "no recorded sessions there",
                field="sessions",
                found=f"{', '.join(spec.sessions)} ({reasons})",
                do="run `leadline sessions list` on it to see why each file was left out",
            )
        )
    return works, exclusions


def _sessions(spec: RunSpec, exclusions: list[Exclusion]) -> Iterator[Session]:
    """Every session once; files that gave none are added to `exclusions`."""
    seen: set[str] = set()
    filters = parse_filters(list(spec.filters))
    for path in spec.sessions:
        found = discover(path, view=spec.view, redact=spec.redact, filters=filters)
        exclusions.extend(
            Exclusion(path=str(one.path), session_sha256=None, step=None, reason=one.reason) for one in found.skipped
        )
        for session in found.sessions:
            if session.sha256 not in seen:
                seen.add(session.sha256)
                yield session


def _session(work: SessionWork) -> SessionPlan:
    held = np.empty(0, dtype=np.int32)
    points = []
    for point in work.points:
        wanted = point.prompt_ids[:-1]
        new = len(wanted) - common_tokens(held, wanted)
        recorded = len(point.recorded_ids)
        points.append(
            PointPlan(step=point.step, prompt_tokens=point.n_tokens, prefilled_tokens=new, recorded_tokens=recorded)
        )
        held = wanted
    session = work.session
    return SessionPlan(
        id=session.id, path=session.path, sha256=session.sha256, steps=len(session.steps), points=tuple(points)
    )


def _rates(device: str, given: Given) -> Rates:
    """Link and memory rates: what was given, else what this machine's GPU measures or is stated to reach."""
    if device == "cpu" and given.link is None and given.memory is None:
        return Rates(source="no GPU", link_gb_per_second=None, memory_gb_per_second=None)
    link, memory, said = given.link, given.memory, ["given" if given.link else "", "given" if given.memory else ""]
    if device != "cpu" and torch.cuda.is_available() and (link is None or memory is None):
        found = capture(device)
        if link is None and found.link_gb_per_second is not None:
            link, said[0] = found.link_gb_per_second, "measured now"
        name = next((name for name in STATED_BY_NAME if name in (found.gpu or "")), None)
        if memory is None and name is not None:
            memory, said[1] = STATED_BY_NAME[name], f"stated for {name}"
    source = f"link {said[0] or 'stated'}, GPU memory {said[1] or 'stated'}"
    return Rates(source=source, link_gb_per_second=link or STATED_LINK, memory_gb_per_second=memory or STATED_MEMORY)


def _scanners(
    parts: Sequence[Contender],
    setting: costs.Setting,
    model: LoadedModel,
    placement: Placement,
    rates: Rates,
    longest: int,
    room: int,
    points: int,
) -> Iterator[ScannerPlan]:
    owners: dict[str, str] = {}
    weights = step_weight_bytes(model)
    for part in parts:
        scanner = part.scanner
        bits, bits_from = costs.bits_of(scanner, setting)
        scan, rows = costs.step_bytes(scanner, bits, setting, longest)
        size = costs.store_bytes(scanner, setting, room)
        owner = owners.setdefault(scanner.store, part.record.label) if size else part.record.label
        yield ScannerPlan(
            sha256=part.sha256,
            label=part.record.label,
            role=part.record.role,
            bits_per_token=bits,
            bits_from=bits_from,
            branches=points,
            scan_bytes_per_step=scan,
            row_bytes_per_step=rows,
            bytes_per_step=weights + scan + rows,
            index_bytes=size if owner == part.record.label else 0,
            index_shared_with=None if owner == part.record.label else owner,
            gpu_ms_per_step=_gpu_ms(scanner.reads_rows, scan, rows, weights, placement, rates),
        )


def _gpu_ms(reads_rows: bool, scan: int, rows: int, weights: int, placement: Placement, rates: Rates) -> float | None:
    if rates.link_gb_per_second is None or rates.memory_gb_per_second is None:
        return None
    on_host = placement.rows == "host"
    return costs.gpu_ms(
        scan,
        rows,
        weights,
        link=rates.link_gb_per_second,
        memory=rates.memory_gb_per_second,
        index_on_host=on_host if reads_rows else placement.index == "host",
        rows_on_host=on_host,
    )


def _memory(
    model: LoadedModel,
    setting: costs.Setting,
    placement: Placement,
    device: str,
    room: int,
    scanners: Sequence[ScannerPlan],
    chunk_sizes: int,
) -> MemoryPlan:
    """At the longest session. Each prefill in other chunks (the noise floor's) has rows of its own, but no index."""
    shape = model.shape
    row = 2 * shape.kv_heads * shape.head_dim * setting.element
    weights, rows = weight_bytes(model), chunk_sizes * shape.layers * room * row
    blocks = chunk_sizes * len(shape.scanned_layers) * (room // BLOCK * BLOCK) * row
    index = sum(scanner.index_bytes for scanner in scanners)
    records = blocks if placement.rows == "host" else 0
    on_device = weights + rows + (index if placement.index == "device" else 0)
    on_host = records + (index if placement.index == "host" else 0)
    host = max(0, available_bytes() - RESERVE)
    if device == "cpu":
        device_room: int | None = host
    else:
        device_room = torch.cuda.mem_get_info(torch.device(device))[0] if torch.cuda.is_available() else None
    return MemoryPlan(
        weight_bytes=weights,
        rows_bytes=rows,
        row_store_bytes=records,
        index_bytes=index,
        device_bytes=on_device,
        host_bytes=on_host,
        device_available_bytes=device_room,
        host_available_bytes=host,
    )


def _seconds(
    spec: RunSpec,
    given: Given,
    model: LoadedModel,
    setting: costs.Setting,
    scanners: Sequence[ScannerPlan],
    parts: Sequence[Contender],
    sessions: Sequence[SessionPlan],
    rates: Rates,
    chunk_sizes: int,
    gpu: bool,
) -> tuple[float, str]:
    """Predicted seconds of the run, and what they stand on."""
    points = [point for session in sessions for point in session.points]
    if given.like is not None:
        measured = Measured.of(given.like)
        labels = [scanner.label for scanner in scanners]
        return measured.seconds(labels, points, spec.max_new_tokens), measured.source
    weights, parameters = step_weight_bytes(model), step_weight_bytes(model) // setting.element
    flops = costs.GPU_FLOPS if gpu else costs.CPU_FLOPS_PER_THREAD * torch.get_num_threads()
    seconds = sum(
        chunk_sizes * costs.prefill_seconds(point.prefilled_tokens, point.prompt_tokens, parameters, model.shape, flops)
        for point in points
    )
    placement = Placement.parse(spec.placement)
    for point in points:
        forced = spec.max_new_tokens + min(point.recorded_tokens, spec.max_new_tokens)
        for part, scanner in zip(parts, scanners, strict=True):
            scan, rows = costs.step_bytes(part.scanner, scanner.bits_per_token, setting, point.prompt_tokens)
            found = _gpu_ms(part.scanner.reads_rows, scan, rows, weights, placement, rates) if gpu else None
            step = found if found is not None else costs.cpu_ms(part.scanner, scan, rows, weights, setting)
            per_forced = costs.GPU_FORCED_MS if gpu else costs.CPU_FORCED_SHARE * step
            if gpu and has_lane(part.scanner):
                per_forced = 0.0  # the steps of the branch feed them
            seconds += (spec.max_new_tokens * step + forced * per_forced) / 1000
    return seconds, f"stated rates of a {'GPU' if gpu else 'CPU'}, good to a factor of about 3; --like DB measures"
