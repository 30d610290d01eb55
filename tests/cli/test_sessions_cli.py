"""`leadline sessions list|show|check|convert`: tables, JSON, exit codes, and no raw control text on a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from embedded_model import require_embedded
from session_logs import chat, completion, says, v1_action, v1_condensation, v1_message, v1_result, v1_system, write_v1
from typer.testing import CliRunner

from leadline.cli.session_checks import make_renderer
from leadline.cli.sessions import app
from leadline.errors import UsageError
from leadline.sessions.directory import discover
from leadline.sessions.printable import one_line, printable

runner = CliRunner()
EVIL = "\x1b]0;title\x07\x1b[31mred\x9b1m\u202e [bold]markup[/bold]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    events = [v1_system(), v1_message("u", "Do it. " + EVIL)]
    events += [
        v1_action("a", "ra", "one"),
        v1_result("oa", "a", EVIL),
        v1_action("b", "rb", "two"),
        v1_result("ob", "b"),
    ]
    events += [v1_condensation("k", ["a", "oa"], "Sum.", 2), v1_action("c", "rc", "three")]
    write_v1(tmp_path / "s" / "evil", events)
    (tmp_path / "s" / "chat.json").write_text(json.dumps({"messages": chat(2)}))
    (tmp_path / "s" / "README.md").write_text("hello")
    return tmp_path / "s"


def test_list(root: Path) -> None:
    result = runner.invoke(app, ["list", str(root)])
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["evil"][1:2] + rows["evil"][3:] == ["oh-v1-session-dir", "3", "7", "2", "1"]
    assert rows["chat"][1:2] + rows["chat"][3:] == ["chat-openai-tools", "2", "6", "1", "0"]
    assert "not a session: not JSON" in result.stdout
    assert "2 sessions, 1 other files" in result.stdout


def test_list_json(root: Path) -> None:
    result = runner.invoke(app, ["list", str(root), "--json", "--view", "full"])
    document = json.loads(result.stdout)
    assert (document["n_sessions"], document["n_skipped"], document["view"]) == (2, 1, "full")
    evil = document["sessions"][1]
    assert (evil["id"], evil["steps"], evil["segments"], evil["messages"]) == ("evil", 3, 1, 7)
    assert len(evil["sha256"]) == 64
    assert document["skipped"][0]["kind"] == "other"
    assert "\x1b" not in result.stdout


def test_show_neutralises_control_characters(root: Path) -> None:
    result = runner.invoke(app, ["show", str(root), "--session", "evil"])
    assert result.exit_code == 0
    assert not set("\x1b\x07\x9b\u202e\r") & set(result.stdout)
    assert "\\x1b]0;title\\x07\\x1b[31mred\\x9b1m\\u202e [bold]markup[/bold]" in result.stdout
    assert "segment 1: 6 messages, 5 carried" in result.stdout
    assert [line for line in result.stdout.splitlines() if " step " in line] == [
        f"── assistant step {number}" for number in range(3)
    ]


def test_show_one_step(root: Path) -> None:
    (root / "chat.json").write_text(json.dumps({"messages": chat(3, "x" * 5000)}))
    result = runner.invoke(app, ["show", str(root / "chat.json"), "--step", "1"])
    assert result.exit_code == 0
    assert "turn 0" in result.stdout
    assert "turn 1" in result.stdout
    assert "turn 2" not in result.stdout
    assert "(+4600 characters)" in result.stdout
    document = json.loads(runner.invoke(app, ["show", str(root / "chat.json"), "--step", "1", "--json"]).stdout)
    assert [message["role"] for message in document["prompt"]] == ["system", "user", "assistant", "tool"]
    assert document["message"]["content"] == "turn 1"
    whole = json.loads(runner.invoke(app, ["show", str(root / "chat.json"), "--json"]).stdout)
    assert len(whole["segments"][0]["messages"]) == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show"], ("name one session", "evil")),
        (["show", "--session", "evi"], ("name one session", "evi", "evil")),
        (["show", "--session", "chat", "--step", "9"], ("no such step", "0 to 1")),
    ],
)
def test_usage_errors_name_what_there_is(root: Path, arguments: list[str], words: tuple[str, ...]) -> None:
    result = runner.invoke(app, [arguments[0], str(root), *arguments[1:]])
    assert isinstance(result.exception, UsageError)
    assert all(word in str(result.exception) for word in words)


def test_nothing_to_show(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    result = runner.invoke(app, ["show", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert "not a session: not JSON" in str(result.exception)
    assert isinstance(runner.invoke(app, ["list", str(tmp_path / "nowhere")]).exception, UsageError)


def test_check_passes_when_nothing_was_lost(root: Path) -> None:
    result = runner.invoke(app, ["check", str(root)])
    assert result.exit_code == 0
    assert "0 sessions lost something, 0 files could not be read" in result.stdout
    document = json.loads(runner.invoke(app, ["check", str(root), "--json"]).stdout)
    assert document["ok"] is True
    evil = document["sessions"][1]
    assert evil["unanswered"] == 1
    assert [note["kind"] for note in evil["details"]] == ["info"] * len(evil["details"])


def test_check_fails_when_something_was_dropped(root: Path) -> None:
    write_v1(root / "evil", [b"{broken"], start=40)
    result = runner.invoke(app, ["check", str(root)])
    assert result.exit_code == 1
    assert "dropped  evil  event 40: " in result.stdout
    document = json.loads(runner.invoke(app, ["check", str(root), "--json"]).stdout)
    assert (document["ok"], document["sessions"][1]["notes"]["dropped"]) == (False, 1)


def test_check_fails_when_a_file_cannot_be_read(root: Path) -> None:
    (root / "half.json").write_text('{"messages": [')
    result = runner.invoke(app, ["check", str(root)])
    assert result.exit_code == 1
    assert "1 files could not be read" in result.stdout


def test_printable() -> None:
    assert printable("a\r\nb\tc\rd\x00\ufeff") == "a\nb\tc\\x0dd\\x00\\ufeff"
    assert one_line("a \n\n b" + "x" * 50, 10) == "a bxxxxxx…"
    assert one_line("short", 10) == "short"


def test_check_counts_tokens_attempts_images_and_unmatched_results(root: Path) -> None:
    for number, stamp in ((0, 1.0), (1, 2.0), (0, 3.0), (1, 4.0), (2, 5.0)):
        (root / "calls").mkdir(exist_ok=True)
        log = completion(chat(number), says(number), stamp)
        (root / "calls" / f"m-{stamp}.json").write_text(json.dumps(log))
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    orphan = {"role": "tool", "tool_call_id": "gone", "content": "out"}
    (root / "odd.json").write_text(json.dumps({"messages": [image, orphan, says(0)]}))
    document = json.loads(runner.invoke(app, ["check", str(root), "--json"]).stdout)
    rows = {row["id"]: row for row in document["sessions"]}
    assert [(rows[f"calls#attempt-{n}"]["attempt"], rows[f"calls#attempt-{n}"]["attempts"]) for n in (1, 2)] == [
        (1, 2),
        (2, 2),
    ]
    odd = rows["odd"]
    assert (odd["images"], odd["unmatched"], odd["unanswered"], odd["view"]) == (1, 1, 1, "condensed")
    assert odd["tokens"] is None
    text = runner.invoke(app, ["check", str(root)]).stdout
    assert "repaired  odd  message 1: a tool result whose call 'gone' is not in the log is kept as user text" in text
    assert "2 of 2" in text
    assert "view: condensed" in text


def test_check_counts_tokens_with_a_model(root: Path) -> None:
    require_embedded()
    result = runner.invoke(app, ["check", str(root), "--model", "embedded", "--json"])
    document = json.loads(result.stdout)
    renderer = make_renderer("embedded")
    for row, session in zip(document["sessions"], discover(root).sessions, strict=True):
        points = renderer.render(session).points
        assert row["tokens"] == max(point.n_tokens + len(point.recorded_ids) for point in points)
    assert document["model"] == "embedded"
    assert " tokens " in runner.invoke(app, ["check", str(root), "--model", "embedded"]).stdout


def test_check_refuses_a_model_without_a_tokenizer(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = runner.invoke(app, ["check", str(root), "--model", str(tmp_path / "empty")])
    assert isinstance(result.exception, UsageError)
    assert "no tokenizer there" in str(result.exception)


@pytest.mark.parametrize(("target", "name"), [("chat", "out.jsonl"), ("atif", "out")])
def test_convert_and_read_back(root: Path, tmp_path: Path, target: str, name: str) -> None:
    out = tmp_path / name
    result = runner.invoke(app, ["convert", str(root), str(out), "--to", target])
    assert result.exit_code == 0
    assert f"2 sessions written to {out}, 0 files could not be read" in result.stdout
    before = {session.sha256 for session in discover(root).sessions}
    assert {session.sha256 for session in discover(out).sessions} == before
    again = runner.invoke(app, ["convert", str(root), str(out), "--to", target])
    assert isinstance(again.exception, UsageError)
    (root / "half.json").write_text('{"messages": [')
    assert runner.invoke(app, ["convert", str(root), f"{out}2", "--to", target]).exit_code == 1
    assert len(discover(Path(f"{out}2")).sessions) == 2
    assert runner.invoke(app, ["convert", str(root), str(out), "--to", "csv"]).exit_code == 2


def test_redact_and_filter_reach_every_command(root: Path, tmp_path: Path) -> None:
    records = [{"messages": chat(n + 1, "mail jane@example.org"), "ok": n} for n in range(3)]
    (root / "r.jsonl").write_text("\n".join(map(json.dumps, records)))
    asked = ["--redact", "--filter", "ok=1"]
    listed = json.loads(runner.invoke(app, ["list", str(root), "--json", *asked]).stdout)
    assert [row["id"] for row in listed["sessions"]] == ["r#line-2"]
    assert listed["skipped_kinds"]["filtered"] == 3
    checked = json.loads(runner.invoke(app, ["check", str(root), "--json", *asked]).stdout)
    assert checked["redacted"] is True
    assert checked["sessions"][0]["details"][-1]["where"] == "redaction"
    shown = runner.invoke(app, ["show", str(root), *asked]).stdout
    assert "mail [redacted e-mail]" in shown
    runner.invoke(app, ["convert", str(root), str(tmp_path / "o.jsonl"), "--to", "chat", *asked])
    assert "jane" not in (tmp_path / "o.jsonl").read_text()
    bad = runner.invoke(app, ["list", str(root), "--filter", "ok"])
    assert isinstance(bad.exception, UsageError)


@pytest.mark.parametrize("command", ["list", "check"])
def test_more_sessions_than_a_table_holds_back(tmp_path: Path, command: str) -> None:
    lines = [json.dumps({"messages": chat(1, f"Task {number}.")}) for number in range(1203)]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    text = runner.invoke(app, [command, str(tmp_path)]).stdout
    assert len([line for line in text.splitlines() if line.startswith("r#line-")]) == 1203
    assert len([line for line in text.splitlines() if line.startswith("id ")]) == 3
    document = json.loads(runner.invoke(app, [command, str(tmp_path), "--json"]).stdout)
    assert [row["id"] for row in document["sessions"]] == [f"r#line-{number}" for number in range(1, 1204)]
    assert document["n_sessions"] == 1203
    assert document["skipped"] == []
    (tmp_path / "r.jsonl").unlink()
    empty = json.loads(runner.invoke(app, [command, str(tmp_path), "--json"]).stdout)
    assert (empty["sessions"], empty["n_sessions"], empty["skipped_kinds"]) == ([], 0, {})
