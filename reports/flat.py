"""The figures of a report as one flat table, for spreadsheets and notebooks: a row per figure, a column per property.

`kind` says what a row holds: "mean" of a scanner over units, "difference" of a pair over units, "cost" of a scanner,
"ratio" of a pair's costs, "selection" of the kernels against the references, "eager" a scanner decoded without kernels
on a GPU (`setting` says why), "decode" of a timed step in a `setting`, "ruler" and "ruler difference" of RULER-style
scores, "fidelity" of attention errors over windows. `low` and `high` are the 95% interval. What a kind does not have is
empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

import pyarrow as pa
import pyarrow.parquet as pq

from leadline.reports.checks import Check
from leadline.reports.comparisons import Comparison
from leadline.reports.contents import Contents, ScannerFigures
from leadline.reports.decode_rows import Timed
from leadline.reports.decode_tables import setting
from leadline.reports.fidelity_figures import FidelityFigures
from leadline.reports.ruler_scores import RulerScores
from leadline.reports.ruler_tables import title
from leadline.reports.stats import Mean
from leadline.reports.stats_ratios import Ratio

MEANS = (
    "agreement", "dense_agreement", "recorded_agreement", "token_agreement", "exact_match", "reference_kl_dense",
    "reference_kl_exact", "reference_top1_dense", "reference_top1_exact", "recorded_kl_dense", "recorded_kl_exact",
    "recorded_top1_dense", "recorded_top1_exact", "recorded_extra_nats",
)  # fmt: skip
COSTS = (
    "bits_per_token", "code_bits", "active_channels", "scan_planned_bytes", "scan_realised_bytes", "scan_sector_bytes",
    "row_bytes", "tail_bytes", "union_rows", "index_bytes", "index_build_seconds", "cpu_seconds", "wall_ms", "gpu_ms",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One row of the flat table."""

    run: int
    kind: str
    metric: str
    scanner: str
    baseline: str | None = None
    family: str | None = None
    units: int | None = None
    steps: int | None = None
    value: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    holm_p: float | None = None
    tost_p: float | None = None
    wins: int | None = None
    ties: int | None = None
    losses: int | None = None
    d_z: float | None = None
    detectable: float | None = None
    verdict: str | None = None
    setting: str | None = None


def flat(contents: Contents) -> list[Figure]:
    """Every figure of a run; one that nothing is stored for has no row."""
    run = contents.run.id
    found: list[Figure] = []
    for figures in contents.scanners:
        found += _scanner(run, figures)
    found += [_difference(run, each) for each in contents.comparisons.comparisons]
    for check in contents.checks:
        found += _ratios(run, check)
    found += _selections(contents)
    found += [
        Figure(run, "eager", "eager", contents.shown(each.scanner), value=1.0, setting=each.reason)
        for each in contents.eager
    ]
    return (
        found
        + decode_figures(run, contents.decode)
        + ruler_figures(run, contents.ruler)
        + fidelity_flat(run, contents.fidelity)
    )


def decode_figures(run: int, timed: Sequence[Timed]) -> list[Figure]:
    """Timed decode steps, which belong to no run: `run` is the one they are reported beside."""
    found = []
    for each in timed:
        time = each.time
        values = {
            "bits_per_token": time.moved.bits_per_token,
            "scan_planned_bytes": time.moved.scan_planned_bytes,
            "row_bytes": time.moved.row_bytes,
            **{name: getattr(time.time, name) for name in ("gpu_ms", "event_ms", "wall_ms")},
            **{f"stage_ms {stage}": ms for stage, ms in (time.time.stage_ms or {}).items()},
            "scan_gb_per_second": time.scan_gb_per_second,
            "link_before_gb_per_second": time.link_before_gb_per_second,
            "link_after_gb_per_second": time.link_after_gb_per_second,
        }
        place = f"{setting(time)}, {time.time.timer}, measurement {each.measurement}"
        found += [
            Figure(run, "decode", metric, time.label, steps=time.time.steps, value=value, setting=place)
            for metric, value in values.items()
            if value is not None
        ]
    return found


def ruler_figures(run: int, found: Sequence[RulerScores]) -> list[Figure]:
    """Scores of RULER-style tasks by task and over all samples, and their differences from exact top-k."""
    figures = []
    for scores in found:
        place = title(scores)
        for each in scores.scanners:
            for name, mean in (*((task.task, task.mean) for task in each.tasks), ("overall", each.overall)):
                figures.append(
                    Figure(
                        run, "ruler", name, each.label, units=mean.n, value=mean.mean, se=mean.se, low=mean.low,
                        high=mean.high, setting=place,
                    )
                )  # fmt: skip
            d = each.difference
            if d is not None:
                figures.append(
                    Figure(
                        run, "ruler difference", "overall", each.label, "exact", units=d.n, value=d.difference,
                        se=d.se, low=d.low, high=d.high, p=d.flip.p, holm_p=each.holm_p, wins=d.wins, ties=d.ties,
                        losses=d.losses, d_z=d.d_z, detectable=d.mde, setting=place,
                    )
                )  # fmt: skip
    return figures


def fidelity_flat(run: int, stored: Sequence[FidelityFigures]) -> list[Figure]:
    """Attention errors of fidelity measurements, a row per scanner, k and metric; units are windows."""
    found = []
    for figures in stored:
        spec = figures.result.spec
        for line in figures.lines:
            place = f"{spec.model}, {spec.length} tokens, k = {line.k}, {line.bits:.4g} bits"
            means = (("error", line.error), ("times_exact", line.times_exact), ("recall", line.recall))
            found += [
                Figure(
                    run, "fidelity", metric, line.label, family=line.family, units=mean.n, value=mean.mean, se=mean.se,
                    low=mean.low, high=mean.high, setting=place,
                )
                for metric, mean in means
            ]  # fmt: skip
    return found


def to_csv(figures: list[Figure]) -> str:
    """CSV with a header; empty cells are nulls."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Figure)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(figure) for figure in figures)
    return out.getvalue()


def to_parquet(figures: list[Figure]) -> bytes:
    """A Parquet file whose columns have the same types whatever the rows."""
    kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    schema = pa.schema([(field.name, kinds[str(field.type).split(" ")[0]]) for field in fields(Figure)])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([asdict(figure) for figure in figures], schema=schema), sink)
    return bytes(sink.getvalue().to_pybytes())


def _scanner(run: int, figures: ScannerFigures) -> Iterator[Figure]:
    name = figures.line.shown
    for metric in MEANS:
        mean: Mean | None = getattr(figures, metric)
        if mean is not None:
            yield Figure(
                run, "mean", metric, name, units=mean.n, steps=figures.steps, value=mean.mean, se=mean.se, low=mean.low,
                high=mean.high,
            )  # fmt: skip
    for metric in COSTS:
        value = getattr(figures.cost, metric, None)
        if value is not None:
            yield Figure(run, "cost", metric, name, steps=figures.steps, value=value)


def _selections(contents: Contents) -> Iterator[Figure]:
    for each in contents.selections:
        tolerance = f"tolerance {each.tolerance:g}"
        for metric in ("selected", "flipped", "flip_rate", "unexplained"):
            value = float(getattr(each, metric))
            yield Figure(
                contents.run.id, "selection", metric, contents.shown(each.scanner), steps=each.comparisons,
                value=value, setting=tolerance,
            )  # fmt: skip


def _difference(run: int, each: Comparison) -> Figure:
    d = each.difference
    return Figure(
        run, "difference", each.metric, each.scanner, each.baseline, _family(each.declared), d.n, each.steps,
        d.difference, d.se, d.low, d.high, each.p, each.holm_p, each.tost_p, d.wins, d.ties, d.losses, d.d_z, d.mde,
        each.verdict,
    )  # fmt: skip


def _ratios(run: int, check: Check) -> Iterator[Figure]:
    pair = (check.scanner, check.baseline, _family(check.declared))
    for metric in ("scan_bytes", "row_bytes"):
        exact: float | None = getattr(check, metric)
        if exact is not None:
            yield Figure(run, "ratio", metric, *pair, steps=check.steps, value=exact)
    times: tuple[tuple[str, Ratio | None], ...]
    times = (("gpu_ms", check.gpu), ("wall_ms", check.wall), ("cpu_seconds", check.cpu))
    for metric, ratio in times:
        if ratio is not None:
            yield Figure(
                run, "ratio", metric, *pair, ratio.units, ratio.steps, ratio.geometric_mean, None, ratio.low, ratio.high
            )


def _family(declared: bool) -> str:
    return "declared" if declared else "exploratory"
