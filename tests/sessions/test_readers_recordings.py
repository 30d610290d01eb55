"""The readers on real recordings: every session loads with the step and message counts of the collection's own index.

The recordings are not part of the project; LEADLINE_RECORDINGS names their directory, with an INDEX.tsv that lists for
each file its format, steps, messages and tool calls (counted over the whole log).
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

import pytest

from leadline.sessions.directory import Discovery, discover
from leadline.sessions.schema import Session, View
from leadline.sessions.turns import UNMATCHED

# Sessions that are called something else than their row: told by content, these files are bare lists of messages.
RENAMED = {
    "mini-swe-agent-traj/fixture-github_issue-555dc0.gz": "chat-messages",
    "mini-swe-agent-traj/fixture-github_issue-d12949.gz": "chat-messages",
    "mini-swe-agent-traj/fixture-local-7d7f46.gz": "chat-messages",
}
DEMONSTRATED = (
    "sweagent-traj/gpt4__swe-bench-dev-easy_first_only__default__t-0.00__p-0.95__c-3.00__install-1-pydicom__p.traj.gz"
)
# Where the index counts other messages, by how many, and why that is right.
OTHER_COUNTS = {
    DEMONSTRATED: (1, "the demonstration, which the model saw"),
    "atif/vsc-atifviz-sample.json.gz": (7, "six results of calls and one result of a system step"),
    "oh-v0-eval-output/multi-swe-bench-ponyc-3records.jsonl.gz": (1, "instructions that a recall added"),
}
EXIT = (-1, "the closing exit entry, which no model saw")
AWKWARD_COUNTS = {
    "awkward/malformed-line.jsonl": [3, 0, 3],
    "awkward/truncated-output.jsonl": [3],
}


@pytest.fixture(scope="module")
def recordings() -> Path:
    named = os.environ.get("LEADLINE_RECORDINGS")
    if not named:
        pytest.skip("LEADLINE_RECORDINGS is not set: no recorded sessions to read")
    return Path(named)


@pytest.fixture(scope="module")
def index(recordings: Path) -> dict[str, dict[str, str]]:
    with (recordings / "INDEX.tsv").open(newline="") as stream:
        return {row["file"].rstrip("/"): row for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)}


@pytest.fixture(scope="module")
def found(recordings: Path) -> dict[str, Discovery]:
    views: tuple[View, ...] = ("condensed", "full")
    return {view: discover(recordings, view) for view in views}


def by_file(found: Discovery, recordings: Path) -> dict[str, list[Session]]:
    files: dict[str, list[Session]] = {}
    for session in found.sessions:
        files.setdefault(str(Path(session.path.split("#")[0]).relative_to(recordings)), []).append(session)
    return files


@pytest.mark.parametrize("view", ["condensed", "full"])
def test_every_row_loads_with_the_indexed_counts(
    recordings: Path, index: dict[str, dict[str, str]], found: dict[str, Discovery], view: str
) -> None:
    files = by_file(found[view], recordings)
    assert files.keys() == index.keys()
    for name, row in index.items():
        if name in AWKWARD_COUNTS:
            continue
        several = row["format"] == "oh-v0-eval-output"  # all records of a file are one row; else the last attempt is
        sessions = files[name] if several else [s for s in files[name] if "#sub-" not in s.id][-1:]
        counted = sum(len(segment.messages) - segment.carried for s in sessions for segment in s.segments)
        steps = sum(len(session.steps) for session in sessions)
        calls = sum(len(step.message.tool_calls) for session in sessions for step in session.steps)
        exits = row["format"] == "mini-swe-agent-traj" and name not in RENAMED
        more, _ = EXIT if exits else OTHER_COUNTS.get(name, (0, ""))
        assert (steps, calls) == (int(row["steps"]), int(row["tool_calls"])), name
        assert counted == int(row["messages"]) + more, name
        if row["format"] != "awkward":
            assert {session.format for session in files[name]} == {RENAMED.get(name, row["format"])}, name


def test_table_of_formats(
    recordings: Path, index: dict[str, dict[str, str]], found: dict[str, Discovery], capsys: pytest.CaptureFixture[str]
) -> None:
    files = by_file(found["condensed"], recordings)
    rows: Counter[str] = Counter(row["format"] for row in index.values())
    sessions: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for name, read in files.items():
        sessions[index[name]["format"]] += len(read)
        steps[index[name]["format"]] += sum(len(session.steps) for session in read)
    with capsys.disabled():
        print(f"\n{'format':28}{'files':>7}{'sessions':>10}{'steps':>7}")
        for name in sorted(rows):
            print(f"{name:28}{rows[name]:7}{sessions[name]:10}{steps[name]:7}")
    assert len(rows) == 20
    assert sum(rows.values()) == 199
    assert all(sessions[name] >= rows[name] for name in rows)
    assert sum(sessions.values()) == len(found["condensed"].sessions) == 205


def test_the_two_attempts_of_one_directory_are_told_apart(recordings: Path, found: dict[str, Discovery]) -> None:
    tries = [session for session in found["condensed"].sessions if session.attempts > 1]
    assert [(s.id, s.attempt, s.attempts, len(s.steps)) for s in tries] == [
        ("oh-v0-llm-completions-dir/astropy__astropy-14096#attempt-1", 1, 2, 9),
        ("oh-v0-llm-completions-dir/astropy__astropy-14096#attempt-2", 2, 2, 12),
    ]


def test_only_broken_lines_and_the_index_are_no_sessions(recordings: Path, found: dict[str, Discovery]) -> None:
    listed = {str(Path(item.path).relative_to(recordings)): item for item in found["condensed"].skipped}
    lines = {
        "awkward/malformed-line.jsonl#line-2": "not JSON",
        "awkward/malformed-line.jsonl#line-5": "not a session: a JSON NoneType",
        "awkward/malformed-line.jsonl#line-6": "JSON is cut off",
        "awkward/truncated-output.jsonl#line-2": "JSON is cut off: Unterminated string",
    }
    assert listed.keys() == lines.keys() | {"INDEX.tsv", "README.md", "LICENSES.md"}
    for name, reason in lines.items():
        assert listed[name].kind == "broken"
        assert listed[name].reason.startswith(reason)


def test_awkward_recordings_do_what_is_expected(recordings: Path, found: dict[str, Discovery]) -> None:
    read = by_file(found["condensed"], recordings)
    full = by_file(found["full"], recordings)

    def reasons(name: str, kind: str) -> list[str]:
        return [note.reason for session in read[f"awkward/{name}"] for note in session.notes if note.kind == kind]

    for name, steps in AWKWARD_COUNTS.items():
        assert [len(session.steps) for session in read[name]] == steps
    good = read["awkward/malformed-line.jsonl"]
    assert [session.id.rsplit("#")[-1] for session in good] == ["line-1", "line-4", "line-7"]
    assert good[1].segments[0].messages == ()
    assert [len(session.steps) for session in read["awkward/v1-headless-json-with-noise.jsonl"]] == [6]
    noise = [reason for reason in reasons("v1-headless-json-with-noise.jsonl", "info") if "no JSON" in reason]
    assert noise == ["6 line(s) that are no JSON were skipped"]
    (huge,) = read["awkward/v1-huge-observation.jsonl.gz"]
    assert sum(len(message.content) for message in huge.segments[0].messages) < 60_000 < 312_923
    (hole,) = read["awkward/v1-hole-and-orphan-observation"]
    assert any(reason.startswith(UNMATCHED) for reason in reasons("v1-hole-and-orphan-observation", "repaired"))
    assert len(hole.steps) == 6
    (edges,) = read["awkward/v1-condensation-edges"]
    assert any("clamped" in reason for reason in reasons("v1-condensation-edges", "repaired"))
    assert len(edges.segments) > 1
    assert [len(session.steps) for session in full["awkward/v1-condensation-edges"]] == [3]
    (calls,) = read["awkward/chat-tool-calls-only.json"]
    arguments = [call for step in calls.steps for call in step.message.tool_calls]
    assert [call.parsed() is None for call in arguments].count(True) == 2, "an empty string and invalid JSON"
    assert sum("not a JSON object" in reason for reason in reasons("chat-tool-calls-only.json", "info")) == 2
    (images,) = read["awkward/v0-image-base64.json"]
    assert len(reasons("v0-image-base64.json", "image")) >= 2
    assert len(images.steps) == 2


def test_no_tool_message_without_its_call_and_nothing_dropped(found: dict[str, Discovery]) -> None:
    for discovery in found.values():
        for session in discovery.sessions:
            for segment in session.segments:
                offered: set[str] = set()
                for message in segment.messages:
                    if message.role == "assistant":
                        offered = {call.id for call in message.tool_calls}
                    assert message.role != "tool" or message.tool_call_id in offered, session.id
                    assert ";base64,iV" not in message.content, session.id
            assert not [note for note in session.notes if note.kind == "dropped"], session.id


def test_views_have_the_same_steps(found: dict[str, Discovery]) -> None:
    condensed, full = found["condensed"].sessions, found["full"].sessions
    assert [session.id for session in condensed] == [session.id for session in full]
    segments: Counter[int] = Counter()
    for one, other in zip(condensed, full, strict=True):
        assert len(other.segments) == 1
        assert [step.message for step in one.steps] == [step.message for step in other.steps], one.id
        segments[len(one.segments)] += 1
        shorter = [len(one.prompt(a)) <= len(other.prompt(b)) for a, b in zip(one.steps, other.steps, strict=True)]
        assert all(shorter), one.id
    assert sum(count for number, count in segments.items() if number > 1) >= 20


def test_ids_and_sources(found: dict[str, Discovery]) -> None:
    sessions = found["condensed"].sessions
    assert len({session.id for session in sessions}) == len(sessions)
    by_source: dict[str, set[str]] = {}
    for session in sessions:
        by_source.setdefault(session.source, set()).add(session.format)
    assert sum(len(formats) > 1 for formats in by_source.values()) >= 10, (
        "one task recorded in several formats is one source"
    )
    assert len(by_source) >= 40
