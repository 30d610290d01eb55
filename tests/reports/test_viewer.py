"""The session viewer's markup: fragments that stay, facts beside each branch, and what a page of limited size holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reports.page import Page

from leadline.database import Results
from leadline.reports.branches import by_session
from leadline.reports.contents import Contents, gather
from leadline.reports.html import html
from leadline.reports.viewer import embedded, pages, write_pages
from reports import factory

TEXTS = {
    "exact": "run pytest -q then commit",
    "fathom:budget=48": "run pytest -q then stop",
    "sparq:r=16": "run ruff then commit",
}


def changes(label: str, index: int, step: int) -> dict[str, object]:
    found: dict[str, object] = {"text": TEXTS.get(label, TEXTS["exact"])}
    if label == "sparq:r=16":
        found |= {"first_divergence": 3, "divergence_margin": 0.375, "action_agreement": None, "gpu_ms": 128.0}
    return found


def made(path: Path, **options: object) -> Contents:
    factory.fill(path, changes=changes, **options)  # type: ignore[arg-type]
    with Results.open(path, read_only=True) as results:
        return gather(results)


def test_a_branch_says_what_is_known_of_it(tmp_path: Path) -> None:
    point = by_session(made(tmp_path / "r.sqlite", sessions=1))[0].points[0]
    session = factory.session(0).sha256[:12]
    assert point.id == f"s{session}-4"
    assert point.branches[0].label == "exact"
    sparq = next(branch for branch in point.branches if branch.label == "sparq:r=16")
    assert sparq.id == f"s{session}-4-{factory.sha('scanner sparq:r=16')[:8]}"
    assert sparq.facts == (
        "agreement 0.50",
        "parts at token 3, margin 0.375",
        "no action to compare",
        "cut at max new tokens",
        "34.0 bits per token",
        "scan 1 MB",
        "rows 2 MB",
        "GPU 2 ms",
        "wall 100 ms",
    )
    assert [(piece.kind, piece.text) for piece in sparq.pieces] == [
        ("same", "run"),
        ("reference", " pytest -q"),
        ("scanner", " ruff"),
        ("same", " then commit"),
    ]
    dense = next(branch for branch in point.branches if branch.label == "dense")
    assert dense.identical
    assert "GPU time not measured" in dense.facts
    assert not any("bits" in fact or "scan" in fact for fact in dense.facts)


def test_the_report_marks_the_first_divergence_once_a_branch(tmp_path: Path) -> None:
    text = html(made(tmp_path / "r.sqlite", sessions=1, labels=("exact", "sparq:r=16")))
    pres = re.findall(r'<pre dir="ltr">(.*?)</pre>', text, re.DOTALL)
    shown = "run<mark>token 3, margin 0.375</mark><del> pytest -q</del><ins> ruff</ins> then commit"
    assert pres.count(shown) == text.count("<mark>token 3") == 2  # two steps


def test_a_page_holds_whole_sessions_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    contents = made(tmp_path / "r.sqlite", sessions=4, steps=(4,))
    everything = embedded(contents)
    assert (len(everything.groups), everything.omitted) == (4, 0)
    one = len(everything.articles.encode()) / 4
    half = embedded(contents, limit=int(2.5 * one))
    assert (len(half.groups), half.omitted) == (2, 2)
    assert half.articles == everything.articles[: len(half.articles)]
    first = embedded(contents, limit=1)
    assert (len(first.groups), first.omitted) == (1, 3)


def test_the_left_out_sessions_are_named_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = made(tmp_path / "r.sqlite", sessions=2, steps=(4,))
    monkeypatch.setattr(embedded, "__defaults__", (1,))
    text = Page(html(contents)).all_text()
    assert "1 of 2 sessions did not fit" in text
    assert "leadline report r.sqlite --viewer DIR" in text


def test_the_folder_has_a_page_per_session_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    contents = made(tmp_path / "r.sqlite", sessions=3)
    index = write_pages(contents, tmp_path / "viewer")
    files = {path.name: Page(path.read_text()) for path in index.parent.iterdir()}
    assert len(files) == 4
    ids = {name: {value for _, key, value in page.attributes if key == "id"} for name, page in files.items()}
    links = 0
    for name, page in files.items():
        for tag, key, value in page.attributes:
            if tag == "a" and key == "href":
                file, _, fragment = value.partition("#")
                assert (file or name) in files
                assert not fragment or fragment in ids[file or name]
                links += 1
    assert links > 20
    middle = next(name for name in files if factory.session(1).sha256[:12] in name)
    rels = [value for tag, key, value in files[middle].attributes if tag == "a" and key == "rel"]
    assert rels == ["prev", "next"]


def test_a_run_without_results_has_a_viewer_that_says_so(tmp_path: Path) -> None:
    contents = made(tmp_path / "r.sqlite", sessions=1, labels=())
    assert "No branch is stored here yet." in html(contents)
    nothing = made(tmp_path / "empty.sqlite", sessions=0)
    assert [name for name, _ in pages(nothing)] == ["index.html"]


def test_a_hash_that_is_none_names_no_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    session = factory.session(0, sha256="../../outside")
    contents = made(tmp_path / "r.sqlite", sessions=[session])
    write_pages(contents, tmp_path / "inside" / "viewer")
    assert {path.name for path in tmp_path.iterdir()} == {"inside", "r.sqlite"}
    written = sorted(path.name for path in (tmp_path / "inside" / "viewer").iterdir())
    assert written[0] == "index.html"
    assert re.fullmatch(r"session-[0-9a-f]{12}\.html", written[1])
