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

READ = {
    "oh-v1-session-dir",
    "oh-v0-trajectory",
    "oh-v0-session-dir",
    "oh-v0-llm-completions-dir",
    "oh-v0-llm-completion-last",
    "chat-openai-tools",
    "chat-openai-tools-chained",
}
# Indexed under the name of their data set; by content they are the same OpenAI-style records.
ALSO_READ = {"chat-swegym-openhands": "chat-openai-tools"}
AWKWARD_READ = {
    "awkward/chat-tool-calls-only.json",
    "awkward/v0-image-base64.json",
    "awkward/v1-condensation-edges",
    "awkward/v1-hole-and-orphan-observation",
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
def test_every_session_loads_with_the_indexed_counts(
    recordings: Path, index: dict[str, dict[str, str]], found: dict[str, Discovery], view: str
) -> None:
    files = by_file(found[view], recordings)
    rows = {
        name: row for name, row in index.items() if row["format"] in READ | ALSO_READ.keys() or name in AWKWARD_READ
    }
    assert rows.keys() == files.keys()
    assert len(rows) >= 120
    for name, row in rows.items():
        session = files[name][-1]  # the index counts the last attempt of a directory
        counted = sum(len(segment.messages) - segment.carried for segment in session.segments)
        calls = sum(len(step.message.tool_calls) for step in session.steps)
        indexed = (int(row["steps"]), int(row["messages"]), int(row["tool_calls"]))
        assert (len(session.steps), counted, calls) == indexed, name
        if name not in AWKWARD_READ:
            assert session.format == ALSO_READ.get(row["format"], row["format"]), name


def test_the_two_attempts_of_one_directory_are_told_apart(recordings: Path, found: dict[str, Discovery]) -> None:
    several = {
        name: sessions for name, sessions in by_file(found["condensed"], recordings).items() if len(sessions) > 1
    }
    assert [(name, [len(session.steps) for session in sessions]) for name, sessions in several.items()] == [
        ("oh-v0-llm-completions-dir/astropy__astropy-14096.tar.gz", [9, 12])
    ]


def test_everything_else_is_listed_with_a_reason(
    recordings: Path, index: dict[str, dict[str, str]], found: dict[str, Discovery]
) -> None:
    listed = {str(Path(item.path.split("#")[0]).relative_to(recordings)): item for item in found["condensed"].skipped}
    rest = {name for name, row in index.items() if row["format"] not in READ | ALSO_READ.keys()} - AWKWARD_READ
    assert listed.keys() == rest | {"INDEX.tsv", "README.md", "LICENSES.md"}
    for name in rest:
        assert listed[name].kind == "unsupported", name
        assert listed[name].reason.endswith(("not a session leadline reads yet", "(JSON lines)")), name
    assert not any("failed" in item.reason for item in listed.values())


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
