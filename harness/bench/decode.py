"""Times the decode step of every scanner at every context: contents made once, scanners interleaved, bytes checked.

The link's copy rate is taken before and after each context's steps, in the same process, so that a scan's rate and the
copy it is compared with saw the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from leadline.bench.comparing import BASELINE
from leadline.bench.contenders import Step, check_kernels, contending
from leadline.bench.contents import Contents
from leadline.bench.filling import (
    Filled,
    choose_distinct,
    fill,
    layer_bytes,
    room_for,
    stored_scanners,
)
from leadline.bench.link import copy_rate
from leadline.bench.records import DecodeSpec, DecodeTime, Moved, rate
from leadline.bench.shapes import find
from leadline.bench.weights import random_network
from leadline.config import RunSpec
from leadline.contenders import Contender, contenders
from leadline.errors import MachineError, UsageError, explain
from leadline.graph.network import DecodeNetwork
from leadline.host.placement import Placement
from leadline.kernels.planes import BLOCK
from leadline.meter import measure, prime
from leadline.meter_figures import StepTime
from leadline.registry import create

DEFAULT = (
    BASELINE, "fathom:budget=40", "fathom:budget=64", "fathom:budget=80", "sparq:r=16", "sparq:r=32", "loki:r=32",
    "double_sparsity:channels=32", "thumbnail", "landmarks",
)  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """Everything that stays from context to context."""

    spec: DecodeSpec
    network: DecodeNetwork
    filled: Filled
    found: Sequence[Contender]

    @property
    def device(self) -> torch.device:
        """Where steps run."""
        return self.network.device

    def steps(self, context: int) -> Sequence[Step]:
        """The steps of all scanners at one context."""
        return contending(self.found, self.network, self.filled, self.spec, context)


def completed(spec: DecodeSpec) -> DecodeSpec:
    """The spec with its scanners named. UsageError for a k or a context that leave no choice, an unknown scanner."""
    if spec.k <= spec.sink + spec.local:
        raise UsageError(
            explain(
                "this k leaves nothing to select by score",
                field="k",
                found=spec.k,
                expected=f"more than {spec.sink} sinks and {spec.local} local tokens",
            )
        )
    least = spec.k + 2 * BLOCK
    for context in spec.contexts:
        if context < least:
            raise UsageError(
                explain(
                    "a step at this context selects every token",
                    field="context",
                    found=context,
                    expected=f"at least {least} tokens at k = {spec.k}",
                    do="lengthen --context or lower --k",
                )
            )
    default: tuple[str, ...] = (*DEFAULT, "dense") if spec.placement == "device" else DEFAULT
    if spec.transfer == "staged":
        default = tuple(name for name in default if name not in ("landmarks", "dense"))
    chosen = spec.scanners or default
    if spec.placement != "device" and any(create(text).kind == "dense" for text in chosen):
        raise UsageError(
            explain(
                "dense attention over rows in host memory would move every row at every step",
                field="scanner",
                found="dense",
                do="leave it out, or use --placement device",
            )
        )
    return spec.model_copy(update={"scanners": tuple(dict.fromkeys(create(text).label for text in chosen))})


def build(spec: DecodeSpec, device: torch.device, say: Callable[[str], None] = lambda _: None) -> Stage:
    """Weights, rows and indexes for a completed spec. MachineError where memory does not hold them."""
    shape, placement = find(spec.shape), Placement.parse(spec.placement)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    capacity = (max(spec.contexts) - 1) // BLOCK * BLOCK
    probe = Contents(shape, spec.batch, spec.seed, 1, device, dtype)
    wanted = RunSpec(sessions=("synthetic",), scanners=spec.scanners, baseline=spec.scanners[0], noise_chunk=0)
    every = {contender.record.label: contender for contender in contenders(wanted, probe.sha256)}
    found = [every[label] for label in spec.scanners]
    check_kernels(found, spec)
    scanners = [contender.scanner for contender in found]
    say(f"weights of {shape.name}")
    network = random_network(shape, device, dtype, spec.seed)
    room = room_for(placement, device)
    distinct = choose_distinct(
        shape.layers,
        spec.distinct,
        spec.batch * shape.row_bytes(dtype.itemsize) * capacity,
        layer_bytes(stored_scanners(scanners, probe), probe, capacity),
        room["rows"],
        room["index"],
        shared=placement.rows == placement.index,
    )
    say(f"contents of {capacity} tokens: rows of {distinct.rows} layers, indexes of {distinct.index}")
    contents = Contents(shape, spec.batch, spec.seed, distinct.rows, device, dtype)
    filled = fill(contents, distinct, stored_scanners(scanners, contents), capacity, placement)
    return Stage(spec, network, filled, found)


def require_gpu() -> torch.device:
    """The GPU that steps are timed on. MachineError where there is none."""
    if not torch.cuda.is_available():
        raise MachineError(
            explain(
                "a decode step is timed on a GPU",
                found="no CUDA device",
                expected="an NVIDIA GPU with the driver for torch's CUDA",
                do="run `leadline bench decode` on such a machine; `leadline env` says what this one has",
            )
        )
    return torch.device("cuda", torch.cuda.current_device())


def run(spec: DecodeSpec, say: Callable[[str], None] = lambda _: None) -> Iterator[list[DecodeTime]]:
    """The times of every context of a completed spec, context by context. MachineError without a GPU or enough memory,
    LeadlineError where a kernel read other bytes than planned.
    """
    device = require_gpu()
    prime()
    stage = build(spec, device, say)
    for context in spec.contexts:
        say(f"{context} tokens: capturing {len(stage.found)} steps")
        yield timed(stage, context, say=say)
        torch.cuda.empty_cache()


def timed(
    stage: Stage,
    context: int,
    *,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[..., Mapping[str, StepTime]] = measure,
    link: Callable[[torch.device], float] = copy_rate,
) -> list[DecodeTime]:
    """One context: bytes counted and checked, then all steps timed, A B A B, between two measurements of the link."""
    spec, steps = stage.spec, {step.record.label: step for step in stage.steps(context)}
    moved = {label: step.count() for label, step in steps.items()}
    say(f"{context} tokens: timing {spec.steps} steps of each")
    over_link = spec.placement == "host" and spec.transfer == "fused"
    before = link(stage.device)
    times = clock(
        {label: step.run for label, step in steps.items()},
        spec.steps,
        spec.warmup,
        prepare={label: step.prepare for label, step in steps.items()},
        fused=tuple(steps) if over_link else (),
    )
    after = link(stage.device)
    return [_time(stage, context, step, moved[label], times[label], (before, after)) for label, step in steps.items()]


def _time(
    stage: Stage, context: int, step: Step, moved: Moved, time: StepTime, link: tuple[float, float]
) -> DecodeTime:
    spec, filled, record = stage.spec, stage.filled, step.record
    scan = rate(moved.scan_planned_bytes, time, "transfer", "scan", "scan (fused)")
    return DecodeTime(
        shape=spec.shape,
        context=context,
        batch=spec.batch,
        placement=spec.placement,
        transfer=spec.transfer,
        k=spec.k,
        seed=spec.seed,
        scanner_sha256=record.sha256,
        label=record.label,
        name=record.name,
        config=record.config,
        calibration_sha256=record.calibration_sha256,
        layers=filled.contents.shape.layers,
        block_tokens=(context - 1) // BLOCK * BLOCK,
        capacity=filled.capacity,
        weight_bytes=stage.network.nbytes,
        index_bytes=step.index_bytes,
        distinct_rows_layers=filled.distinct.rows,
        distinct_index_layers=filled.distinct.index,
        moved=moved,
        time=time,
        link_before_gb_per_second=link[0],
        link_after_gb_per_second=link[1],
        scan_gb_per_second=scan,
        scan_link_share=scan / (sum(link) / 2) if scan and spec.placement == "host" else None,
        row_gb_per_second=rate(moved.row_bytes, time, "rows"),
    )
