"""The flat table holds the figures of the report, once each, in both formats."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leadline.database import Results
from leadline.reports.contents import Contents, gather
from leadline.reports.flat import Figure, flat, to_csv, to_parquet
from reports import factory


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    path = tmp_path_factory.mktemp("flat") / "r.sqlite"

    def changes(label: str, index: int, step: int) -> dict[str, object]:
        return {"gpu_ms": 64.0 * (2 if label == "sparq:r=16" else 1 + 0.1 * index), "timer": "profiler"}

    factory.fill(path, changes=changes)
    with Results.open(path, read_only=True) as results:
        return gather(results)


def one(figures: list[Figure], **wanted: object) -> Figure:
    [found] = [each for each in figures if all(getattr(each, key) == value for key, value in wanted.items())]
    return found


def test_the_rows_are_the_reports_figures(contents: Contents) -> None:
    figures = flat(contents)
    mean = one(figures, kind="mean", metric="agreement", scanner="fathom:budget=48")
    assert (mean.units, mean.steps, mean.value) == (3, 6, pytest.approx(2 / 3))
    pair = one(figures, kind="difference", metric="agreement", scanner="fathom:budget=48")
    [declared] = [each for each in contents.comparisons.comparisons if each.metric == "agreement" and each.declared]
    assert (pair.baseline, pair.family, pair.verdict) == ("sparq:r=16", "declared", declared.verdict)
    assert (pair.value, pair.low, pair.p) == (declared.difference.difference, declared.difference.low, declared.p)
    ratio = one(figures, kind="ratio", metric="gpu_ms", scanner="fathom:budget=48")
    assert ratio.value == pytest.approx((0.5 * 0.55 * 0.6) ** (1 / 3))
    cost = one(figures, kind="cost", metric="bits_per_token", scanner="sparq:r=16")
    assert cost.value == 34.0
    keys = [(each.kind, each.metric, each.scanner, each.baseline) for each in figures]
    assert len(set(keys)) == len(keys)


def test_both_formats_hold_the_same_rows(contents: Contents) -> None:
    figures = flat(contents)
    rows = list(csv.DictReader(io.StringIO(to_csv(figures))))
    table = pq.read_table(pa.BufferReader(to_parquet(figures)))
    assert len(rows) == table.num_rows == len(figures)
    for row, typed, figure in zip(rows, table.to_pylist(), figures, strict=True):
        assert typed == vars(figure)
        assert row == {key: "" if value is None else str(value) for key, value in vars(figure).items()}
    none = pq.read_schema(pa.BufferReader(to_parquet([])))
    assert none.equals(table.schema)
    assert none.field("value").type == pa.float64()
