"""The replay end to end on a tiny model: what is stored, that resuming changes nothing, that failures stay small."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_replay

import leadline.agreement
from leadline.config import RunSpec
from leadline.database import Results
from leadline.engine import Replay
from leadline.errors import UsageError
from leadline.model import LoadedModel
from leadline.prefilled import Prefilled
from leadline.records import SEEN
from leadline.replaying import Part
from leadline.scanners.calibration import Calibration

TIMING = {
    "wall_ms",
    "cpu_seconds",
    "index_build_seconds",
    "gpu_ms",
    "gpu_stage_ms",
    "created",
    "environment_id",
    "id",
    "step_result_id",
}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_replay.model()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, loaded: LoadedModel) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    tiny_replay.write_sessions(folder / "sessions")
    tiny_replay.write_calibration(folder / "calibration.safetensors", loaded)
    return folder


def wanted(place: Path, **changes: Any) -> RunSpec:
    return tiny_replay.spec(place / "sessions", place / "calibration.safetensors").model_copy(update=changes)


def figures(database: Path) -> list[dict[str, Any]]:
    """Every result with its cost and teacher-forced rows, in a fixed order, timing left out."""
    with sqlite3.connect(database) as connection:
        connection.row_factory = sqlite3.Row
        query = (
            "SELECT r.*, c.* FROM step_result r JOIN step_cost c ON c.step_result_id = r.id "
            "ORDER BY session_sha256, step, scanner_sha256"
        )
        found = []
        for row in connection.execute(query):
            forced = connection.execute(
                "SELECT * FROM teacher_forced WHERE step_result_id = ? ORDER BY text", (row["id"],)
            ).fetchall()
            found.append(
                {k: row[k] for k in row.keys() if k not in TIMING}  # noqa: SIM118 - sqlite3.Row iterates over values
                | {"forced": [{k: f[k] for k in f.keys() if k not in TIMING} for f in forced]}  # noqa: SIM118
            )
        return found


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(database) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture(scope="module")
def database(place: Path, loaded: LoadedModel) -> Path:
    path = place / "whole.sqlite"
    run, outcome = tiny_replay.run(wanted(place), path, loaded)
    assert (run, outcome.failed, outcome.kept) == (1, 0, 0)
    assert outcome.written == 2 * 2 * (3 + len(tiny_replay.SCANNERS))
    return path


def test_every_branch_is_stored_with_planned_equal_to_realised(database: Path) -> None:
    rows = figures(database)
    assert len(rows) == 2 * 2 * (3 + len(tiny_replay.SCANNERS))
    for row in rows:
        assert row["scan_planned_bytes"] == row["scan_realised_bytes"]
        assert row["decode_steps"] == len(json.loads(row["margins"])) > 0
        assert {f["text"] for f in row["forced"]} == {"reference", "recorded"}
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT DISTINCT gpu_ms, timer FROM step_cost").fetchall() == [(None, "none")]


def test_reference_agrees_with_itself_and_dense_has_no_divergence_from_itself(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            "SELECT s.role, r.agreement, r.exact_match, r.dense_agreement, t.kl_exact, t.kl_dense, t.extra_nats "
            "FROM step_result r "
            "JOIN scanner s ON s.sha256 = r.scanner_sha256 JOIN teacher_forced t ON t.step_result_id = r.id"
        ).fetchall()
    for role, agreement, exact, dense_agreement, kl_exact, kl_dense, extra in found:
        if role == "reference":
            assert (agreement, exact, kl_exact) == (1.0, 1, 0.0)
        if role == "dense":
            assert (dense_agreement, kl_dense, extra) == (1.0, 0.0, 0.0)
        if role == "scanner":
            assert kl_exact > 0


def test_running_again_redoes_nothing(database: Path, place: Path, loaded: LoadedModel) -> None:
    before = figures(database)
    run, outcome = tiny_replay.run(wanted(place), database, loaded)
    assert (run, outcome.written, outcome.kept) == (1, 0, len(before))
    assert figures(database) == before


def test_a_scanner_added_later_only_adds_its_rows(
    database: Path, place: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    copy = tmp_path / "more.sqlite"
    with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    before = figures(copy)
    run, outcome = tiny_replay.run(wanted(place, scanners=("quest",)), copy, loaded)
    assert (run, outcome.written) == (1, 4)
    kept = [row for row in figures(copy) if row["scanner_sha256"] in {r["scanner_sha256"] for r in before}]
    assert kept == before
    with Results.open(copy, read_only=True) as results:
        assert results.spec(run).scanners == (*tiny_replay.SCANNERS, "quest")


def test_a_missing_middle_is_filled_in_as_it_was(
    database: Path, place: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    copy = tmp_path / "holes.sqlite"
    with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    before = figures(copy)
    with sqlite3.connect(copy) as connection:
        lost = [row[0] for row in connection.execute("SELECT id FROM step_result")]
        random.Random(3).shuffle(lost)
        for identity in lost[: len(lost) // 2]:
            connection.execute("DELETE FROM teacher_forced WHERE step_result_id = ?", (identity,))
            connection.execute("DELETE FROM step_cost WHERE step_result_id = ?", (identity,))
            connection.execute("DELETE FROM step_result WHERE id = ?", (identity,))
    tiny_replay.run(wanted(place), copy, loaded)
    assert figures(copy) == before


@pytest.mark.slow
def test_killed_at_ten_random_moments_it_ends_in_the_same_tables(database: Path, place: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed.sqlite"
    driver = Path(tiny_replay.__file__)
    command = [
        sys.executable,
        str(driver),
        str(place / "sessions"),
        str(killed),
        str(place / "calibration.safetensors"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(driver.parent)}
    rng = random.Random(11)
    kills = 0
    stored: list[int] = []
    for _ in range(10):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        target = (stored[-1] if stored else 0) + rng.randint(0, 4)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline and count(killed) <= target:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        stored.append(count(killed))
    assert kills >= 5, "the replay ended before it could be killed; make it longer"
    assert stored == sorted(stored), "a kill lost stored branches"
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reference = tmp_path / "reference.sqlite"
    command[3] = str(reference)
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert figures(killed) == figures(reference)


def test_two_processes_share_a_run(database: Path, place: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    """At the same time, into one file that neither has made: every branch once, complete when nothing is missing."""
    shared, driver = tmp_path / "shared.sqlite", Path(tiny_replay.__file__)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(driver.parent)}
    command = [sys.executable, str(driver), place / "sessions", shared, place / "calibration.safetensors"]
    processes = [subprocess.Popen([*command, f"{part}/2"], env=environment) for part in (1, 2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]

    def decoded(path: Path) -> set[tuple[object, ...]]:
        names = ("session_sha256", "step", "scanner_sha256", "tokens")
        return {tuple(row[name] for name in names) for row in figures(path)}

    assert decoded(shared) == decoded(database)
    with Results.open(shared, read_only=True) as results:
        assert results.runs()[0].status == "interrupted"
    _, outcome = tiny_replay.run(wanted(place), shared, loaded)
    assert (outcome.written, outcome.kept) == (0, len(figures(database)))
    with Results.open(shared, read_only=True) as results:
        assert [summary.status for summary in results.runs()] == ["complete"]


def test_a_part_takes_its_share_of_the_sessions(place: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    sessions = [
        tiny_replay.run(wanted(place), tmp_path / f"{i}.sqlite", loaded, Part(i, 2))[1].sessions for i in (1, 2)
    ]
    assert sum(sessions) == tiny_replay.run(wanted(place), tmp_path / "whole.sqlite", loaded)[1].sessions
    assert min(sessions) > 0
    for text in ("0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(UsageError, match="--part"):
            Part.parse(text)
    with pytest.raises(UsageError, match="--limit"):
        tiny_replay.run(wanted(place, limit=1), tmp_path / "x.sqlite", loaded, Part(1, 2))


def count(database: Path) -> int:
    """Stored branches; 0 while the database does not exist or is being made."""
    if not database.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM step_result").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_a_failing_plugin_costs_its_own_branches_only(place: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text(
        "from typing import ClassVar\n"
        "from leadline.scanners.sparq import Sparq\n\n\n"
        "class Broken(Sparq):\n"
        '    name: ClassVar[str] = "broken"\n\n'
        "    def score(self, query, reads, state):\n"
        '        raise ValueError("no scores today")\n'
    )
    database = tmp_path / "broken.sqlite"
    _, outcome = tiny_replay.run(wanted(place, scanners=(f"{plugin}:Broken", "landmarks")), database, loaded)
    assert (outcome.failed, outcome.written) == (4, 2 * 2 * 4)
    with sqlite3.connect(database) as connection:
        reasons = [row[0] for row in connection.execute("SELECT reason FROM exclusion WHERE reason LIKE 'failed:%'")]
    assert len(reasons) == 4
    assert all("broken" in reason and "no scores today" in reason for reason in reasons)


def test_nan_scores_are_an_error_not_a_selection(place: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    plugin = tmp_path / "nan.py"
    plugin.write_text(
        "from typing import ClassVar\n"
        "from leadline.scanners.sparq import Sparq\n\n\n"
        "class Nan(Sparq):\n"
        '    name: ClassVar[str] = "nan"\n\n'
        "    def score(self, query, reads, state):\n"
        "        return super().score(query, reads, state) * float('nan')\n"
    )
    _, outcome = tiny_replay.run(wanted(place, scanners=(f"{plugin}:Nan",)), tmp_path / "nan.sqlite", loaded)
    assert outcome.failed == 4


def test_a_calibration_is_known_by_its_content(
    database: Path, place: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes((place / "calibration.safetensors").read_bytes())
    run, outcome = tiny_replay.run(wanted(place, calibration=str(moved)), database, loaded)
    assert (run, outcome.written) == (1, 0)
    with Results.open(database, read_only=True) as results:
        stored = results.spec(run)
    tiny_replay.write_calibration(moved, tiny_replay.model(seed=5))
    with pytest.raises(UsageError, match="not the one the run was made with"):
        tiny_replay.run(stored.model_copy(update={"calibration": str(moved)}), database, loaded)


def test_a_session_that_the_calibration_was_made_on_is_marked(
    place: Path, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Calibration, "made_on", lambda _, name: name == "session-1")
    tiny_replay.run(wanted(place, scanners=("sparq:r=16",), limit=2), tmp_path / "seen.sqlite", loaded)
    notes = dict(rows(tmp_path / "seen.sqlite", "SELECT id, notes FROM session"))
    assert {name: list(SEEN) in json.loads(text) for name, text in notes.items()} == {
        "session-0": False,
        "session-1": True,
    }


def test_a_calibration_of_another_model_is_refused(place: Path, tmp_path: Path) -> None:
    other = tiny_replay.model(seed=1)
    with pytest.raises(UsageError, match="another model"):
        tiny_replay.run(wanted(place), tmp_path / "other.sqlite", other)


def test_without_a_calibration_the_command_to_make_one_is_named(
    place: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="leadline calibrate tiny"):
        tiny_replay.run(wanted(place, calibration=None), tmp_path / "none.sqlite", loaded)
    _, outcome = tiny_replay.run(
        wanted(place, calibration=None, scanners=("sparq:r=16",)), tmp_path / "none.sqlite", loaded
    )
    assert outcome.failed == 0


def test_redaction_reaches_what_is_stored(place: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    folder = tiny_replay.write_sessions(tmp_path / "sessions", count=1)
    record = json.loads((folder / "session-0.json").read_text())
    secret = "sk-" + "Abcd1234" * 5
    record["messages"][1]["content"] = f"my key is {secret} " + record["messages"][1]["content"]
    record["messages"][-2]["content"] = f"I use {secret}."
    (folder / "session-0.json").write_text(json.dumps(record))
    for redact, found in ((False, True), (True, False)):
        database = tmp_path / f"{redact}.sqlite"
        spec = wanted(place, sessions=(str(folder),), scanners=("quest",), redact=redact)
        tiny_replay.run(spec, database, loaded)
        with sqlite3.connect(database) as connection:
            texts = connection.execute("SELECT recorded_text FROM branch_point").fetchall()
        assert any(secret in text for (text,) in texts) is found


def test_sources_that_count_as_one_do_so_from_then_on(place: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    database = tmp_path / "x.sqlite"

    def sources(**changes: Any) -> list[str]:
        run, _ = tiny_replay.run(wanted(place, scanners=("quest",), **changes), database, loaded)
        with sqlite3.connect(database) as connection:
            found = connection.execute("SELECT source FROM session WHERE run_id = ? ORDER BY position", (run,))
            return [source for (source,) in found]

    first, second = sources()
    assert first != second
    assert sources(clusters=((second, first),)) == [second, second]
    with pytest.raises(ValueError, match="twice"):
        RunSpec(sessions=("x",), clusters=(("a", "b"), ("b", "c")))


def test_excerpts_of_prompts_are_as_long_as_asked_for(
    database: Path, place: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    """And are no part of what identifies a run: it goes on where one with other excerpts stopped."""
    copy = tmp_path / "copy.sqlite"
    tiny_replay.run(wanted(place, scanners=("quest",), excerpt=0), copy, loaded)
    run, outcome = tiny_replay.run(wanted(place, scanners=("quest",), excerpt=10), copy, loaded)
    assert (run, outcome.written) == (1, 0)

    def excerpts(path: Path) -> set[int]:
        with sqlite3.connect(path) as connection:
            return {len(text) for (text,) in connection.execute("SELECT prompt_tail FROM branch_point")}

    assert excerpts(copy) == {0}
    assert all(300 < length <= 1200 for length in excerpts(database))
    tiny_replay.run(wanted(place, scanners=("quest",), excerpt=10, limit=1), tmp_path / "ten.sqlite", loaded)
    assert excerpts(tmp_path / "ten.sqlite") == {10}


def test_a_point_where_dense_attention_repeats_is_set_aside_and_stays_so(
    place: Path, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four points, those whose dense step holds the first's tokens count as repeating here."""
    common = {"scanners": ("fathom:budget=48", "sparq:r=16"), "noise_chunk": 0}
    every, some = tmp_path / "every.sqlite", tmp_path / "some.sqlite"
    tiny_replay.run(wanted(place, **common), every, loaded)
    dense = "SELECT r.tokens, r.session_sha256, r.step FROM step_result r JOIN scanner s ON s.sha256 = r.scanner_sha256"
    points = rows(every, f"{dense} AND s.run_id = r.run_id WHERE s.role = 'dense' ORDER BY r.id")
    assert len({tokens for tokens, *_ in points}) == len(points) == 4
    broken = {(session, step) for _, session, step in points[:1]}
    looked_at: list[tuple[int, ...]] = []

    def is_repeating(tokens: Sequence[int]) -> bool:
        looked_at.append(tuple(tokens))
        return json.dumps(list(tokens)) == json.dumps(json.loads(points[0][0]))

    monkeypatch.setattr(leadline.agreement, "is_repeating", is_repeating)
    _, outcome = tiny_replay.run(wanted(place, **common, exclude_degenerate=True), some, loaded)
    assert (outcome.written, outcome.failed) == (3 * 4, 0)
    kept = "SELECT session_sha256, step FROM {} ORDER BY 1, 2"
    expected = [point for point in rows(every, kept.format("branch_point")) if point not in broken]
    assert rows(some, kept.format("branch_point")) == expected
    left_out = rows(some, "SELECT session_sha256, step, reason FROM exclusion WHERE reason LIKE 'degenerate%'")
    assert left_out == [(*next(iter(broken)), "degenerate: dense attention repeats itself here")]
    looked_at.clear()
    _, again = tiny_replay.run(wanted(place, **common, exclude_degenerate=True), some, loaded)
    assert (again.written, again.kept) == (0, 12)
    assert not looked_at  # nothing is decoded to be set aside once more
    assert rows(some, "SELECT protocol_sha256 FROM run") != rows(every, "SELECT protocol_sha256 FROM run")


def test_steps_left_out_are_listed_with_the_reason(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        reasons = [row[0] for row in connection.execute("SELECT reason FROM exclusion")]
    assert any("shorter than 8k = 320" in reason for reason in reasons)


@pytest.mark.parametrize("fails", [False, True], ids=["each ends well", "the first fails"])
def test_a_session_s_memory_is_free_before_the_next_begins(
    fails: bool, place: Path, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes on a GPU or pinned on the host: they may not wait for the garbage collector."""
    made: list[weakref.ref[Any]] = []
    left: list[int] = []
    prepare, replay_one, decode = Prefilled.__init__, Replay._session, Prefilled.branch

    def remembered(self: Prefilled, *arguments: Any, **options: Any) -> None:
        prepare(self, *arguments, **options)
        made.extend(weakref.ref(held) for held in (self, self.rows, self.stores))

    def counted(self: Replay, session: Any) -> None:
        left.append(sum(one() is not None for one in made))
        replay_one(self, session)

    def failing(self: Prefilled, *arguments: Any) -> Any:
        found = decode(self, *arguments)
        if fails and len(left) == 1:
            raise RuntimeError("out of memory")
        return found

    monkeypatch.setattr(Prefilled, "__init__", remembered)
    monkeypatch.setattr(Replay, "_session", counted)
    monkeypatch.setattr(Prefilled, "branch", failing)
    gc.collect()
    gc.disable()
    try:
        _, outcome = tiny_replay.run(wanted(place), tmp_path / "two.sqlite", loaded)
    finally:
        gc.enable()
    assert outcome.failed == int(fails)
    assert left == [0, 0]
    assert len(made) == 2 * 2 * 3  # two sessions in chunks of two sizes
