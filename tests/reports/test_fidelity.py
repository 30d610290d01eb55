"""Curves, equal-error bits and the pages of fidelity measurements, on figures made by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from decode_times import STEPS, decode_time
from typer.testing import CliRunner

from leadline.bench.records import DecodeSpec
from leadline.bench.storage import KIND, save
from leadline.cli import app
from leadline.database import Results
from leadline.environment import capture
from leadline.fidelity.records import FidelityResult, FidelitySpec, FigureRecord, WindowRecord
from leadline.fidelity.storing import save_window
from leadline.reports.contents import gather
from leadline.reports.fidelity_charts import error_curves, layer_map
from leadline.reports.fidelity_curves import Curve
from leadline.reports.fidelity_figures import FidelityFigures, fidelity_figures, stored_fidelity
from leadline.reports.fidelity_page import fidelity_html, fidelity_markdown, fidelity_summary
from leadline.reports.fidelity_tables import equal_error, errors, fidelity_sections, sweep
from leadline.reports.html import html
from leadline.reports.tables import tables
from reports import factory

SPEC = FidelitySpec(
    model="tiny <b>",
    weights_sha256="ab" * 32,
    rope="default",
    dtype="float32",
    device="cpu",
    head_dim=64,
    kv_heads=2,
    groups=3,
    layers=(0, 5),
    text="a text",
    length=4096,
    positions=128,
    k=128,
    sweep=(256,),
    chunk=512,
    grid="full",
)
# label, family, bits, error at layer 0; layer 5 has twice it, the second window 1.1 times it.
SCANNERS = (
    ("exact", "exact", 1024.0, 0.05),
    ("streaming", "streaming", 0.0, 0.8),
    ("fathom:budget=24", "fathom", 14.0, 0.16),
    ("fathom:budget=48", "fathom", 28.0, 0.12),
    ("fathom:budget=96", "fathom", 56.0, 0.06),
    ("sparq:r=16", "sparq", 34.0, 0.12),
    ("sparq:r=32", "sparq", 68.0, 0.055),
    ("landmarks", "landmarks", 128.0, 0.4),
)


def result(windows: int = 2) -> FidelityResult:
    figures = [
        FigureRecord(
            label=label, family=family, k=k, window=w, layer=layer,
            error=error * (1 + 0.1 * w) * (1 if layer == 0 else 2) * (1 if k == 128 else 0.5),
            recall=0.5 + 0.1 * w, bits=bits, rows=200.0,
        )
        for w in range(windows)
        for layer in SPEC.layers
        for label, family, bits, error in SCANNERS
        for k in ((128, 256) if label in ("exact", "sparq:r=16") else (128,))
    ]  # fmt: skip
    return FidelityResult(
        spec=SPEC,
        windows=tuple(WindowRecord(window=w, name=f"w{w}", sha256=f"{w:064d}") for w in range(windows)),
        figures=tuple(figures),
    )


@pytest.fixture(scope="module")
def figures() -> FidelityFigures:
    return fidelity_figures(result())


def test_a_curve_interpolates_in_both_logarithms_and_never_extrapolates() -> None:
    curve = Curve.through([(16, 0.4), (64, 0.1)])
    assert curve.bits_at(0.2).where == "reached"
    assert curve.bits_at(0.2).bits == pytest.approx(32)
    assert curve.bits_at(0.1).bits == pytest.approx(64)
    assert curve.bits_at(0.4).bits == pytest.approx(16)
    assert (curve.bits_at(0.5).where, curve.bits_at(0.09).where) == ("below", "not reached")
    assert curve.bits_at(0.09).bits == pytest.approx(64)


def test_a_rise_is_levelled_and_the_fewest_bits_count() -> None:
    """0.2 and 0.3 pool to their geometric mean; the plateau is reached at its first point."""
    curve = Curve.through([(64, 0.1), (16, 0.2), (32, 0.3), (8, 0.5)])
    level = math.sqrt(0.2 * 0.3)
    assert [math.exp(y) for y in curve.log_errors] == pytest.approx([0.5, level, level, 0.1])
    assert curve.bits_at(level * 1.0001).bits == pytest.approx(16, rel=1e-2)
    assert Curve.through([(16, 0.2), (16, 0.2), (32, 0.1)]).log_bits == (math.log(16), math.log(32))
    with pytest.raises(ValueError, match="at least one"):
        Curve.through([])


def test_lines_are_means_over_layers_then_windows(figures: FidelityFigures) -> None:
    line = next(each for each in figures.main if each.label == "fathom:budget=48")
    assert line.by_window == pytest.approx([0.18, 0.198])
    assert line.error.mean == pytest.approx(0.189)
    assert line.times_exact.mean == pytest.approx(2.4)
    assert line.recall.mean == pytest.approx(0.55)
    assert line.by_layer == pytest.approx([0.126, 0.252])
    assert [each.label for each in figures.main] == [label for label, *_ in SCANNERS]
    assert [each.label for each in figures.at(256)] == ["exact", "sparq:r=16"]


def test_equal_error_bits_stand_against_every_target(figures: FidelityFigures) -> None:
    found = {(each.target, each.family): each for each in figures.equal}
    same = found["sparq:r=16", "fathom"]
    assert same.mean == pytest.approx(28)
    assert same.saving == pytest.approx(34 / 28)
    assert (same.windows, same.reached, same.below) == (2, 2, 0)
    beyond = found["sparq:r=32", "fathom"]
    assert (beyond.mean, beyond.reached, beyond.below) == (None, 0, 0), "not reached: nothing is extrapolated"
    assert found["landmarks", "fathom"].below == 2
    assert ("sparq:r=16", "sparq") not in found, "no family stands against itself"
    assert not any(each.family in ("exact", "streaming", "landmarks") for each in figures.equal)


def test_tables_say_reached_below_and_not_reached(figures: FidelityFigures) -> None:
    rows = {(row[0], row[2]): row[3:] for row in equal_error(figures).rows}
    assert rows["sparq:r=16", "fathom"] == ("28 [28, 28]", "1.21×") or rows["sparq:r=16", "fathom"][1] == "1.21×"
    assert rows["landmarks", "fathom"] == ("below 14", "—")
    assert ("sparq:r=32", "fathom") not in rows
    notes = " ".join(equal_error(figures).notes)
    assert "fathom 14, 28, 56" in notes
    assert "nothing is extrapolated" in notes
    (exact, sparq) = sweep(figures).rows
    assert exact[1:] == ("0.0788 (1.00)", "0.0394 (1.00)")
    assert sparq[0] == "sparq:r=16"
    first = errors(figures).rows[0]
    assert first[:4] == ("exact", "exact", "1024.0", "16.00")


def test_a_single_window_has_no_interval() -> None:
    figures = fidelity_figures(result(1))
    assert next(iter(figures.main)).error.low is None
    assert "(n=1)" in errors(figures).rows[0][4]
    with pytest.raises(ValueError, match="without windows"):
        fidelity_figures(result(0))


def test_pages_hold_the_figures_and_nothing_acts_on_them(figures: FidelityFigures) -> None:
    page = fidelity_html([figures])
    assert "tiny &lt;b&gt;" in page
    assert "tiny <b>" not in page
    assert page.count("<svg") == 2
    assert "style=" not in page
    text = fidelity_markdown([figures])
    assert "| sparq:r=16 | sparq | 34.0 |" in text
    assert "tiny &lt;b&gt;" in text
    assert any("28 bits for sparq:r=16's 34" in sentence for sentence in fidelity_summary(figures))


def test_charts_are_left_out_where_there_is_nothing_to_draw(figures: FidelityFigures) -> None:
    assert error_curves(figures) is not None
    assert layer_map(figures) is not None
    few = result().model_copy(
        update={"figures": tuple(f for f in result().figures if f.family in ("exact", "streaming"))}
    )
    assert error_curves(fidelity_figures(few)) is None


def store(path: Path, *results: FidelityResult) -> None:
    with Results.open(path, create=True) as database:
        for each in results:
            number = database.start_measurement("fidelity", each.spec, capture("cpu"), "leadline fidelity")
            for window in each.windows:
                mine = [figure for figure in each.figures if figure.window == window.window]
                save_window(database, number, window, mine)
            database.finish_measurement(number)


def test_a_report_of_a_run_shows_the_measurements_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    factory.fill(path, sessions=1)
    with Results.open(path, read_only=True) as database:
        assert gather(database).fidelity == ()
    other = SPEC.model_copy(update={"length": 8192})
    store(path, result(), result().model_copy(update={"spec": other}))
    with Results.open(path, read_only=True) as database:
        contents = gather(database)
        assert stored_fidelity(database)[0].result == result()
    shown = [table for table in tables(contents) if table.id.startswith("fidelity")]
    assert [table.id for table in shown][:2] == ["fidelity-1-errors", "fidelity-1-equal"]
    assert shown[-1].id == "fidelity-2-protocol"
    assert not [table for table in tables(contents) if table.id.startswith("stored-")]
    assert "8,192 tokens" in shown[-1].title
    page = html(contents)
    assert 'id="figure-fidelity-1-curves"' in page
    assert 'id="figure-fidelity-2-map"' in page
    with Results.open(path, read_only=True) as database:
        for table in fidelity_sections(contents.fidelity)[:2]:
            for query in table.queries:
                assert database.query(query.sql, {"measurement": 1})


def test_a_database_of_measurements_alone_has_a_report(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    store(path, result())
    done = CliRunner().invoke(app, ["report", str(path), "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "How far each scanner" in (tmp_path / "out" / "report.html").read_text()
    assert "| sparq:r=16 |" in (tmp_path / "out" / "report.md").read_text()


def test_measurements_of_several_kinds_have_a_report_each(tmp_path: Path) -> None:
    path, out = tmp_path / "r.sqlite", tmp_path / "out"
    store(path, result())
    with Results.open(path) as database:
        number = database.start_measurement(KIND, DecodeSpec(), capture("cpu"), "leadline bench decode")
        save(database, number, [decode_time(label) for label in STEPS])
        database.finish_measurement(number)
    formats = [part for name in ("html", "md", "json", "csv") for part in ("--format", name)]
    done = CliRunner().invoke(app, ["report", str(path), "--out", str(out), *formats], catch_exceptions=False)
    names = ["report-decode.html", "report-fidelity.html", "report-decode.md", "report-fidelity.md"]
    assert done.stdout.split("\n")[:-1] == [str(out / name) for name in (*names, "report.json", "report.csv")]
    assert "| sparq:r=16 |" in (out / "report-fidelity.md").read_text()
    assert "# How long a decode step takes" in (out / "report-decode.md").read_text()
    figures = json.loads((out / "report.json").read_text())
    assert list(figures) == ["decode", "fidelity"]
    assert len(figures["decode"]["decode"]) == len(STEPS)
    printed = CliRunner().invoke(app, ["report", str(path), "--json"], catch_exceptions=False)
    assert json.loads(printed.stdout) == figures
    with (out / "report.csv").open() as lines:
        assert {row["kind"] for row in csv.DictReader(lines)} == {"decode", "fidelity"}
