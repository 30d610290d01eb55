"""Data sets: Parquet and Arrow files and hub ids, read row by row through `datasets`, with filters on columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from session_forms import V1, lines, v1_files
from session_logs import SCHEMA, chat, tar_gz

from leadline.errors import UsageError
from leadline.sessions.directory import discover, iter_sessions
from leadline.sessions.schema import Session
from leadline.sessions.tables import keeps, parse_filters


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(number: int) -> list[dict[str, Any]]:
    """Rows in the shape of published trajectories: every key there, with nulls, arguments as JSON text."""
    made = []
    for row in range(number):
        messages = [
            {"role": None, "content": None, "name": None, "tool_call_id": None, "tool_calls": None} | message
            for message in chat(row + 1, f"Task {row}.")
        ]
        about = {"trajectory_id": f"t{row}", "instance_id": f"i{row // 2}", "repo": "a/b", "exit_status": "submit"}
        tools = [json.dumps(SCHEMA)]
        scores = {"resolved": row % 2, "gen_tests_correct": None, "pred_passes_gen_tests": 0.5}
        made.append({**about, "trajectory": messages, "tools": tools, "model_patch": None, **scores})
    return made


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "train-00000-of-00001.parquet"
    path.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(rows(6)), path, row_group_size=2)
    return path


def sizes(found: Iterator[Any]) -> list[tuple[str, int]]:
    return [(item.id, len(item.steps)) for item in found if isinstance(item, Session)]


def test_parquet_rows_are_sessions(parquet: Path, tmp_path: Path) -> None:
    found = discover(parquet.parent)
    assert found.skipped == ()
    assert sizes(iter(found.sessions)) == [(f"train-00000-of-00001#row-{n}", n) for n in range(1, 7)]
    first = found.sessions[0]
    assert (first.format, first.path) == ("chat-openai-tools", f"{parquet}#row-1")
    (tmp_path / "c.json").write_text(json.dumps({"messages": chat(1, "Task 0."), "tools": [SCHEMA]}))
    assert first.segments == discover(tmp_path / "c.json").sessions[0].segments


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (["resolved=1"], [2, 4, 6]),
        (["resolved=1", "instance_id=i1"], [4]),
        (["trajectory_id=t4"], [5]),
        (["model_patch=null"], [1, 2, 3, 4, 5, 6]),
        (["pred_passes_gen_tests=0.50"], [1, 2, 3, 4, 5, 6]),
        (["resolved=2"], []),
    ],
)
def test_filters_keep_rows(parquet: Path, texts: list[str], kept: list[int]) -> None:
    found = discover(parquet, filters=parse_filters(texts))
    assert [len(session.steps) for session in found.sessions] == kept
    left = [item for item in found.skipped if item.kind == "filtered"]
    assert [item.reason.split(" record")[0] for item in left] == ([f"{6 - len(kept)} of 6"] if len(kept) < 6 else [])


def test_an_unknown_column_is_said(parquet: Path) -> None:
    (item,) = discover(parquet, filters={"reslved": "1"}).skipped
    assert "there is no column reslved (columns: exit_status, gen_tests_correct, instance_id" in item.reason


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_arrow_files(tmp_path: Path, kind: str) -> None:
    table = pa.Table.from_pylist(rows(2))
    path = tmp_path / "data-00000-of-00001.arrow"
    writer = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, writer(sink, table.schema) as out:
        out.write_table(table)
    assert [len(session.steps) for session in discover(path).sessions] == [1, 2]


def test_broken_and_archived_tables_are_listed(parquet: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.parquet").write_bytes(parquet.read_bytes()[:300])
    (broken / "b.tar.gz").write_bytes(tar_gz({"x.parquet": parquet.read_bytes()}))
    found = discover(broken)
    assert found.sessions == ()
    assert [item.kind for item in found.skipped] == ["broken", "unsupported"]
    assert found.skipped[0].reason.startswith("broken parquet file: ")
    assert "unpack the archive" in found.skipped[1].reason


def test_hub_data_sets_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    drawn: list[int] = []

    def load(name: str, **options: Any) -> Iterator[dict[str, Any]]:
        asked.append((name, options))
        for number, row in enumerate(rows(50)):
            drawn.append(number)
            yield row

    monkeypatch.setattr(datasets, "load_dataset", load)
    walk = iter_sessions("hf:nebius/SWE-rebench-openhands-trajectories", filters={"resolved": "1"})
    first = next(walk)
    assert isinstance(first, Session)
    assert first.id == "hf:nebius/SWE-rebench-openhands-trajectories#row-2"
    assert drawn == [0, 1], "rows are taken one at a time"
    next(iter_sessions(Path("hf:a/b:validation")))
    assert asked == [
        ("nebius/SWE-rebench-openhands-trajectories", {"split": "train", "streaming": True}),
        ("a/b", {"split": "validation", "streaming": True}),
    ]


def test_hub_errors_are_usage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, **_: Any) -> None:
        raise FileNotFoundError(f"no data set {name}\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(UsageError, match="hf:a/b: FileNotFoundError: no data set a/b second line"):
        discover("hf:a/b")
    with pytest.raises(UsageError, match="or hf:a/b for a data set"):
        discover("a/b")


def test_filters_on_lines_documents_and_events(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(lines([{"messages": chat(n + 1), "ok": n == 1} for n in range(3)]))
    (tmp_path / "d.json").write_text(json.dumps({"messages": chat(5), "ok": True}))
    (tmp_path / "e.json").write_text(json.dumps({"messages": chat(6)}))
    (tmp_path / "v1.jsonl").write_bytes(lines(V1))
    for name, data in v1_files("s/events/").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    found = discover(tmp_path, filters={"ok": "true"})
    assert [(session.id, len(session.steps)) for session in found.sessions] == [("d", 5), ("r#line-2", 2)]
    assert {Path(item.path).name: item.kind for item in found.skipped} == dict.fromkeys(
        ["e.json", "r.jsonl", "v1.jsonl", "s"], "filtered"
    )


def test_filter_values() -> None:
    row = {"a": 1, "b": True, "c": "x=y", "d": None, "e": [1], "f": 0.5, "g": 10**400}
    for text in ("a=1", "a=1.0", "b=true", "b=True", "b=1", "c=x=y", "d=null", "e=[1]", "f=5e-1"):
        assert keeps(row, parse_filters([text])), text
    for text in ("a=2", "a=", "b=false", "c=x", "d=", "z=1", "f=x", "g=1"):
        assert not keeps(row, parse_filters([text])), text
    for text in ("a", "=1", ""):
        with pytest.raises(UsageError, match="column=value"):
            parse_filters([text])
