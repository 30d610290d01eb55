"""The report's files: one page that loads nothing, hostile text as text, the same tables in HTML and Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from reports.page import ADDRESSES, Page

from leadline.database import Results
from leadline.records import Exclusion
from leadline.reports.contents import Contents, gather
from leadline.reports.html import html
from leadline.reports.json_report import report_json
from leadline.reports.markdown import cell, fence, markdown
from leadline.reports.tables import background, tables
from leadline.reports.words import visible
from reports import factory

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> </pre></details>{{ 7*7 }} '\"><a href='http://evil.example'>"
    " \x1b[31mred \u202egnp.exe $x$ | ``` ~~~ ````text\n# heading & more"
)


def made(path: Path) -> Contents:
    with Results.open(path, read_only=True) as results:
        return gather(results)


@pytest.fixture
def hostile(tmp_path: Path) -> Contents:
    session = factory.session(0, HOSTILE, id=HOSTILE, path=HOSTILE, notes=((HOSTILE, HOSTILE, HOSTILE),))
    factory.fill(
        tmp_path / "r.sqlite",
        sessions=[session, factory.session(1)],
        changes=lambda label, index, step: {"text": HOSTILE},
        point_changes={"recorded_text": HOSTILE, "prompt_tail": HOSTILE},
        exclusions=[Exclusion(path=HOSTILE, session_sha256=None, step=3, reason=HOSTILE)],
        run_model=factory.model(id=HOSTILE),
        run_environment=factory.environment(cpu=HOSTILE, packages={HOSTILE: HOSTILE}),
        command=HOSTILE,
    )
    return made(tmp_path / "r.sqlite")


def test_hostile_text_is_text_in_html(hostile: Contents) -> None:
    text = html(hostile)
    page = Page(text)
    assert page.open == []
    assert not {"img", "iframe", "object", "embed", "link", "base", "form"} & set(page.tags)
    assert (page.tags.count("script"), page.tags.count("input")) == (1, 1)
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert page.all_text().count("<script>alert(1)</script>") >= 20
    assert "49" not in "".join(data for tag, data in page.text if tag == "pre")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)
    assert "<U+202E>" in page.all_text()


def test_hostile_text_is_text_in_markdown(hostile: Contents) -> None:
    text = markdown(hostile)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)
    outside, closing = [], None
    for line in text.split("\n"):
        if closing is None and (opened := re.match(r"(`{3,})\w+$", line)):
            closing = opened[1]
        elif closing is not None and line == closing:
            closing = None
        elif closing is None:
            outside.append(line)
    assert closing is None
    tags = set(re.findall(r"<[^>]*>", "\n".join(outside)))
    assert tags == {"<details>", "</details>", "<summary>", "</summary>"}
    rows = [line for line in outside if line.startswith("| ")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in rows]
    # Every table keeps the width of its head: no cell breaks out.
    heads = [index for index, line in enumerate(rows) if "| ---" in line]
    for number, head in enumerate(heads):
        end = heads[number + 1] - 1 if number + 1 < len(heads) else len(rows)
        assert len(set(widths[head - 1 : end])) == 1


def digest_of(tag: str, text: str) -> str:
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()


def test_the_page_loads_nothing_and_its_policy_allows_nothing_else(tmp_path: Path) -> None:
    factory.fill(tmp_path / "r.sqlite")
    text = html(made(tmp_path / "r.sqlite"))
    page = Page(text)
    addresses = [value for _, name, value in page.attributes if name in ADDRESSES]
    assert addresses
    assert all(re.fullmatch(r"#[\w-]+", value) for value in addresses)
    assert not re.findall(r"url\((?!#)|@import|https?:", text)
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value)
    assert policy == (
        f"default-src 'none'; style-src '{digest_of('style', text)}'; script-src '{digest_of('script', text)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in addresses} <= set(ids)


def test_html_and_markdown_print_the_same_tables(tmp_path: Path) -> None:
    factory.fill(tmp_path / "r.sqlite", exclusions=[Exclusion(path="a", session_sha256=None, step=1, reason="short")])
    contents = made(tmp_path / "r.sqlite")
    expected = [
        [list(map(visible, row)) for row in (table.columns, *table.rows)]
        for table in tables(contents) + background(contents)
        if table.rows
    ]
    assert Page(html(contents)).tables == expected
    lines = [line for line in markdown(contents).split("\n") if line.startswith("| ") and "| ---" not in line]
    assert lines == ["| " + " | ".join(map(cell, row)) + " |" for table in expected for row in table]
    assert [table.id for table in tables(contents)] == [
        "agreement",
        "difference-agreement",
        "floor",
        "checks",
        "outcomes",
        "teacher-forced",
        "single-tokens",
        "difference-kl-exact-reference",
        "difference-kl-dense-reference",
        "difference-kl-dense-recorded",
        "divergence",
        "bytes",
        "layers",
        "time",
        "stages",
        "ratios",
        "sessions",
        "exclusions",
    ]


def test_the_sql_beside_a_table_runs_in_any_client(tmp_path: Path) -> None:
    import sqlite3

    factory.fill(tmp_path / "r.sqlite")
    contents = made(tmp_path / "r.sqlite")
    baseline = next(f.line.sha256 for f in contents.scanners if f.line.label == contents.spec.baseline)
    with sqlite3.connect(tmp_path / "r.sqlite") as raw:
        for table in tables(contents) + background(contents):
            for query in table.queries:
                found = raw.execute(query.sql, {"run": 1, "baseline": baseline}).fetchall()
                assert found or table.id in ("exclusions", "stages"), query.name


def test_json_holds_the_numbers(tmp_path: Path) -> None:
    factory.fill(tmp_path / "r.sqlite")
    contents = made(tmp_path / "r.sqlite")
    found = json.loads(report_json(contents))
    sparq = next(f for f in found["scanners"] if f["line"]["label"] == "sparq:r=16")
    assert sparq["agreement"]["mean"] == pytest.approx(0.5)
    assert found["comparisons"]["comparisons"][0]["difference"]["n"] == 3
    assert found["spec"]["baseline"] == "sparq:r=16"
    assert not {"steps", "texts"} & set(found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sessions": 1}, "n=1"),
        ({"sessions": 1, "labels": ("exact",)}, "No declared comparison can be made"),
        ({"labels": ("exact", "dense", "fathom:budget=48")}, "the baseline sparq:r=16 is not in this run"),
        ({"finish": False}, "still running"),
        ({"agreement": lambda label, index, step: 1.0}, "all equal"),
        ({"sessions": 0}, "0 sessions"),
        ({"labels": ("exact", "sparq:r=16", "quest")}, "No noise floor was run"),
        ({"steps": ()}, "0 branch points"),
    ],
)
def test_a_report_of_little_says_so_and_never_nan(tmp_path: Path, options: dict[str, object], says: str) -> None:
    factory.fill(tmp_path / "r.sqlite", **options)  # type: ignore[arg-type]
    contents = made(tmp_path / "r.sqlite")
    for text in (Page(html(contents)).all_text(), markdown(contents)):
        assert says in text.replace("\\", "")
        assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)
    json.loads(report_json(contents))


def test_gpu_figures_stand_in_their_own_column_and_their_absence_is_explained(tmp_path: Path) -> None:
    factory.fill(tmp_path / "cpu.sqlite", sessions=1)
    gpu = factory.environment(gpu="a test GPU", driver="1")
    timed = {"gpu_ms": 640.0, "timer": "profiler"}
    factory.fill(tmp_path / "gpu.sqlite", sessions=1, run_environment=gpu, changes=lambda label, index, step: timed)
    shown = {}
    for name in ("cpu", "gpu"):
        table = next(table for table in tables(made(tmp_path / f"{name}.sqlite")) if table.id == "time")
        shown[name] = (table.rows[0][table.columns.index("GPU ms per token")], table.notes[0])
    assert shown["cpu"][0] == "—"
    assert "no GPU in this run" in shown["cpu"][1]
    assert shown["gpu"][0] == "10"


def test_markdown_cells_and_fences() -> None:
    assert cell("0.590 [0.4, 0.7]") == "0.590 \\[0.4, 0.7\\]"
    assert cell("-0.1") == "-0.1"
    assert cell("1. x") == "1\\. x"
    assert cell("# x") == "\\# x"
    assert cell("a|b\nc") == "a\\|b c"
    assert cell("see http://x.example") == "see http\\://x.example"
    assert fence("a ```` b").startswith("`````text\n")
