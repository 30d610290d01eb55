"""The figures of a report against hand computation from the records that went in."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from leadline.database import Results
from leadline.errors import UsageError
from leadline.reports.contents import Contents, ScannerFigures, gather
from leadline.reports.query import METRICS
from leadline.reports.summary import summary
from leadline.reports.tables import tables
from reports import factory

PRIMARY = METRICS[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.sqlite"


def contents(path: Path, run: int | None = None) -> Contents:
    with Results.open(path, read_only=True) as results:
        return gather(results, run)


def figures(found: Contents, label: str) -> ScannerFigures:
    return next(f for f in found.scanners if f.line.shown == label)


def test_means_over_units_by_hand(path: Path) -> None:
    """Two sessions share a source: their four steps are one unit."""
    sessions = [factory.session(0, "shared"), factory.session(1, "shared"), factory.session(2, "")]
    values = {(0, 4): 0.1, (0, 9): 0.3, (1, 4): 0.5, (1, 9): 0.7, (2, 4): 0.8, (2, 9): 1.0}
    agreement = lambda label, index, step: 1.0 if label == "exact" else values[index, step]  # noqa: E731
    factory.fill(path, sessions=sessions, labels=("exact", "sparq:r=16"), agreement=agreement)
    found = figures(contents(path), "sparq:r=16")
    assert (found.sessions, found.units, found.steps) == (3, 2, 6)
    assert found.agreement is not None
    # units 0.4 and 0.9: mean 0.65, sd 0.353553, se 0.25, t(0.975, 1) = 12.7062
    assert found.agreement.mean == pytest.approx(0.65)
    assert found.agreement.se == pytest.approx(0.25)
    assert found.agreement.high == pytest.approx(0.65 + 12.706204736 * 0.25)
    assert found.reference_kl_dense is not None
    assert found.reference_kl_dense.mean == pytest.approx(0.035)
    assert found.recorded_extra_nats is not None
    assert found.recorded_extra_nats.mean == pytest.approx(0.07)
    assert found.action == (1, 6)


def test_costs_by_hand(path: Path) -> None:
    def changes(label: str, index: int, step: int) -> dict[str, object]:
        if label == "sparq:r=16" and step == 9:
            return {"decode_steps": 16, "scan_realised_bytes": 5, "wall_ms": 300.0, "bits_per_token": 36.0}
        return {}

    factory.fill(path, sessions=1, changes=changes)
    cost = figures(contents(path), "sparq:r=16").cost
    assert cost is not None
    assert cost.decode_steps == 80
    assert cost.mismatches == 1
    assert cost.bits_per_token == pytest.approx(35.0)
    assert cost.scan_realised_bytes == pytest.approx((64e6 + 5) / 80)
    assert cost.scan_planned_bytes == pytest.approx(128e6 / 80)
    assert cost.cpu_seconds == pytest.approx(25.6 / 80)
    assert cost.wall_ms == pytest.approx(200.0)
    assert cost.gpu_ms is None
    shown = next(table for table in tables(contents(path)) if table.id == "bytes")
    row = next(row for row in shown.rows if row[0] == "sparq:r=16")
    assert row[shown.columns.index("planned = realised")] == "no, in 1"
    assert row[shown.columns.index("b / d")] == "0.547"


def test_survival_by_hand(path: Path) -> None:
    starts = {(0, 4): 0, (0, 9): 3, (1, 4): 20, (1, 9): None}

    def changes(label: str, index: int, step: int) -> dict[str, object]:
        return {"first_divergence": starts[index, step]} if label == "sparq:r=16" else {}

    factory.fill(path, sessions=2, changes=changes)
    survival = figures(contents(path), "sparq:r=16").survival
    assert survival is not None
    assert (survival.after_1, survival.after_4, survival.after_16, survival.after_32, survival.after_64) == (
        3,
        2,
        2,
        1,
        1,
    )
    short = next(table for table in tables(contents(path)) if table.id == "divergence")
    assert next(row for row in short.rows if row[0] == "sparq:r=16")[1:6] == ("75%", "50%", "50%", "25%", "25%")


def test_single_tokens_by_hand(path: Path) -> None:
    """Two sessions of two steps, two texts of two tokens each: 16 tokens a scanner, one of them at 7.5 nats."""
    factory.fill(path, sessions=2, steps=(4, 9))
    with sqlite3.connect(path) as connection:
        [(first,)] = connection.execute(
            "SELECT min(r.id) FROM step_result r JOIN scanner s ON s.sha256 = r.scanner_sha256 "
            "WHERE s.label = 'sparq:r=16'"
        )
        connection.execute(
            "UPDATE teacher_forced SET kl_exact_by_token = '[0.5, 7.5]' WHERE step_result_id = ? AND text = 'recorded'",
            (first,),
        )
    shown = next(table for table in tables(contents(path)) if table.id == "single-tokens")
    rows = {row[0]: row[1:] for row in shown.rows}
    assert rows["sparq:r=16"] == ("16", "12.50%", "6.25%", "7.50")
    assert rows["exact"] == ("16", "0.00%", "0.00%", "0.00")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE teacher_forced SET kl_exact_by_token = '[]'")
    assert "single-tokens" not in {table.id for table in tables(contents(path))}


def test_the_known_paired_difference_and_its_verdict(path: Path) -> None:
    """+0.18 with SE 0.05 over 20 sessions reads "better" against a single baseline."""
    shape = [(2 * i - 19) / 19 for i in range(20)]
    sd = (sum(s * s for s in shape) / 19) ** 0.5
    differences = [0.18 + s / sd * 0.05 * 20**0.5 for s in shape]

    def agreement(label: str, index: int, step: int) -> float:
        return {"exact": 1.0, "sparq:r=16": 0.4}.get(label, 0.4 + differences[index])

    factory.fill(path, sessions=20, labels=("exact", "fathom:budget=48", "sparq:r=16"), agreement=agreement)
    [found] = contents(path).comparisons.of(PRIMARY)
    assert (found.scanner, found.baseline, found.declared) == ("fathom:budget=48", "sparq:r=16", True)
    assert found.difference.difference == pytest.approx(0.18)
    assert found.difference.se == pytest.approx(0.05)
    assert found.verdict == "better"
    row = next(table for table in tables(contents(path)) if table.id == "difference-agreement").rows[0]
    assert row[2:7] == ("better", "20 (40)", "0.580 − 0.400", "+0.180", "[+0.075, +0.285]")
    assert "better: fathom:budget=48 (+0.18)" in " ".join(summary(contents(path)))
    # Lower KL is better: the same scanner, the other sign.
    by_metric = {metric.key: contents(path).comparisons.of(metric) for metric in METRICS}
    assert all(c.difference.difference < 0 and c.verdict == "better" for c in by_metric["kl_dense_recorded"])


def test_a_tie_is_equivalent_only_within_a_margin_that_the_data_support(tmp_path: Path) -> None:
    shape = [(2 * i - 39) / 39 for i in range(40)]
    sd = (sum(s * s for s in shape) / 39) ** 0.5
    differences = [s / sd * 0.04 * 40**0.5 for s in shape]

    def agreement(label: str, index: int, step: int) -> float:
        return {"exact": 1.0, "sparq:r=16": 0.5}.get(label, 0.5 + differences[index])

    for margin, verdict in ((0.067, "inconclusive"), (0.068, "equivalent")):
        path = tmp_path / f"{margin}.sqlite"
        labels = ("exact", "fathom:budget=48", "sparq:r=16")
        spec = factory.spec(margin=margin, scanners=labels)
        factory.fill(path, sessions=40, steps=(4,), labels=labels, agreement=agreement, run_spec=spec)
        [found] = contents(path).comparisons.of(PRIMARY)
        assert found.difference.se == pytest.approx(0.04)
        assert found.verdict == verdict


def test_holm_runs_over_the_declared_family_and_the_rest_is_exploratory(path: Path) -> None:
    labels = (*factory.LABELS, "loki:r=32", "quest")
    family = (("fathom:budget=48", "sparq:r=16"), ("loki:r=32", "sparq:r=16"), ("never", "sparq:r=16"))

    def agreement(label: str, index: int, step: int) -> float:
        if label == "exact":
            return 1.0
        return (
            0.3
            + 0.01 * index
            + {"fathom:budget=48": 0.3 + 0.001 * index, "loki:r=32": 0.01 * (index % 3)}.get(label, 0)
        )

    spec = factory.spec(family=family, scanners=labels)
    factory.fill(path, sessions=8, labels=labels, agreement=agreement, run_spec=spec)
    found = contents(path).comparisons
    assert found.family == 3
    assert found.missing == ("never against sparq:r=16: never not in this run",)
    by_scanner = {c.scanner: c for c in found.of(PRIMARY)}
    assert [c.scanner for c in found.of(PRIMARY) if c.declared] == ["fathom:budget=48", "loki:r=32"]
    assert {c.scanner for c in found.of(PRIMARY) if not c.declared} == {"dense", "quest"}
    assert by_scanner["fathom:budget=48"].p == pytest.approx(2 / 256)
    assert by_scanner["fathom:budget=48"].holm_p == pytest.approx(3 * 2 / 256)
    assert by_scanner["quest"].holm_p is None
    first = next(table for table in tables(contents(path)) if table.id == "difference-agreement")
    assert [row[1] for row in first.rows] == ["declared", "declared", "exploratory", "exploratory"]


def test_pairs_use_the_steps_both_have(path: Path) -> None:
    """A run in progress: the baseline has three of the four steps."""
    with Results.open(path, create=True) as results:
        run = results.start_run(factory.spec(), factory.model(), factory.environment(), "leadline replay")
        for label in factory.LABELS:
            results.add_scanner(run, factory.scanner(label))
        values = {"fathom:budget=48": {0: (0.9, 0.7), 1: (0.6, 0.8)}, "sparq:r=16": {0: (0.5,), 1: (0.4, 0.5)}}
        for index in (0, 1):
            sha = factory.session(index).sha256
            results.add_session(run, factory.session(index))
            for place, step in enumerate((4, 9)):
                results.add_branch_point(run, sha, factory.point(step))
                for label, by_session in values.items():
                    if place < len(by_session[index]):
                        results.save(run, factory.branch(sha, step, label, by_session[index][place]))
    found = contents(path)
    [pair] = found.comparisons.of(PRIMARY)
    expected = ttest_rel([0.9, 0.7], [0.5, 0.45])
    assert (pair.steps, pair.dropped) == (3, 1)
    assert pair.difference.difference == pytest.approx(0.325)
    assert pair.difference.low == pytest.approx(expected.confidence_interval(0.95).low)
    assert "7 of 20 branches" in " ".join(summary(found))


def test_one_label_with_two_hashes_is_told_apart(path: Path) -> None:
    run = factory.fill(path, sessions=1)
    with Results.open(path) as results:
        results.start_run(factory.spec(), factory.model(), factory.environment(), "leadline resume")
        results.add_scanner(run, factory.scanner("fathom:budget=48", sha256=factory.sha("recalibrated")))
    shown = [f.line.shown for f in contents(path).scanners if f.line.label == "fathom:budget=48"]
    assert len(set(shown)) == 2
    assert all(name.startswith("fathom:budget=48 @") for name in shown)


def test_a_degenerate_session_is_flagged(path: Path) -> None:
    def changes(label: str, index: int, step: int) -> dict[str, object]:
        return {"empty": True} if label == "dense" and index == 1 else {"repeating": index == 2 and step == 4}

    factory.fill(path, changes=changes)
    found = contents(path)
    assert [session.flagged for session in found.sessions] == [False, True, False]
    assert "session-1" in summary(found)[-1]
    assert [figures(found, "sparq:r=16").repeating, figures(found, "dense").empty] == [1, 2]


def test_few_units_say_that_nothing_can_be_called(path: Path) -> None:
    factory.fill(path, sessions=3)
    text = " ".join(summary(contents(path)))
    assert "With 3 units and 1 declared comparison no difference, however large, can be called" in text
    assert "0.500" in text  # two of the three units differ: 2 / 2^2


def test_the_latest_run_is_chosen_and_an_unknown_one_refused(path: Path) -> None:
    factory.fill(path, sessions=1)
    second = factory.fill(path, sessions=1, run_spec=factory.spec(k=256))
    assert contents(path).run.id == second
    assert contents(path, 1).spec.selected == 128
    with pytest.raises(UsageError, match="no such run"):
        contents(path, 9)
