"""Everything a report says about one run, as numbers: gathered once, then printed as HTML, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.config import RunSpec
from leadline.database import Results, RunSummary
from leadline.errors import UsageError, explain
from leadline.records import ModelRecord
from leadline.reports import query, steps
from leadline.reports.checks import Check, check
from leadline.reports.comparisons import Comparisons, compare
from leadline.reports.decode_rows import Timed, timed
from leadline.reports.fidelity_figures import FidelityFigures, stored_fidelity
from leadline.reports.floor import AgainstFloor, against_floor
from leadline.reports.rows import (
    BranchText,
    ExcludedItem,
    InvocationRow,
    ScannerCost,
    ScannerLine,
    ScannerUnit,
    SessionAgreement,
    SessionLine,
    Survival,
    TokenTail,
)
from leadline.reports.ruler_scores import RulerScores, ruler_scores
from leadline.reports.selections import Eager, SelectionFigures, eager, selections
from leadline.reports.stats import Mean, mean_interval
from leadline.reports.steps import Layer, Stage, StepFigures
from leadline.reports.stored_tables import StoredTable, stored_tables


@dataclass(frozen=True)
class ScannerFigures:
    """One scanner over all its steps. Means are over units; counts are over steps; None where nothing is stored.

    `action` and `action_name` are (agreed, of). `kl_*`, `extra_nats` in nats per token; `top1_*` are shares.
    """

    line: ScannerLine
    sessions: int
    units: int
    steps: int
    agreement: Mean | None
    dense_agreement: Mean | None
    recorded_agreement: Mean | None
    token_agreement: Mean | None
    exact_match: Mean | None
    action: tuple[int, int]
    action_name: tuple[int, int]
    empty: int
    repeating: int
    reference_kl_dense: Mean | None
    reference_kl_exact: Mean | None
    reference_top1_dense: Mean | None
    reference_top1_exact: Mean | None
    recorded_kl_dense: Mean | None
    recorded_kl_exact: Mean | None
    recorded_top1_dense: Mean | None
    recorded_top1_exact: Mean | None
    recorded_extra_nats: Mean | None
    cost: ScannerCost | None
    survival: Survival | None


@dataclass(frozen=True)
class Contents:
    """One run: what it was, what it found, and on what."""

    database: str
    run: RunSummary
    spec: RunSpec
    model: ModelRecord
    invocations: tuple[InvocationRow, ...]
    scanners: tuple[ScannerFigures, ...]
    comparisons: Comparisons
    sessions: tuple[SessionLine, ...]
    session_agreement: tuple[SessionAgreement, ...]
    exclusions: tuple[ExcludedItem, ...]
    texts: tuple[BranchText, ...]
    steps: tuple[StepFigures, ...]
    floor: dict[str, AgainstFloor] | None
    checks: tuple[Check, ...]
    stages: tuple[Stage, ...]
    layers: tuple[Layer, ...]
    stored: tuple[StoredTable, ...]
    decode: tuple[Timed, ...]
    fidelity: tuple[FidelityFigures, ...]
    ruler: tuple[RulerScores, ...]
    selections: tuple[SelectionFigures, ...]
    eager: tuple[Eager, ...]
    tails: tuple[TokenTail, ...] = ()
    shared: bool = False

    @property
    def branch_points(self) -> int:
        """Branch points stored so far."""
        return sum(session.branch_points for session in self.sessions)

    @property
    def expected(self) -> int:
        """Branches that the stored branch points and scanners call for."""
        return self.branch_points * len(self.scanners)

    def shown(self, sha256: str) -> str:
        """A scanner's label in tables, by its hash."""
        return next(figures.line.shown for figures in self.scanners if figures.line.sha256 == sha256)

    def of_role(self, role: str) -> list[ScannerFigures]:
        """The scanners of one role, in order."""
        return [figures for figures in self.scanners if figures.line.role == role]


def choose_run(results: Results, run: int | None) -> RunSummary:
    """The run asked for, or the one updated last. Raises UsageError where there is none."""
    runs = results.runs()
    if run is None and runs:
        return max(runs, key=lambda summary: (summary.updated, summary.id))
    for summary in runs:
        if summary.id == run:
            return summary
    known = ", ".join(str(summary.id) for summary in runs) or "none: nothing was replayed into it yet"
    raise UsageError(explain("no such run", file=results.path, found=run, expected=known, do="choose one with --run"))


def gather(results: Results, run: int | None = None) -> Contents:
    """Read everything the report of a run prints, as of one moment."""
    with results.snapshot():
        return _gather(results, run)


def _gather(results: Results, run: int | None) -> Contents:
    summary = choose_run(results, run)
    spec = results.spec(summary.id)
    lines = query.scanners(results, summary.id)
    units = query.scanner_units(results, summary.id)
    costs = {cost.scanner: cost for cost in query.scanner_costs(results, summary.id)}
    survivals = {survival.scanner: survival for survival in query.survival(results, summary.id)}
    figures = []
    for line in lines:
        own = [unit for unit in units if unit.scanner == line.sha256]
        figures.append(_figures(line, own, costs.get(line.sha256), survivals.get(line.sha256)))
    found = tuple(steps.steps(results, summary.id))
    comparisons = compare(results, summary.id, spec, lines)
    model = results.model(summary.id)
    floor = against_floor(results, summary.id, lines)
    return Contents(
        database=Path(results.path).name,
        run=summary,
        spec=spec,
        model=model,
        invocations=tuple(query.invocations(results, summary.id)),
        scanners=tuple(figures),
        comparisons=comparisons,
        sessions=tuple(query.sessions(results, summary.id)),
        session_agreement=tuple(query.session_agreement(results, summary.id)),
        exclusions=tuple(query.exclusions(results, summary.id)),
        texts=tuple(query.texts(results, summary.id)),
        steps=found,
        floor=floor,
        checks=tuple(check(each, found, lines, floor) for each in comparisons.of(query.METRICS[0])),
        stages=tuple(steps.stages(results, summary.id)),
        layers=tuple(steps.layers(results, summary.id)),
        stored=tuple(stored_tables(results, summary.id)),
        decode=timed(results),
        fidelity=stored_fidelity(results),
        selections=tuple(selections(results, summary.id)),
        eager=tuple(eager(lines, model)),
        ruler=ruler_scores(results),
        tails=tuple(query.token_tails(results, summary.id)),
        shared=results.has("shared_copy") and bool(results.query("SELECT id FROM shared_copy")),
    )


def _figures(
    line: ScannerLine, units: Sequence[ScannerUnit], cost: ScannerCost | None, survival: Survival | None
) -> ScannerFigures:
    def mean(value: Callable[[ScannerUnit], float | None]) -> Mean | None:
        return mean_interval([found for unit in units if (found := value(unit)) is not None])

    return ScannerFigures(
        line=line,
        sessions=sum(unit.sessions for unit in units),
        units=len(units),
        steps=sum(unit.steps for unit in units),
        agreement=mean(lambda unit: unit.agreement),
        dense_agreement=mean(lambda unit: unit.dense_agreement),
        recorded_agreement=mean(lambda unit: unit.recorded_agreement),
        token_agreement=mean(lambda unit: unit.token_agreement),
        exact_match=mean(lambda unit: unit.exact_match),
        action=(sum(unit.action_agreed for unit in units), sum(unit.action_of for unit in units)),
        action_name=(sum(unit.action_name_agreed for unit in units), sum(unit.action_name_of for unit in units)),
        empty=sum(unit.empty for unit in units),
        repeating=sum(unit.repeating for unit in units),
        reference_kl_dense=mean(lambda unit: unit.reference_kl_dense),
        reference_kl_exact=mean(lambda unit: unit.reference_kl_exact),
        reference_top1_dense=mean(lambda unit: unit.reference_top1_dense),
        reference_top1_exact=mean(lambda unit: unit.reference_top1_exact),
        recorded_kl_dense=mean(lambda unit: unit.recorded_kl_dense),
        recorded_kl_exact=mean(lambda unit: unit.recorded_kl_exact),
        recorded_top1_dense=mean(lambda unit: unit.recorded_top1_dense),
        recorded_top1_exact=mean(lambda unit: unit.recorded_top1_exact),
        recorded_extra_nats=mean(lambda unit: unit.recorded_extra_nats),
        cost=cost,
        survival=survival,
    )
