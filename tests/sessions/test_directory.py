"""Discovery: what is found where, in which order, under which ids, and what is said about everything else."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from session_logs import (
    chat,
    completion,
    folder_tar,
    says,
    v0_run,
    v0_start,
    v1_action,
    v1_message,
    v1_result,
    v1_system,
    write_v1,
)

import leadline.sessions.walk as walk
from leadline.errors import UsageError
from leadline.sessions import files
from leadline.sessions.directory import discover, iter_sessions
from leadline.sessions.schema import Session
from leadline.sessions.source import task_source

EVENTS = [v1_system(), v1_message("u", "Do it."), v1_action("a", "r"), v1_result("o", "a")]


def mixed(root: Path) -> Path:
    """One session of every kind, and files that are none."""
    write_v1(root / "v1-dir", EVENTS, state={})
    (root / "v1-tar.tar.gz").write_bytes(folder_tar(root / "v1-dir", "inner"))
    (root / "v0.json.gz").write_bytes(gzip.compress(json.dumps([*v0_start(), *v0_run(2, "c")]).encode()))
    (root / "calls").mkdir()
    for number in range(3):
        (root / "calls" / f"m-{number}.json").write_text(json.dumps(completion(chat(number), says(number), number)))
    (root / "chat.json").write_text(json.dumps({"messages": chat(2)}))
    (root / "chat.json.gz").write_bytes(gzip.compress(json.dumps({"messages": chat(3)}).encode()))
    (root / "README.md").write_text("# Hello\n[1, 2]\n")
    (root / "model.bin").write_bytes(b"\0\1\2" * 1000)
    return root


def test_everything_is_found_or_listed(tmp_path: Path) -> None:
    found = discover(mixed(tmp_path))
    assert [(session.id, session.format, len(session.steps)) for session in found.sessions] == [
        ("chat", "chat-openai-tools", 2),
        ("chat~2", "chat-openai-tools", 3),
        ("v0", "oh-v0-trajectory", 1),
        ("v1-tar", "oh-v1-session-dir", 1),
        ("calls", "oh-v0-llm-completions-dir", 3),
        ("v1-dir", "oh-v1-session-dir", 1),
    ]
    assert [(Path(item.path).name, item.reason, item.kind) for item in found.skipped] == [
        ("README.md", "not a session: not JSON", "other"),
        ("model.bin", "not a session: a binary file", "other"),
    ]
    assert found == discover(tmp_path)


def test_archive_and_directory_hold_the_same_session(tmp_path: Path) -> None:
    by_id = {session.id: session for session in discover(mixed(tmp_path)).sessions}
    assert by_id["v1-tar"].sha256 == by_id["v1-dir"].sha256
    assert by_id["v1-tar"].path == f"{tmp_path}/v1-tar.tar.gz#inner"


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("v1-dir", "v1-dir"),
        ("v1-dir/events", "v1-dir"),
        ("v0.json.gz", "v0"),
        ("calls", "calls"),
        ("v1-tar.tar.gz", "v1-tar"),
    ],
)
def test_a_path_may_be_any_single_session(tmp_path: Path, inside: str, expected: str) -> None:
    assert [session.id for session in discover(mixed(tmp_path) / inside).sessions] == [expected]


def test_sessions_come_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps({"messages": chat(1)}))
    (tmp_path / "2.json").write_text("{")
    walk = iter_sessions(tmp_path)
    assert isinstance(next(walk), Session)
    (tmp_path / "2.json").write_text(json.dumps({"messages": chat(2)}))
    later = next(walk)
    assert isinstance(later, Session), "the second file was not opened before it was its turn"
    assert later.id == "2"


def test_a_missing_path_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file") as caught:
        discover(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_content_decides_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "event-00000-0000-0000.json").write_text(json.dumps({"messages": chat(1)}))
    (tmp_path / "0.json").write_text(json.dumps({"messages": chat(2)}))
    (tmp_path / "trajectory.txt").write_text(json.dumps([*v0_start(), *v0_run(2, "c")]))
    (tmp_path / "plain.gz").write_text(json.dumps({"messages": chat(3)}))
    found = discover(tmp_path)
    assert sorted((session.format, len(session.steps)) for session in found.sessions) == [
        ("chat-openai-tools", 1),
        ("chat-openai-tools", 2),
        ("chat-openai-tools", 3),
        ("oh-v0-trajectory", 1),
    ]
    assert found.skipped == ()


@pytest.mark.parametrize(
    ("name", "data", "reason", "kind"),
    [
        ("a.json", b'{"messages": [{"role": "user", "con', "JSON is cut off", "broken"),
        ("a.json", b'{"messages": [}', "not JSON: Expecting value at line 1", "broken"),
        ("a.json", b"\xff\xfe{}", "not UTF-8: byte 0xff at offset 0", "broken"),
        ("a.json", b'{"a": "\x00"}', "not a session: a binary file", "broken"),
        ("a.json", b"", "not a session: an empty file", "broken"),
        ("a.txt", b" \n", "not a session: an empty file", "other"),
        ("a.json", b"[" * 200_000, "JSON is nested too deeply", "broken"),
        ("a.json", b"9" * 5000, "JSON holds a value that cannot be read", "broken"),
        ("a.json", b"NaN", "not a session: a JSON float", "other"),
        ("a.json", b"null", "not a session: a JSON NoneType", "other"),
        ("a.json.gz", gzip.compress(b'{"messages": []}' * 99, mtime=0)[:-9], "truncated gzip", "broken"),
        ("a.json.gz", gzip.compress(b"x" * 500, mtime=0)[:-8] + b"\0" * 8, "broken gzip", "broken"),
        ("a.json.gz", b"\x1f\x8b", "truncated gzip", "broken"),
        ("a.gz", gzip.compress(b"\xff\xfe\x00", mtime=0), "not a session: not text", "other"),
        ("a.toml", b"[project]\nname = 1\n", "not a session: not JSON", "other"),
        ("a.md", b"{not json}", "not a session: not JSON", "other"),
        ("a.dat", b'{"half": ', "JSON is cut off", "broken"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, reason: str, kind: str) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "z.json").write_text(json.dumps({"messages": chat(1)}))
    found = discover(tmp_path)
    assert [session.id for session in found.sessions] == ["z"], "one bad file never loses the directory"
    (item,) = found.skipped
    assert item.reason.startswith(reason)
    assert item.kind == kind


def test_byte_order_marks_and_nan_are_read(tmp_path: Path) -> None:
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"messages": chat(1)}).encode())
    (tmp_path / "nan.json").write_text(json.dumps({"messages": chat(1), "score": float("nan")}))
    assert len(discover(tmp_path).sessions) == 2


def test_links_and_special_files(tmp_path: Path) -> None:
    write_v1(tmp_path / "real", EVENTS)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "dangling.json").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.json")
    found = discover(tmp_path)
    assert [session.id for session in found.sessions] == ["real"]
    reasons = {Path(item.path).name: item.reason for item in found.skipped}
    assert reasons == {
        "loop": "a link to a directory is not followed",
        "dangling.json": "cannot be read: No such file or directory",
        "pipe.json": "not a regular file",
    }


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 5000)
    (tmp_path / "big.json").write_text(json.dumps({"messages": chat(99)}))
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 100_000))
    deep = tmp_path.joinpath(*["d"] * (files.MAX_DEPTH + 3))
    deep.mkdir(parents=True)
    (deep / "x.json").write_text("{}")
    reasons = [item.reason for item in discover(tmp_path).skipped]
    assert reasons[0].endswith("more than the 5000 a reader opens")
    assert reasons[1] == "decompresses to more than 5000 bytes"
    assert reasons[2] == f"more than {files.MAX_DEPTH} folders deep; not walked"


def test_a_defect_of_a_reader_costs_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed(tmp_path)

    def fail(*_: Any) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(walk.FOLDER_READERS[0], "draft", fail)
    v0 = next(reader for reader in walk.DOCUMENT_READERS if reader.format == "oh-v0-trajectory")
    monkeypatch.setattr(v0, "read", fail)
    found = discover(tmp_path)
    assert sorted(session.id for session in found.sessions) == ["calls", "chat", "chat~2"]
    failed = [item for item in found.skipped if "reader failed" in item.reason]
    assert len(failed) == 3
    assert all(item.kind == "broken" for item in failed)


def test_fuzzed_documents_never_raise_and_never_break_a_reader(tmp_path: Path) -> None:
    choice = random.Random(7)
    logs: list[Any] = [
        {"messages": chat(2)},
        [*v0_start(), *v0_run(2, "c")],
        completion(chat(1), says(1), 1.0),
        {"trajectory": chat(1)},
    ]

    def mutate(value: Any, depth: int = 0) -> Any:
        if choice.random() < 0.06 and depth:
            return choice.choice([None, 0, -1, 1e300, True, "", "x", [], {}, [None], {"x": []}, ["user"]])
        if isinstance(value, dict):
            return {key: mutate(item, depth + 1) for key, item in value.items() if choice.random() > 0.03}
        if isinstance(value, list):
            return [mutate(item, depth + 1) for item in value if choice.random() > 0.03]
        return value

    for number in range(400):
        (tmp_path / f"{number}.x.json").write_text(json.dumps(mutate(logs[number % len(logs)])))
    found = discover(tmp_path)
    assert len(found.sessions) > 200, "most mutations leave a readable session"
    assert not [item for item in found.skipped if "failed" in item.reason]
    for session in found.sessions:
        for segment in session.segments:
            offered: set[str] = set()
            for message in segment.messages:
                if message.role == "assistant":
                    offered = {made.id for made in message.tool_calls}
                assert message.role != "tool" or message.tool_call_id in offered, session.id


def test_source_is_the_task_whatever_the_recording(tmp_path: Path) -> None:
    issue = "Bad   sum\r\nin `f`."
    texts = [
        f"Work in /tmp/tmp1a. <issue_description>\n{issue}\n</issue_description> Be quick.",
        f"<uploaded_files>/w</uploaded_files> <pr_description>{issue.replace(chr(13), '')}</pr_description>",
    ]
    write_v1(tmp_path / "a", [v1_system(), v1_message("u", texts[0])])
    (tmp_path / "b.json").write_text(json.dumps({"messages": chat(1, texts[1])}))
    (tmp_path / "c.json").write_text(json.dumps({"messages": chat(1, "Another task in /tmp/tmp2/x.")}))
    sources = {session.id: session.source for session in discover(tmp_path).sessions}
    assert sources["a"] == sources["b"] != sources["c"]
    assert sources["a"].startswith("bad-sum-in-f-")
    assert sources["c"] == task_source(discover(tmp_path / "c.json").sessions[0].segments[0].messages, "")
    assert task_source([], "own-id") == "own-id"
