"""`leadline plan` as a person meets it: the table, JSON, exit codes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import tiny_replay
from typer.testing import CliRunner

from leadline.cli import app, main
from leadline.errors import MachineError, UsageError
from leadline.plan_measured import Measured
from leadline.plan_records import PointPlan, RunPlan

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan-cli")
    tiny_replay.write_sessions(folder / "sessions", count=1)
    tiny_replay.write_calibration(folder / "cal.safetensors", tiny_replay.model())
    (folder / "run.toml").write_text(
        'model = "tiny"\nmax_context = 1500\nk = 40\nmax_new_tokens = 4\nprefill_chunk = 128\nnoise_chunk = 96\n'
        'scanners = ["sparq:r=16", "fathom:budget=48"]\nbaseline = "sparq"\n'
    )
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_replay.model()
    monkeypatch.setattr("leadline.planning.outline", lambda *_, **__: loaded)


def arguments(place: Path, *more: str) -> list[str]:
    return [
        "plan", str(place / "sessions"), "--config", str(place / "run.toml"), "--device", "cpu",
        "--calibration", str(place / "cal.safetensors"), *more,
    ]  # fmt: skip


@pytest.mark.usefixtures("tiny")
def test_the_table_names_every_contender_and_what_is_left_out(place: Path) -> None:
    shown = RUNNER.invoke(app, arguments(place))
    assert shown.exit_code == 0, shown.output
    for text in (
        "exact (prefill in 96s)",
        "dense",
        "sparq:r=16",
        "as sparq:r=16",
        "left out: 1 x step, prompt is shorter than 8k",
    ):
        assert text in shown.stdout
    assert "2 branch points, 10 branches" in shown.stdout
    assert "stated rates of a CPU" in shown.stdout


@pytest.mark.usefixtures("tiny")
def test_json_is_the_typed_record(place: Path) -> None:
    shown = RUNNER.invoke(app, arguments(place, "--json", "--rates", "55,3900", "--steps", "1"))
    assert shown.exit_code == 0, shown.output
    found = RunPlan.model_validate(json.loads(shown.stdout))
    assert found.branch_points == 1
    assert found.rates.link_gb_per_second == 55
    assert [s.label for s in found.scanners][3:] == ["sparq:r=16", "fathom:budget=48"]
    assert all(s.bytes_per_step > found.weight_bytes_per_step for s in found.scanners)


@pytest.mark.usefixtures("tiny")
def test_memory_that_is_not_there_ends_with_3_after_the_table(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("leadline.planning.available_bytes", lambda: (1 << 30) + 4096)
    monkeypatch.setattr("sys.argv", ["leadline", *arguments(place)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == MachineError.exit_code == 3
    said = capsys.readouterr()
    assert "fathom:budget=48" in said.out
    assert "GiB needed, 0.00 GiB available" in said.err
    assert "--placement" in said.err


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("rates", ["fast", "1", "1,2,3", "0,5", "5,nan"])
def test_rates_are_two_numbers(place: Path, rates: str) -> None:
    failed = RUNNER.invoke(app, arguments(place, "--rates", rates))
    assert isinstance(failed.exception, UsageError)
    assert "55,3900" in str(failed.exception)


@pytest.mark.usefixtures("tiny")
def test_measured_times_come_from_the_database_that_is_named(place: Path, tmp_path: Path) -> None:
    database = tmp_path / "results.sqlite"
    wanted = tiny_replay.spec(
        place / "sessions", place / "cal.safetensors", scanners=("sparq:r=16",), max_new_tokens=4, device="cpu"
    )
    tiny_replay.run(wanted, database)
    with sqlite3.connect(database) as connection:  # known times: 100 s in all, 10 ms a step of 4 at most
        connection.execute("UPDATE environment SET started = '2026-01-01T00:00:00+00:00'")
        connection.execute("UPDATE environment SET ended = '2026-01-01T00:01:40+00:00'")
        connection.execute("UPDATE step_cost SET wall_ms = 10, decode_steps = 4")
        branches = connection.execute("SELECT count(*) FROM step_result").fetchone()[0]
    shown = RUNNER.invoke(app, arguments(place, "--json", "--like", str(database)))
    assert shown.exit_code == 0, shown.output
    found = RunPlan.model_validate(json.loads(shown.stdout))
    assert branches == 8
    assert found.seconds == pytest.approx(100 / 8 * found.branches)
    assert "8 branches" in found.seconds_from
    with sqlite3.connect(database) as connection:  # by kernels, turns ended half way: steps go on while a text has more
        connection.execute("UPDATE scanner SET fused = 1")
        connection.execute("UPDATE step_cost SET decode_steps = 2")
        connection.execute("UPDATE teacher_forced SET tokens = CASE text WHEN 'recorded' THEN 4 ELSE 2 END")
        texts = connection.execute("SELECT count(*) FROM teacher_forced").fetchone()[0]
        tokens = connection.execute("SELECT sum(context_tokens) FROM step_cost").fetchone()[0]
    assert texts == 16
    again = RunPlan.model_validate(
        json.loads(RUNNER.invoke(app, [*arguments(place, "--json"), "--like", str(database)]).stdout)
    )
    assert again.seconds == pytest.approx(100 / 8 * found.branches)
    longer = Measured.of(database)
    points = [PointPlan(step=1, prompt_tokens=1000, prefilled_tokens=1000, recorded_tokens=2)]
    assert longer.taken["exact"] == 1.5  # its own half, then the texts
    assert {share for label, share in longer.taken.items() if label != "exact"} == {1.0}
    assert longer.other_seconds == pytest.approx((100 - (6 * 4 + 2 * 6) * 0.01) / tokens)
    assert longer.seconds(["exact", "dense"], points, 8) == pytest.approx((12 + 8) * 0.01 + 2000 * longer.other_seconds)
    failed = RUNNER.invoke(app, arguments(place, "--like", str(tmp_path / "missing.sqlite")))
    assert isinstance(failed.exception, UsageError)
