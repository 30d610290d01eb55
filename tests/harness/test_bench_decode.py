"""The timing of decode steps: steps built and counted for real on a CPU, all around them with a made-up clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
import torch
from decode_times import step_time

from leadline.bench.contenders import CapturedStep
from leadline.bench.decode import DEFAULT, Stage, build, completed, require_gpu, timed
from leadline.bench.filling import Distinct, choose_distinct
from leadline.bench.records import DecodeSpec, DecodeTime
from leadline.errors import LeadlineError, MachineError, UsageError
from leadline.meter_figures import StepTime

CPU = torch.device("cpu")
ALL = (
    *DEFAULT, "exact", "dense", "streaming", "full4", "quest", "fathom:budget=48,basis=rotated",
    "fathom:budget=48,statistics=session", "loki:r=32,precision=fp16",
)  # fmt: skip


def spec(**changes: Any) -> DecodeSpec:
    values: dict[str, Any] = {
        "shape": "tiny",
        "contexts": (700, 1000),
        "placement": "device",
        "k": 64,
        "steps": 2,
        "warmup": 1,
    }
    return completed(DecodeSpec.model_validate(values | changes))


class Clock:
    """Runs every step in its turn like the meter and reports made-up times."""

    def __init__(self) -> None:
        self.fused: tuple[str, ...] = ()
        self.order: list[str] = []

    def __call__(
        self,
        steps: Mapping[str, Callable[[], None]],
        rounds: int,
        warmup: int,
        *,
        prepare: Mapping[str, Callable[[], None]],
        fused: Collection[str],
    ) -> dict[str, StepTime]:
        self.fused = tuple(fused)
        for name in [name for _ in range(rounds + warmup) for name in steps]:
            prepare[name]()
            steps[name]()
            self.order.append(name)
        return {name: step_time(stage_ms={"scan": 4.0, "rows": 2.0}) for name in steps}


def run(stage: Stage, clock: Clock | None = None) -> list[DecodeTime]:
    links = iter((50.0, 52.0) * len(stage.spec.contexts))
    return [
        time
        for context in stage.spec.contexts
        for time in timed(stage, context, clock=clock or Clock(), link=lambda _: next(links))
    ]


@pytest.fixture(scope="module")
def times() -> list[DecodeTime]:
    """Every kind of scanner, two sequences, two contexts."""
    return run(build(spec(scanners=ALL, batch=2), CPU))


def test_every_scanner_is_counted_at_every_context(times: list[DecodeTime]) -> None:
    assert [time.context for time in times] == [700] * len(ALL) + [1000] * len(ALL)
    assert {time.label for time in times} >= {"exact", "dense", "landmarks", "loki:r=32"}
    for time in times:
        assert time.moved.scan_planned_bytes == time.moved.scan_counted_bytes
        assert time.synthetic
        assert time.block_tokens == (640 if time.context == 700 else 960)


@pytest.mark.parametrize(
    ("label", "bits"),
    [("sparq:r=16", 34), ("sparq:r=32", 68), ("loki:r=32", 68), ("double_sparsity:channels=32", 68),
     ("landmarks", 128), ("thumbnail", 144), ("full4", 272), ("quest", 128), ("exact", 2048), ("streaming", 0)],
)  # fmt: skip
def test_bytes_of_fixed_plans_are_the_specifications(times: list[DecodeTime], label: str, bits: int) -> None:
    """Bits per token at d = 64, where the table of SPEC section 2 gives d = 128; `exact` has fp32 keys here."""
    for time in times:
        if time.label == label:
            assert time.moved.bits_per_token == bits
            assert time.moved.scan_planned_bytes == bits / 8 * time.block_tokens * 3 * 2 * 2


def test_rows_and_indexes_have_their_sizes(times: list[DecodeTime]) -> None:
    by_label = {time.label: time for time in times if time.context == 1000}
    rows = 3 * 2 * 2  # layers, KV heads, sequences
    dense = by_label["dense"]
    assert (dense.moved.union_rows, dense.moved.row_bytes) == (1000, 1000 * rows * 2 * 64 * 4)
    assert dense.moved.scan_planned_bytes == dense.index_bytes == 0
    streaming = by_label["streaming"]
    assert (streaming.moved.union_rows, streaming.moved.row_bytes) == (64, 64 * rows * 2 * 64 * 4)
    for label in ("fathom:budget=48", "sparq:r=16", "exact"):
        assert 64 <= by_label[label].moved.union_rows <= 128
    assert by_label["thumbnail"].index_bytes == by_label["fathom:budget=48"].index_bytes == 34 * 960 * rows
    assert by_label["loki:r=32"].index_bytes == 34 * 960 * rows // 4
    assert by_label["exact"].index_bytes == 0


def test_figures_follow_from_bytes_and_times(times: list[DecodeTime]) -> None:
    time = next(time for time in times if time.label == "landmarks")
    assert time.scan_gb_per_second == pytest.approx(time.moved.scan_planned_bytes / 4.0 / 1e6)
    assert time.row_gb_per_second == pytest.approx(time.moved.row_bytes / 2.0 / 1e6)
    assert (time.link_before_gb_per_second, time.link_after_gb_per_second) == (50.0, 52.0)
    assert time.scan_link_share is None, "nothing of an index in GPU memory crosses the link"


def test_layers_that_read_others_move_the_same_bytes() -> None:
    labels = ("fathom:budget=48", "sparq:r=16", "landmarks")
    whole, aliased = (run(build(spec(scanners=labels, distinct=n), CPU)) for n in (3, 1))
    assert [(time.distinct_rows_layers, time.distinct_index_layers) for time in (whole[0], aliased[0])] == [
        (3, 3),
        (1, 1),
    ]
    for a, b in zip(whole, aliased, strict=True):
        assert a.index_bytes == b.index_bytes
        if a.label != "fathom:budget=48":  # whose plans depend on each layer's variances
            assert a.moved.scan_planned_bytes == b.moved.scan_planned_bytes


def test_steps_are_interleaved_and_each_has_its_own_queries() -> None:
    clock = Clock()
    stage = build(spec(scanners=("fathom:budget=48", "streaming"), contexts=(700,)), CPU)
    [step, _] = stage.steps(700)
    assert isinstance(step, CapturedStep)
    asked = []
    for _ in range(3):
        step.prepare()
        asked.append(step._where.queries.clone())
    assert not torch.equal(asked[0], asked[1])
    assert torch.equal(asked[0], asked[2])
    run(stage, clock)
    assert clock.order == ["fathom:budget=48", "streaming"] * 3
    assert clock.fused == (), "no scan of GPU memory is fused with a transfer"


def test_a_kernel_that_reads_what_was_not_planned_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = build(spec(scanners=("sparq:r=16",), contexts=(700,)), CPU)
    [step] = stage.steps(700)
    assert isinstance(step, CapturedStep)
    honest = step._lane.scan

    def greedy(layer: int, query: Any, bench: Any, counter: Any) -> None:
        honest(layer, query, bench, counter)
        if counter is not None:
            counter += 8

    monkeypatch.setattr(step._lane, "scan", greedy)
    with pytest.raises(LeadlineError, match=r"sparq:r=16 read other scan bytes"):
        step.count()


@pytest.mark.parametrize("label", ["fathom:budget=48", "double_sparsity:channels=32"])
def test_staged_steps_fetch_the_same_rows(label: str) -> None:
    unions = []
    for transfer in ("fused", "staged"):
        [step] = build(spec(scanners=(label,), contexts=(700,), transfer=transfer), CPU).steps(700)
        assert isinstance(step, CapturedStep)
        assert step.record.fused == (transfer == "fused")
        step.prepare()
        step.run()
        assert step._timed.logits is not None
        assert bool(step._timed.logits.isfinite().all())
        unions.append(step._timed.unions.clone())
    assert torch.equal(*unions)
    assert int(unions[0].min()) >= 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"contexts": (150,)}, "at least 192 tokens"),
        ({"k": 36}, "nothing to select"),
        ({"scanners": ("nonsense",)}, "no scanner 'nonsense'"),
        ({"scanners": ("dense",), "placement": "host"}, "every row at every step"),
    ],
)
def test_what_cannot_be_timed_is_said_before_anything_is_made(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        spec(**changes)


def test_scanners_without_kernels_are_refused() -> None:
    with pytest.raises(UsageError, match="no captured step"):
        build(spec(scanners=("sparq:r=16,pick=head",)), CPU)
    with pytest.raises(UsageError, match="a scanner of the plane store"):
        build(spec(scanners=("landmarks",), transfer="staged", contexts=(700,)), CPU).steps(700)


def test_the_defaults_fit_the_placement_and_the_transfer() -> None:
    assert spec(placement="host").scanners == DEFAULT
    assert spec(placement="device").scanners == (*DEFAULT, "dense")
    assert spec(placement="device", transfer="staged").scanners == DEFAULT[:-1]
    assert DEFAULT[0] == "fathom:budget=48"
    assert DEFAULT[-1] == "landmarks"


def test_a_gpu_is_asked_for_by_name() -> None:
    if torch.cuda.is_available():
        assert require_gpu().type == "cuda"
    else:
        with pytest.raises(MachineError, match="no CUDA device"):
            require_gpu()


GIB = 1 << 30


@pytest.mark.parametrize(
    ("asked", "row", "index", "room", "shared", "expected"),
    [
        (None, GIB, GIB, 72 * GIB, True, Distinct(8, 36)),  # everything would fit; rows stop at 8
        (None, 4 * GIB, GIB, 50 * GIB, True, Distinct(3, 36)),
        (None, 4 * GIB, 2 * GIB, 50 * GIB, True, Distinct(1, 23)),  # 23 is prime: only one layer of rows divides it
        (None, 4 * GIB, 4 * GIB, 8 * GIB, True, Distinct(1, 1)),
        (None, 20 * GIB, GIB, 50 * GIB, False, Distinct(2, 36)),
        (4, GIB, GIB, 50 * GIB, True, Distinct(4, 4)),
        (40, GIB // 4, GIB // 4, 50 * GIB, True, Distinct(36, 36)),
    ],
)
def test_as_many_layers_are_stored_as_fit(
    asked: int | None, row: int, index: int, room: int, shared: bool, expected: Distinct
) -> None:
    found = choose_distinct(36, asked, row, index, room, room, shared=shared)
    assert found == expected
    # A layer's rows and its index hold the same keys.
    assert all((layer % found.index) % found.rows == layer % found.rows for layer in range(36))


def test_too_little_memory_is_an_error_with_the_numbers() -> None:
    with pytest.raises(MachineError, match=r"1 of 36 layers[\s\S]*3\.0 GiB for rows[\s\S]*4\.00 GiB of rows"):
        choose_distinct(36, None, 4 * GIB, GIB, 3 * GIB, 3 * GIB, shared=True)
    with pytest.raises(MachineError, match="4 of 36 layers"):
        choose_distinct(36, 4, 4 * GIB, GIB, 18 * GIB, 18 * GIB, shared=True)
