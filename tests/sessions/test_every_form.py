"""Every form that is read: one small session each, read without a loss, as itself, alone and among others."""

from __future__ import annotations

from pathlib import Path

import pytest
from embedded_model import require_embedded
from session_forms import Files, every_form

from leadline.cli.session_checks import make_renderer
from leadline.sessions.convert import write_sessions
from leadline.sessions.directory import Skipped, discover
from leadline.sessions.documents import DOCUMENT_READERS
from leadline.sessions.line_logs import LINE_READERS
from leadline.sessions.schema import View
from leadline.sessions.walk import FOLDER_READERS

FORMS = every_form()
# Written by `Draft`s of these readers, beside their own format.
ALSO = {"oh-v0-eval-pairs", "oh-v0-resolver-output", "oh-v1-eval-output", "chat-swesmith-xml", "chat-swegym-openhands"}
COUNTS = {"oh-v1-session-dir": (3, 7), "chat-openai-tools": (2, 6), "claude-code": (2, 4), "codex-rollout": (3, 8)}


def write(root: Path, form: Files) -> Path:
    for name, data in form.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.mark.parametrize("name", FORMS)
def test_reads_without_a_loss(tmp_path: Path, name: str) -> None:
    found = discover(write(tmp_path / "root", FORMS[name]))
    assert found.skipped == ()
    (session,) = found.sessions
    assert session.format == name.split(" ")[0]
    assert session.steps
    assert not [note for note in session.notes if note.kind in ("dropped", "truncated")]
    if name in COUNTS:
        messages = sum(len(segment.messages) - segment.carried for segment in session.segments)
        assert (len(session.steps), messages) == COUNTS[name]


def test_every_reader_has_a_form() -> None:
    read = {reader.format for reader in (*DOCUMENT_READERS, *LINE_READERS, *FOLDER_READERS)}
    formed = {name.split(" ")[0] for name in FORMS}
    assert read <= formed | {"chat-openai-tools"}
    assert formed - read <= ALSO | {name for name in formed if "llm-completion" in name}


def test_every_form_renders_to_branch_points(tmp_path: Path) -> None:
    require_embedded()
    renderer = make_renderer("embedded")
    for name, form in FORMS.items():
        (session,) = discover(write(tmp_path / name.replace(" ", "-"), form)).sessions
        points = renderer.render(session).points
        assert len(points) == len(session.steps) > 0, name
        assert all(point.n_tokens > 0 and len(point.recorded_ids) for point in points), name


def test_all_forms_in_one_directory(tmp_path: Path) -> None:
    for name, form in FORMS.items():
        write(tmp_path / name.replace(" ", "-"), form)
    found = discover(tmp_path)
    assert found.skipped == ()
    assert sorted(session.format for session in found.sessions) == sorted(name.split(" ")[0] for name in FORMS)


def test_forms_of_one_session_are_one_session(tmp_path: Path) -> None:
    same = ["oh-v1-session-dir", "oh-v1-session-dir in a zip", "oh-v1-session-dir in a tar", "oh-v1-export"]
    same += ["oh-v1-events-lines", "oh-v1-events-lines with noise"]
    for number, name in enumerate(same):
        write(tmp_path / f"{number}", FORMS[name])
    sessions = discover(tmp_path).sessions
    assert len(sessions) == len(same)
    assert len({session.sha256 for session in sessions}) == 1


@pytest.mark.parametrize("view", ["condensed", "full"])
@pytest.mark.parametrize("target", ["atif", "chat"])
def test_converted_and_read_back(tmp_path: Path, target: str, view: View) -> None:
    for name, form in FORMS.items():
        write(tmp_path / "in" / name.replace(" ", "-"), form)
    before = discover(tmp_path / "in", view).sessions
    out = tmp_path / ("out.jsonl" if target == "chat" else "out")
    assert write_sessions(before, "atif" if target == "atif" else "chat", out) == len(before)
    after = discover(out, view)
    assert not [item for item in after.skipped if isinstance(item, Skipped)]
    assert sorted(session.sha256 for session in after.sessions) == sorted(session.sha256 for session in before)
    assert {session.source for session in after.sessions} == {session.source for session in before}


def test_every_format_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "session-formats.md"
    names = {name.split(" ")[0] for name in FORMS} | {"chat-openai-tools-chained", "oh-v1-llm-completions-dir"}
    text = page.read_text(encoding="utf-8")
    assert not [name for name in names if f"`{name}`" not in text]
