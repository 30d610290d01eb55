"""A toy replay: a tiny random model, two short sessions, six scanners, from session files to stored branches."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_replay
import torch


@pytest.fixture
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_toy_replay(benchmark: Any, record: Callable[..., None], tmp_path: Path) -> None:
    loaded = tiny_replay.model()
    sessions = tiny_replay.write_sessions(tmp_path / "sessions", count=1)
    calibration = tiny_replay.write_calibration(tmp_path / "calibration.safetensors", loaded)
    wanted = tiny_replay.spec(sessions, calibration)
    numbers = itertools.count()

    def replay() -> Path:
        database = tmp_path / f"results-{next(numbers)}.sqlite"
        tiny_replay.run(wanted, database, loaded)
        return database

    database = benchmark.pedantic(replay, rounds=2, iterations=1)
    query = (
        "SELECT s.label, r.step, r.tokens, r.margins, c.scan_realised_bytes, c.scan_planned_bytes, c.row_bytes, "
        "c.tail_bytes, c.index_bytes FROM step_result r JOIN scanner s ON s.sha256 = r.scanner_sha256 "
        "JOIN step_cost c ON c.step_result_id = r.id ORDER BY s.label, r.step"
    )
    with sqlite3.connect(database) as connection:
        rows = connection.execute(query).fetchall()
    # A golden token is only worth gating on where rounding cannot flip it.
    assert min(margin for row in rows for margin in json.loads(row[3])) > 1e-4
    record(**{f"{row[0]} step {row[1]}": [json.loads(row[2]), *row[4:]] for row in rows})
