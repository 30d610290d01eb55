"""The section on decode time: beside a replay, in a report of its own, absent where nothing was timed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from decode_times import STEPS, decode_time, step_time
from reports.page import Page
from typer.testing import CliRunner

from leadline.bench.records import DecodeSpec, DecodeTime
from leadline.bench.storage import KIND, save
from leadline.cli import app
from leadline.database import Results
from leadline.errors import UsageError
from leadline.reports.contents import gather
from leadline.reports.decode_page import gather_decode
from leadline.reports.decode_rows import timed
from leadline.reports.decode_tables import decode
from leadline.reports.flat import flat
from leadline.reports.html import html
from leadline.reports.markdown import markdown
from leadline.reports.words import NOTHING
from reports import factory

MACHINE = factory.environment(gpu="NVIDIA H200", pcie_generation=5, pcie_width=16, link_gb_per_second=55.5)


def store(path: Path, *times: DecodeTime) -> None:
    with Results.open(path, create=True) as results:
        number = results.start_measurement(KIND, DecodeSpec(), MACHINE, "leadline bench decode --db x")
        save(results, number, times)
        results.finish_measurement(number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Steps at 1M on one machine and no replay."""
    path = tmp_path / "results.sqlite"
    store(path, *(decode_time(label) for label in STEPS))
    return path


def report(path: Path, *arguments: str) -> str:
    ran = CliRunner().invoke(app, ["report", str(path), *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_a_replay_without_timed_steps_says_nothing_of_them(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    factory.fill(path, sessions=1)
    with Results.open(path, read_only=True) as results:
        contents = gather(results)
    assert contents.decode == ()
    assert "Decode time" not in markdown(contents)
    assert "decode-time" not in html(contents)
    assert not [figure for figure in flat(contents) if figure.kind == "decode"]


def test_beside_a_replay_it_is_a_section_of_the_report(path: Path) -> None:
    factory.fill(path, sessions=1)
    with Results.open(path, read_only=True) as results:
        contents = gather(results)
    text = markdown(contents)
    for title in ("## Decode time", "## Decode time by stage", "## Published decode times beside ours"):
        assert f"{title}\n" in text
    page = Page(html(contents))
    [times] = [table for table in page.tables if {"GPU ms", "events ms"} <= set(table[0])]
    assert len(times) == 1 + len(STEPS)
    figures = [figure for figure in flat(contents) if figure.kind == "decode" and figure.metric == "gpu_ms"]
    assert [(figure.scanner, figure.value) for figure in figures] == [(name, ms) for name, (_, ms) in STEPS.items()]
    assert "qwen3-8b, 1M x 1, host, fused, k = 512" in (figures[0].setting or "")


def test_cells_hold_the_stored_figures_with_units_timer_and_link(path: Path) -> None:
    with Results.open(path, read_only=True) as results:
        times, stages, published = decode(timed(results))
    row = dict(zip(times.columns, times.rows[list(STEPS).index("thumbnail")], strict=True))
    assert row["scanner"] == "thumbnail"
    assert row["setting"] == "qwen3-8b, 1M x 1, host, fused, k = 512"
    assert (row["bits per token"], row["row MB"]) == ("288.0", "200")
    assert (row["GPU ms"], row["events ms"], row["wall ms"]) == (
        "200.000 (0.250)",
        "201.000 (0.500)",
        "202.000 (0.750)",
    )
    assert (row["GPU ×"], row["wall ×"]) == ("4.00", "3.88")
    assert (row["copy GB/s"], row["of copy"], row["timer"], row["measurement"]) == ("55.5", "0.92", "cupti", "1")
    notes = " ".join(times.notes)
    assert "1 on NVIDIA H200, PCIe 5 x16" in notes
    assert "rows of 8, indexes of 36 of 36" in notes
    assert "refused" not in notes
    line = dict(zip(stages.columns, stages.rows[0], strict=True))
    assert (line["scan (fused), ms"], line["GEMM, ms"]) == ("40.000", "3.000")
    beside = {(row[0], row[2]): row[3:6] for row in published.rows}
    assert beside["landmarks", "GPU time over fathom:budget=48"] == ("2.5", "3.5", "NVIDIA H200, PCIe 5 x16")
    assert beside["fathom:budget=48", "scan, ms"][1] == "in transfer"
    assert "A100" in published.columns[3]


def test_what_is_unknown_is_a_dash_and_the_reason_is_given(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    events = step_time(timer="events", stage_ms=None, kernels=None, uneven=None, streams=None)
    unknown = {"time": events, "scan_gb_per_second": None, "scan_link_share": None, "row_gb_per_second": None}
    store(path, decode_time("landmarks", **unknown))
    with Results.open(path, read_only=True) as results:
        [times] = decode(timed(results))
    row = dict(zip(times.columns, times.rows[0], strict=True))
    assert {row[name] for name in ("GPU ×", "wall ×", "scan GB/s", "of copy")} == {NOTHING}
    assert row["timer"] == "events"
    assert any("profiler was refused" in note for note in times.notes)


def test_ratios_stay_within_a_measurement_and_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    store(path, decode_time())
    store(path, decode_time("landmarks"), decode_time(context=1 << 17))
    with Results.open(path, read_only=True) as results:
        times = decode(timed(results))[0]
    place = times.columns.index("GPU ×")
    assert [(row[0], row[place], row[-1]) for row in times.rows] == [
        ("fathom:budget=48", "1.00", "1"),
        ("landmarks", NOTHING, "2"),
        ("fathom:budget=48", "1.00", "2"),
    ]


def test_without_a_replay_it_is_a_report_of_its_own(path: Path) -> None:
    formats = [word for name in ("html", "md", "json", "csv", "parquet") for word in ("--format", name)]
    printed = report(path, *formats).split()
    assert [Path(name).name for name in printed] == [f"report.{n}" for n in ("html", "md", "json", "csv", "parquet")]
    page = Page((path.parent / "report.html").read_text())
    assert page.open == []
    text = page.all_text()
    assert "a step of fathom:budget=48 takes 50.0 ms of GPU time and 52.0 ms of wall-clock" in text
    assert "landmarks 3.50" in text
    assert "NVIDIA H200" in text
    assert "leadline bench decode --db x" in text
    markdown_text = (path.parent / "report.md").read_text()
    assert "## Decode time\n" in markdown_text
    assert "## Environment\n" in markdown_text
    found = list(csv.DictReader(io.StringIO((path.parent / "report.csv").read_text())))
    assert {row["kind"] for row in found} == {"decode"}
    assert pq.read_table(path.parent / "report.parquet").num_rows == len(found)
    figures = json.loads(report(path, "--json"))
    assert figures == json.loads((path.parent / "report.json").read_text())
    assert figures["decode"][0]["time"]["time"]["gpu_ms"] == 50.0


def test_untrusted_names_do_not_act_on_the_page(path: Path) -> None:
    store(path, decode_time("<script>alert(1)</script>|`x`"))
    report(path)
    page = Page((path.parent / "report.html").read_text())
    assert page.tags.count("script") == 1
    assert "<script>alert" not in (path.parent / "report.md").read_text()


def test_a_database_with_neither_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    Results.open(path, create=True).close()
    with Results.open(path, read_only=True) as results:
        assert gather_decode(results) is None
    with pytest.raises(UsageError, match="nothing was replayed"):
        report(path)


def test_there_are_no_sessions_to_view(path: Path) -> None:
    with pytest.raises(UsageError, match="no sessions to view"):
        report(path, "--viewer", str(path.parent / "pages"))
    with pytest.raises(UsageError, match="no such run"):
        report(path, "--run", "1")
