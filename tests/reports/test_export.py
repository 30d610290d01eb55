"""Exports come back as they went in, in each format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decode_times import decode_time

from leadline.bench.records import DecodeSpec
from leadline.bench.storage import save
from leadline.database import Results
from leadline.reports.export import KEY, Name, columns, rows, to_csv, to_json, to_parquet
from reports import factory

TABLES = get_args(Name)
COUNTS = {"results": 30, "sessions": 3, "scanners": 5, "branch_points": 6, "teacher_forced": 60, "costs": 30,
          "decode_times": 2}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "r.sqlite"
    text = 'quote " comma , line\nbreak'
    factory.fill(path, changes=lambda label, index, step: {"text": text})
    with Results.open(path) as results:
        number = results.start_measurement("decode", DecodeSpec(), factory.environment(), "leadline bench decode")
        save(results, number, [decode_time(), decode_time("landmarks")])
    return path


def read(path: Path, table: Name) -> list[dict[str, object]]:
    with Results.open(path, read_only=True) as results:
        return rows(results, table, 1)


@pytest.mark.parametrize("table", TABLES)
def test_every_format_holds_the_same_rows(path: Path, table: Name) -> None:
    found = read(path, table)
    assert len(found) == COUNTS[table]
    assert json.loads(to_json(found)) == found
    assert list(found[0]) == columns(table)

    back = list(csv.DictReader(io.StringIO(to_csv(table, found))))
    parquet = pq.read_table(pa.BufferReader(to_parquet(table, found)))
    assert parquet.column_names == columns(table)
    for row, flat, typed in zip(found, back, parquet.to_pylist(), strict=True):
        for name, value in row.items():
            text = "" if value is None else value if isinstance(value, str) else None
            assert flat[name] == text if text is not None else json.loads(flat[name]) == value
            same = typed[name] == value or (isinstance(value, list | dict) and json.loads(typed[name]) == value)
            assert same, (name, value, typed[name])


def test_types_do_not_depend_on_the_rows(path: Path) -> None:
    found = read(path, "costs")
    full = pq.read_schema(pa.BufferReader(to_parquet("costs", found)))
    none = pq.read_schema(pa.BufferReader(to_parquet("costs", [])))
    assert full.equals(none)
    assert full.field("gpu_ms").type == pa.float64()
    assert full.field("layer_bits").type == pa.list_(pa.float64())
    assert full.field("scan_planned_bytes").type == pa.int64()
    results = pq.read_schema(pa.BufferReader(to_parquet("results", [])))
    assert results.field("exact_match").type == pa.bool_()
    assert results.field("tokens").type == pa.list_(pa.int64())


def test_rows_are_keyed_by_hashes_and_not_by_internal_numbers(path: Path) -> None:
    found = read(path, "teacher_forced")
    keys = {tuple(row[name] for name in (*KEY, "text")) for row in found}
    assert len(keys) == len(found)
    assert "step_result_id" not in found[0]
    assert {row["scanner"] for row in found} == set(factory.LABELS)


def test_another_run_has_no_rows(path: Path) -> None:
    with Results.open(path, read_only=True) as results:
        assert rows(results, "results", 2) == []
        assert len(rows(results, "results", None)) == 30


def test_a_file_without_the_table_has_no_rows(tmp_path: Path) -> None:
    old = tmp_path / "old.sqlite"
    old.write_bytes((Path(__file__).resolve().parents[1] / "databases" / "v1.sqlite").read_bytes())
    with Results.open(old, read_only=True) as results:
        assert rows(results, "decode_times") == []
        assert len(rows(results, "results")) == 5
