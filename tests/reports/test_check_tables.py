"""The tables beside the paired differences, and those of stages, layers, degenerate steps and other commands."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from leadline.database import Results
from leadline.records import DEGENERATE, SEEN, Exclusion
from leadline.reports.contents import Contents, gather
from leadline.reports.figures import figures
from leadline.reports.html import html
from leadline.reports.markdown import markdown
from leadline.reports.run_tables import by_reason
from leadline.reports.summary import summary
from leadline.reports.table import Table
from leadline.reports.tables import background, tables
from reports import factory

LABELS = ("exact", "dense", "exact:prefill=384", "fathom:budget=48", "sparq:r=16")
STAGES = {"transfer": 32.0, "scan": 16.0, "other": 16.0}


def gathered(path: Path) -> Contents:
    with Results.open(path, read_only=True) as results:
        return gather(results)


def made(path: Path, **options: Any) -> Contents:
    factory.fill(path, **options)
    return gathered(path)


def table(contents: Contents, id: str) -> Table:
    return next(each for each in tables(contents) + background(contents) if each.id == id)


def row(found: Table, first: str) -> dict[str, str]:
    return dict(zip(found.columns, next(row for row in found.rows if row[0].startswith(first)), strict=True))


def known(index: int) -> float:
    """Twenty differences with mean 0.18 and standard error 0.05."""
    shape = [(2 * i - 19) / 19 for i in range(20)]
    sd = math.sqrt(sum(s * s for s in shape) / 19)
    return 0.18 + shape[index] / sd * 0.05 * math.sqrt(20)


def test_the_known_difference_is_printed_with_its_checks(tmp_path: Path) -> None:
    def agreement(label: str, index: int, step: int) -> float:
        return {"exact": 1.0, "exact:prefill=384": 0.99, "sparq:r=16": 0.4}.get(label, 0.4 + known(index))

    labels = ("exact", "exact:prefill=384", "fathom:budget=48", "sparq:r=16")
    contents = made(tmp_path / "r.sqlite", sessions=20, steps=(4,), labels=labels, agreement=agreement)
    headline = row(table(contents, "difference-agreement"), "fathom")
    assert headline["difference"] == "+0.180"
    assert headline["SE"] == "0.050"
    assert headline["95% t interval"] == "[+0.075, +0.285]"
    assert headline["units (steps)"] == "20 (20)"
    assert headline["verdict"] == "better"
    assert headline["detectable at 80%"] == "0.148"
    for text in (html(contents), markdown(contents).replace("\\", "")):
        assert "+0.180" in text
        assert "[+0.075, +0.285]" in text
        assert "better" in text
    checked = row(table(contents, "checks"), "fathom")
    assert checked["robust SE"] == "0.050"
    assert checked["every step alike, robust interval"] == "+0.180 [+0.075, +0.285]"
    assert checked["clusters"] == "20"
    assert checked["beyond noise floor"] == "yes"
    assert checked["doubts"] == "none"
    low, high = (float(part) for part in checked["bootstrap interval"].strip("[]").split(", "))
    assert 0.075 < low < 0.1 < 0.26 < high < 0.285


def test_a_pair_of_which_neither_is_told_from_the_noise_floor_is_doubted(tmp_path: Path) -> None:
    """Both scanners stay around the floor, unit by unit; the difference of the two is clear all the same."""

    def agreement(label: str, index: int, step: int) -> float:
        around = 0.04 * (-1) ** index
        by_label = {"exact": 1.0, "fathom:budget=48": 0.91 + around, "sparq:r=16": 0.89 + around - 0.001 * index}
        return by_label.get(label, 0.9)

    contents = made(tmp_path / "r.sqlite", sessions=12, steps=(4,), agreement=agreement)
    assert row(table(contents, "difference-agreement"), "fathom")["verdict"] == "better"
    checked = row(table(contents, "checks"), "fathom")
    assert checked["beyond noise floor"] == "no"
    assert checked["doubts"] == "neither can be told from the noise floor"
    beside = row(table(contents, "floor"), "fathom")
    assert (beside["difference"], beside["reading"]) == ("+0.010", "not told apart")
    assert beside["means"] == "0.910 − 0.900"
    [sentence] = [each for each in summary(contents) if each.startswith("Noise floor")]
    assert sentence.endswith("not told apart from it: fathom:budget=48, sparq:r=16.")


def test_a_small_difference_is_a_difference_where_one_of_the_pair_lies_below_the_floor(tmp_path: Path) -> None:
    """0.05 apart, where the floor is 0.1 from one: rounding blurs both alike, and the interval has it in."""

    def agreement(label: str, index: int, step: int) -> float:
        blur = 0.001 * (index % 3)
        by_label = {"exact": 1.0, "fathom:budget=48": 0.9 + 0.01 * (-1) ** index, "sparq:r=16": 0.85 + blur}
        return by_label.get(label, 0.9)

    contents = made(tmp_path / "r.sqlite", sessions=12, steps=(4,), agreement=agreement)
    checked = row(table(contents, "checks"), "fathom")
    assert checked["beyond noise floor"] == "yes"
    assert checked["doubts"] == "none"
    readings = {cells[0]: cells[-1] for cells in table(contents, "floor").rows}
    assert readings["fathom:budget=48"] == "not told apart"
    assert readings["sparq:r=16"] == "below"
    [sentence] = [each for each in summary(contents) if each.startswith("Noise floor")]
    assert sentence.endswith("not told apart from it: fathom:budget=48.")


def test_without_a_noise_floor_nothing_is_said_of_it(tmp_path: Path) -> None:
    contents = made(tmp_path / "r.sqlite", labels=("exact", "fathom:budget=48", "sparq:r=16"))
    assert contents.floor is None
    assert "floor" not in {each.id for each in tables(contents)}
    assert row(table(contents, "checks"), "fathom")["beyond noise floor"] == "not known"


def test_a_difference_that_is_the_same_in_every_unit_is_told_apart_and_a_single_unit_is_not(tmp_path: Path) -> None:
    def agreement(label: str, index: int, step: int) -> float:
        return {"exact": 1.0, "fathom:budget=48": 0.7, "sparq:r=16": 0.95}.get(label, 0.9)

    for sessions, readings in ((5, ("below", "above")), (1, ("not told apart", "not told apart"))):
        contents = made(tmp_path / f"{sessions}.sqlite", sessions=sessions, steps=(4,), agreement=agreement)
        assert contents.floor is not None
        found = tuple(contents.floor[label].reading for label in ("fathom:budget=48", "sparq:r=16"))
        assert found == readings


def test_points_set_aside_count_as_degenerate_and_are_named_first(tmp_path: Path) -> None:
    """Three of a session's five points: it is flagged, and the summary says how many points no figure has in."""
    path = tmp_path / "r.sqlite"
    factory.fill(path, sessions=3, steps=(4, 8))
    with sqlite3.connect(path) as connection:
        first = connection.execute("SELECT sha256 FROM session ORDER BY position").fetchone()[0]
    with Results.open(path) as results:
        reason = f"{DEGENERATE}dense attention repeats itself here"
        results.add_exclusions(
            1, [Exclusion(path="p", session_sha256=first, step=step, reason=reason) for step in (1, 2, 3)]
        )
        results.add_exclusions(1, [Exclusion(path="p", session_sha256=first, step=5, reason="too short")])
        assert results.excluded_steps(1, first, DEGENERATE) == {1, 2, 3}
    contents = gathered(path)
    assert [session.flagged for session in contents.sessions] == [True, False, False]
    assert contents.sessions[0].degenerate == (3, 5)
    found = table(contents, "sessions")
    assert next(cell for cell in found.rows[0] if "FLAGGED" in cell).startswith("3/5")
    assert summary(contents)[1].startswith("Set aside: 3 of 9 branch points")
    assert any(each.startswith("Degenerate: in 1 session") for each in summary(contents))


def test_recordings_that_the_calibration_was_made_on_are_named_before_any_verdict(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    factory.fill(path, sessions=3)
    assert not [each for each in summary(gathered(path)) if "calibration" in each]
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE session SET notes = ? WHERE position = 1", (json.dumps([SEEN]),))
        (name,) = connection.execute("SELECT id FROM session WHERE position = 1").fetchone()
    said = summary(gathered(path))[1]
    assert said.startswith(f"The calibration was made on recordings that are replayed here: 1 of 3 sessions ({name}).")


def test_outcomes_count_steps_and_test_units(tmp_path: Path) -> None:
    def changes(label: str, index: int, step: int) -> dict[str, Any]:
        same = label == "fathom:budget=48" or (label == "sparq:r=16" and index == 0)
        return {"exact_match": same, "action_agreement": None if index == 2 else same}

    found = table(made(tmp_path / "r.sqlite", sessions=4, changes=changes), "outcomes")
    rows = [dict(zip(found.columns, cells, strict=True)) for cells in found.rows if cells[0].startswith("fathom")]
    same, action = rows
    assert (same["outcome"], same["both"], same["scanner only"], same["neither"]) == ("same step", "2", "6", "0")
    assert same["McNemar p"] == "0.031"  # 2 / 2^6
    assert same["p over units"] == "0.250"  # three units differ: 2 / 2^3
    assert (action["outcome"], action["both"], action["scanner only"]) == ("same action", "2", "4")


def test_ratios_are_exact_for_bytes_and_paired_for_times(tmp_path: Path) -> None:
    def changes(label: str, index: int, step: int) -> dict[str, Any]:
        fast = label == "fathom:budget=48"
        return {
            "scan_realised_bytes": 48_000_000 if fast else 64_000_000,
            "gpu_ms": 64.0 * (index + 1) / (2 if fast else 1),
            "wall_ms": 100.0 * (0.5 + 0.01 * index if fast else 1),
            "timer": "profiler",
        }

    found = row(table(made(tmp_path / "r.sqlite", changes=changes), "ratios"), "fathom")
    assert found["scan bytes"] == "0.750"
    assert found["row bytes"] == "1.000"
    assert found["GPU ms"] == "0.500 (all equal)"
    # ln 0.50, 0.51, 0.52: mean ln 0.5099, SE 0.01132, t(0.975, 2) = 4.303
    assert found["wall ms"] == "0.510 [0.486, 0.535]"
    assert found["steps"] == "6"


def test_times_show_medians_with_quartiles(tmp_path: Path) -> None:
    changes = lambda label, index, step: {"gpu_ms": 64.0 * (index + 1), "wall_ms": 10.0 * (index + 1)}  # noqa: E731
    found = row(table(made(tmp_path / "r.sqlite", steps=(4,), changes=changes), "time"), "fathom")
    assert found["GPU ms, median step"] == "2 [1.5, 2.5]"
    assert found["wall ms per token, median step"] == "20 [15, 25]"


def test_stages_and_layers_by_hand(tmp_path: Path) -> None:
    def changes(label: str, index: int, step: int) -> dict[str, Any]:
        timed = {"gpu_ms": 64.0, "gpu_stage_ms": STAGES, "timer": "profiler"}
        return {"layer_bits": (8.0, 16.0, 24.0, 32.0)} | ({} if label == "dense" else timed)

    contents = made(tmp_path / "r.sqlite", changes=changes)
    stages = table(contents, "stages")
    assert stages.columns == ("scanner", "sum, ms", "transfer", "scan", "other")
    assert row(stages, "fathom") == {
        "scanner": "fathom:budget=48", "sum, ms": "1", "transfer": "0.5", "scan": "0.25", "other": "0.25",
    }  # fmt: skip
    assert row(stages, "dense")["sum, ms"] == "—"
    layers = table(contents, "layers")
    assert layers.folded
    # 16 bits * 1984 block tokens * 3 KV heads / 8 = 11,904 bytes
    assert row(layers, "layer 1")["fathom:budget=48"] == "11.9 (16.0)"
    drawn = {drawing.id for each in figures(contents).values() for drawing in each}
    assert {"figure-stages", "figure-layers", "figure-pareto-gpu"} <= drawn


def test_without_a_gpu_stages_are_a_dash_with_the_reason(tmp_path: Path) -> None:
    contents = made(tmp_path / "r.sqlite", sessions=1)
    found = table(contents, "stages")
    assert (found.rows, found.empty) == ((), "—")
    assert "no branch of this run was decoded under a GPU timer" in found.notes[0]
    assert "no branch of this run was decoded under a GPU timer" in " ".join(table(contents, "ratios").notes)
    drawn = {drawing.id for each in figures(contents).values() for drawing in each}
    assert not {"figure-stages", "figure-pareto-gpu"} & drawn


def test_degenerate_steps_are_listed_with_who_and_how(tmp_path: Path) -> None:
    def changes(label: str, index: int, step: int) -> dict[str, Any]:
        return {
            "empty": label == "dense" and index == 1,
            "repeating": label == "sparq:r=16" and (index, step) == (1, 9),
        }

    found = table(made(tmp_path / "r.sqlite", changes=changes), "degenerate")
    assert found.rows == (("session-1, step 4", "dense", "—"), ("session-1, step 9", "dense", "sparq:r=16"))
    assert found.intro.startswith("2 steps of 6")


def test_reasons_that_differ_in_numbers_alone_are_one() -> None:
    reasons = [
        "prompt of 300 tokens is shorter than 8k = 1024",
        "prompt of 512 tokens is shorter than 8k = 1024",
        "7",
        "x",
    ]
    assert by_reason(reasons) == [
        ("prompt of 300 to 512 tokens is shorter than 8k = 1024", "2"),
        ("7", "1"),
        ("x", "1"),
    ]
    assert by_reason([]) == []


def test_tables_of_other_commands_appear_when_they_are_there(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    run = factory.fill(path, sessions=1)
    assert not [each for each in tables(gathered(path)) if each.id.startswith("stored-")]
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE fidelity_of_run (run_id INTEGER, scanner TEXT, error REAL)")
        raw.execute("CREATE TABLE calibration_basis (model TEXT, raw REAL, rotated REAL)")
        raw.execute("CREATE TABLE fidelity_empty (x REAL)")
        values = [(run, "fathom:budget=48", 0.0123456), (run, "<b>sparq</b>", None), (run + 1, "another run", 1.0)]
        raw.executemany("INSERT INTO fidelity_of_run VALUES (?, ?, ?)", values)
        raw.execute("INSERT INTO calibration_basis VALUES ('tiny', 0.5, 0.25)")
    contents = gathered(path)
    stored = [each for each in tables(contents) if each.id.startswith("stored-")]
    assert [(each.id, each.title) for each in stored] == [
        ("stored-calibration_basis", "Calibration basis"),
        ("stored-fidelity_of_run", "Fidelity of run"),
    ]
    assert stored[1].rows == (
        (str(run), "fathom:budget=48", "0.01235"),
        (str(run), "<b>sparq</b>", "—"),
    )
    assert "&lt;b&gt;sparq" in html(contents)


def test_the_calibrations_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    factory.fill(path, sessions=1)
    assert "calibrations" not in {each.id for each in background(gathered(path))}
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE scanner SET calibration_sha256 = 'abc' WHERE label = 'fathom:budget=48'")
    assert table(gathered(path), "calibrations").rows == (("fathom:budget=48", "abc"),)


@pytest.mark.slow
def test_forty_sessions_and_fifteen_scanners_fit_into_three_megabytes(tmp_path: Path) -> None:
    labels = (*LABELS, *(f"scanner-{number}:option={number}" for number in range(10)))
    words = f"the quick brown fox runs pytest -q tests/test_config.py and {labels[3]} then commits".split()

    def changes(label: str, index: int, step: int) -> dict[str, Any]:
        text = [words[(index * 7 + step + place) % len(words)] for place in range(48)]
        for place in range(len(label) % 11, 48, 5):
            text[place] = f"{label[:3]}{place}"
        return {"text": " ".join(text), "gpu_ms": 64.0 + len(label), "gpu_stage_ms": STAGES}

    contents = made(
        tmp_path / "r.sqlite",
        sessions=40,
        labels=labels,
        changes=changes,
        point_changes={"prompt_tail": "p" * 1200, "recorded_text": "r" * 300},
    )
    page = html(contents).encode()
    assert len(contents.texts) == 40 * 2 * 15
    assert page.count(b"<article") == 80, "every step is in the viewer"
    assert len(page) < 3_000_000
