"""What is made of timed steps: ratios, the published figures beside ours, rows of a results database."""

from __future__ import annotations

from pathlib import Path

import pytest
from decode_times import STEPS, decode_time, step_time

from leadline.bench.comparing import beside_published, ratios
from leadline.bench.published import FIGURES, STAGES
from leadline.bench.records import DecodeSpec, DecodeTime, Moved, rate
from leadline.bench.storage import KIND, load, save
from leadline.database import Results
from leadline.database_decode import DecodeTimeRow
from leadline.errors import LeadlineError
from leadline.meter_figures import StepTime
from leadline.meter_stages import STAGES as TIMED
from reports import factory


def test_ratios_are_against_the_same_setting_and_the_same_timer() -> None:
    times = [decode_time(label) for label in STEPS] + [decode_time("sparq:r=16", 1 << 17)]
    times.append(decode_time("sparq:r=16", batch=2))
    found = {(ratio.label, ratio.context): ratio for ratio in ratios(times)}
    assert len(found) == len(STEPS), "no ratio where the baseline was not timed"
    assert found["thumbnail", 1 << 20].gpu_ratio == 4.0
    assert found["thumbnail", 1 << 20].wall_ratio == 202 / 52
    assert found["fathom:budget=48", 1 << 20].gpu_ratio == 1.0
    mixed = [decode_time(), decode_time("landmarks", time=step_time(timer="events", stage_ms=None))]
    assert ratios(mixed)[1].gpu_ratio is None


def test_published_figures_stand_beside_ours() -> None:
    rows = beside_published([decode_time(label) for label in STEPS])
    ours = {(row.label, row.quantity, row.against): (row.published, row.ours) for row in rows}
    base = "fathom:budget=48"
    assert ours[base, "gpu_ms", None] == (177, 50.0)
    assert ours["sparq:r=32", "gpu_ratio", base] == (1.67, 2.0)
    assert ours["landmarks", "gpu_ratio", base] == (2.5, 3.5)
    assert ours["thumbnail", "wall_ratio", base] == (2.59, 202 / 52)
    assert ours["sparq:r=16", "gpu_ratio", "fathom:budget=40"] == (1.11, 1.5)
    stages = {row.quantity: row.ours for row in rows if row.label == base and row.quantity in STAGES}
    assert stages == {"transfer": 40.0, "scan": 0.0, "top-k": 2.0, "rows": 3.0, "GEMM": 3.0, "other": 2.0}
    assert sum(value or 0 for value in stages.values()) == 50.0
    assert not any(row.label.startswith("loki") for row in rows), "what was not timed has no row"


def test_published_figures_are_of_their_setting_alone() -> None:
    for changes in ({"shape": "llama-3.1-8b"}, {"k": 2048}, {"batch": 4}, {"placement": "device"}):
        assert beside_published([decode_time(**changes)]) == []
    unknown = beside_published([decode_time(time=step_time(timer="events", stage_ms=None))])
    assert {row.quantity: row.ours for row in unknown}["transfer"] is None


def test_the_published_breakdown_adds_up_to_the_published_step() -> None:
    parts = [figure.value for figure in FIGURES if figure.quantity in STAGES]
    at_1m = [figure for figure in FIGURES if figure.context == 1 << 20 and figure.label == "fathom:budget=48"]
    [whole] = [figure.value for figure in at_1m if figure.quantity == "gpu_ms"]
    assert sum(parts) == pytest.approx(whole, abs=2)
    named = {stage for stages in STAGES.values() for stage in stages}
    assert named | {"scan (fused)"} == set(TIMED), "every stage of ours has its place in the published breakdown"


def test_a_rate_needs_bytes_and_a_timed_stage() -> None:
    time = step_time(stage_ms={"scan": 2.0, "transfer": 3.0})
    assert rate(10e6, time, "scan", "transfer") == 2.0
    assert rate(0.0, time, "scan") is rate(1.0, time, "rows") is rate(1.0, step_time(stage_ms=None), "scan") is None


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    path, spec = tmp_path / "results.sqlite", DecodeSpec(scanners=tuple(STEPS))
    times = [decode_time(label) for label in STEPS]
    times.append(decode_time(batch=2, time=step_time(timer="events", stage_ms=None, kernels=None)))
    with Results.open(path, create=True) as results:
        machine = factory.environment(gpu="a GPU")
        numbers = [results.start_measurement(KIND, spec, machine, "leadline bench decode") for _ in range(2)]
        save(results, numbers[1], times)
    with Results.open(path, read_only=True) as results:
        assert load(results) == [(numbers[1], time) for time in times]
        join = "FROM decode_time t JOIN measurement m ON m.id = t.measurement_id"
        query = f"SELECT label, gpu_ms {join} WHERE m.gpu = 'a GPU'"
        assert len(results.query(query)) == len(times)


def test_a_figure_is_stored_once_and_whole(tmp_path: Path) -> None:
    with Results.open(tmp_path / "results.sqlite", create=True) as results:
        number = results.start_measurement(KIND, DecodeSpec(), factory.environment(), "leadline bench decode")
        save(results, number, [decode_time()])
        with pytest.raises(LeadlineError, match="stored already"):
            save(results, number, [decode_time("landmarks"), decode_time()])
        with pytest.raises(LeadlineError, match=r"time\.gpu_ms"):
            save(results, number, [decode_time(time=step_time().model_copy(update={"gpu_ms": float("nan")}))])
        with pytest.raises(LeadlineError, match="no such measurement"):
            save(results, number + 1, [decode_time()])
        assert [time.label for _, time in load(results)] == ["fathom:budget=48"]


def test_an_older_file_has_none(tmp_path: Path) -> None:
    old = Path(__file__).resolve().parents[1] / "databases" / "v1.sqlite"
    copy = tmp_path / "old.sqlite"
    copy.write_bytes(old.read_bytes())
    with Results.open(copy, read_only=True) as results:
        assert load(results) == []


def test_every_field_has_its_column() -> None:
    fields = {*DecodeTime.model_fields, *Moved.model_fields, *StepTime.model_fields} - {"moved", "time"}
    assert fields | {"id", "measurement_id"} == set(DecodeTimeRow.__table__.columns.keys())
    assert not set(Moved.model_fields) & set(StepTime.model_fields) & set(DecodeTime.model_fields)
