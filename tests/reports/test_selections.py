"""What the report says of the kernels: their selections against the references', and who was decoded without them."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from reports.page import Page

from leadline.database import Results
from leadline.database_selection import save_check
from leadline.graph.comparison import TOLERANCE, Flips
from leadline.reports.contents import Contents, gather
from leadline.reports.flat import flat, to_csv
from leadline.reports.html import html
from leadline.reports.json_report import report_json
from leadline.reports.markdown import markdown
from leadline.reports.summary import summary
from leadline.reports.table import Table
from leadline.reports.tables import tables
from reports import factory

FATHOM, SPARQ = "fathom:budget=48", "sparq:r=16"
TITLE = "Selections by kernels against the references"
GPU = factory.model(device="cuda:0", dtype="bfloat16")


def gathered(path: Path) -> Contents:
    with Results.open(path, read_only=True) as results:
        return gather(results)


def on_gpu(path: Path, flips: dict[str, list[Flips]], **options: Any) -> Contents:
    """A run on a GPU whose scanners were compared at the first branch point of as many sessions."""
    run = factory.fill(path, **({"run_model": GPU, "fused": factory.LABELS} | options))
    with Results.open(path) as results:
        for label, found in flips.items():
            for index, each in enumerate(found):
                key = (factory.session(index).sha256, 4, factory.sha(f"scanner {label}"))
                save_check(results, run, *key, each)
                save_check(results, run, *key, each)  # stored once
    return gathered(path)


def table(contents: Contents, id: str) -> Table:
    return next(each for each in tables(contents) if each.id == id)


@pytest.fixture
def explained(tmp_path: Path) -> Contents:
    flips = {FATHOM: [Flips(3000, 2, 0), Flips(5000, 4, 0)], SPARQ: [Flips(4000, 0, 0)], "dense": [Flips(0, 0, 0)]}
    return on_gpu(tmp_path / "r.sqlite", flips)


def test_comparisons_are_summed_by_scanner(explained: Contents) -> None:
    found = table(explained, "selections")
    assert found.title == TITLE
    assert found.columns == (
        "scanner", "comparisons", "selected tokens", "flipped", "flip rate", "unexplained", "tolerance",
    )  # fmt: skip
    assert found.rows == (
        (FATHOM, "2", "8,000", "6", "0.00075", "0", "1e-05"),
        (SPARQ, "1", "4,000", "0", "0", "0", "1e-05"),
    )
    assert TOLERANCE == 1e-5
    assert "rounding explains all." in found.notes[-1]
    assert not [sentence for sentence in summary(explained) if "kernels" in sentence]


def test_every_form_of_the_report_holds_them(explained: Contents) -> None:
    assert f"## {TITLE}\n" in markdown(explained)
    [cells] = [rows for rows in Page(html(explained)).tables if rows[0][-1] == "tolerance"]
    assert cells[1] == [FATHOM, "2", "8,000", "6", "0.00075", "0", "1e-05"]
    first = json.loads(report_json(explained))["selections"][0]
    assert (first["comparisons"], first["selected"], first["flipped"], first["unexplained"]) == (2, 8000, 6, 0)
    rows = [row for row in csv.DictReader(io.StringIO(to_csv(flat(explained)))) if row["kind"] == "selection"]
    of_fathom = {row["metric"]: float(row["value"]) for row in rows if row["scanner"] == FATHOM}
    assert of_fathom == {"selected": 8000, "flipped": 6, "flip_rate": 0.00075, "unexplained": 0}
    assert {row["setting"] for row in rows} == {"tolerance 1e-05"}


def test_what_rounding_does_not_explain_is_said_first(tmp_path: Path) -> None:
    contents = on_gpu(tmp_path / "r.sqlite", {FATHOM: [Flips(3000, 2, 3)], SPARQ: [Flips(3000, 1, 0)]})
    sentence = summary(contents)[1]
    assert sentence.startswith("The kernels are wrong under 1 scanner: rounding does not explain")
    assert f"({FATHOM} (3))" in sentence
    assert table(contents, "selections").notes[-1] == sentence
    for text in (html(contents), markdown(contents)):
        assert "The kernels are wrong under 1 scanner" in text


def test_without_comparisons_there_is_no_such_table(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    factory.fill(path, sessions=1)
    for missing in (False, True):  # nothing stored, then a file that an earlier version wrote
        if missing:
            with sqlite3.connect(path) as raw:
                raw.execute("DROP TABLE selection_check")
        contents = gathered(path)
        assert contents.selections == ()
        assert TITLE not in markdown(contents)
        assert 'id="selections"' not in html(contents)
        assert not [figure for figure in flat(contents) if figure.kind == "selection"]


def test_scanners_without_kernels_are_flagged_eager_on_a_gpu(tmp_path: Path) -> None:
    labels = (*factory.LABELS, "plugin")
    contents = on_gpu(tmp_path / "r.sqlite", {}, labels=labels, sessions=1)
    roles = {row[0]: row[1] for row in table(contents, "agreement").rows}
    assert roles == {label: factory.ROLES.get(label, "scanner") for label in factory.LABELS} | {
        "plugin": "scanner, eager"
    }
    for id in ("agreement", "time"):
        [note] = [note for note in table(contents, id).notes if note.startswith("Eager: ")]
        assert note.startswith("Eager: plugin went through")
        assert "no kernels for this scanner" in note
    assert any("Decoded by kernels" in note and "plugin" not in note for note in table(contents, "agreement").notes)
    assert "scanner, eager" in html(contents)
    [figure] = [figure for figure in flat(contents) if figure.kind == "eager"]
    assert (figure.scanner, figure.setting) == ("plugin", "there are no kernels for this scanner")
    assert [each["scanner"] for each in json.loads(report_json(contents))["eager"]] == [factory.sha("scanner plugin")]


def test_a_model_without_kernels_is_the_reason_for_all(tmp_path: Path) -> None:
    contents = on_gpu(tmp_path / "r.sqlite", {}, sessions=1, fused=())
    [note] = [note for note in table(contents, "agreement").notes if note.startswith("Eager: ")]
    assert all(label in note for label in factory.LABELS)
    assert "no kernels for a decode step of its model (LlamaForCausalLM)" in note


def test_on_a_cpu_nothing_is_eager(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    factory.fill(path, sessions=1)
    contents = gathered(path)
    assert contents.eager == ()
    assert "eager" not in markdown(contents).lower()
