"""Tar archives: read in memory, whole or not at all, with members that would leave the archive refused by name."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from session_logs import chat, completion, folder_tar, says, tar_gz, v0_run, v0_start, v1_message, v1_system, write_v1

from leadline.sessions import files
from leadline.sessions.directory import discover

EVENTS = [v1_system(), v1_message("u", "Do it."), v1_message("a", "Done", "assistant")]


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return write_v1(tmp_path / "made" / "s", EVENTS, state={})


def archive(tmp_path: Path, data: bytes, name: str = "x.tar.gz") -> Path:
    folder = tmp_path / "archives"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar", "x"])
def test_compressed_or_not_whatever_its_name(tmp_path: Path, session: Path, name: str) -> None:
    data = folder_tar(session, "inner")
    found = discover(archive(tmp_path, gzip.decompress(data) if name == "x.tar" else data, name))
    assert [(s.id, s.format) for s in found.sessions] == [("x", "oh-v1-session-dir")]
    assert found.skipped == ()
    assert not [path for path in tmp_path.rglob("*") if path.is_dir() and path.name == "inner"], "nothing is unpacked"


def test_v0_directory_and_completions(tmp_path: Path) -> None:
    events = {f"s/events/{event['id']}.json": json.dumps(event).encode() for event in [*v0_start(), *v0_run(2, "c")]}
    logs = {f"d/m-{n}.json": json.dumps(completion(chat(n), says(n), n)).encode() for n in range(3)}
    archive(tmp_path, tar_gz(logs), "logs.tar.gz")
    found = discover(archive(tmp_path, tar_gz(events), "v0.tar.gz"))
    assert [(s.id, s.format, len(s.steps)) for s in found.sessions] == [
        ("logs", "oh-v0-llm-completions-dir", 3),
        ("v0", "oh-v0-session-dir", 1),
    ]


def test_several_sessions_in_one_archive(tmp_path: Path, session: Path) -> None:
    members = {
        f"{name}/events/{path.name}": path.read_bytes() for name in "ab" for path in (session / "events").iterdir()
    }
    members["notes.txt"] = b"hello"
    found = discover(archive(tmp_path, tar_gz(members)))
    assert [s.id for s in found.sessions] == ["x/a", "x/b"]
    assert [item.path.rsplit("/", 1)[-1] for item in found.skipped] == ["x.tar.gz#notes.txt"]


def test_attempts_in_an_archive(tmp_path: Path) -> None:
    stamps = [(n, n) for n in range(3)] + [(n, 100 + n) for n in range(4)]
    logs = {f"d/m-{at}.json": json.dumps(completion(chat(n), says(n), at)).encode() for n, at in stamps}
    found = discover(archive(tmp_path, tar_gz(logs)))
    assert [(s.id, len(s.steps)) for s in found.sessions] == [("x#attempt-1", 3), ("x#attempt-2", 4)]
    assert found.sessions[0].path.endswith("x.tar.gz#d#attempt-1")


def test_members_that_leave_the_archive_are_refused(tmp_path: Path, session: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("../evil.json", "/etc/evil.json", "s/../../evil.json"):
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"{}"))
        for kind, name in ((tarfile.SYMTYPE, "s/link"), (tarfile.LNKTYPE, "s/hard"), (tarfile.CHRTYPE, "s/dev")):
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "/etc/passwd"
            tar.addfile(info)
        tar.add(session, "s")
    found = discover(archive(tmp_path, stream.getvalue()))
    assert [s.id for s in found.sessions] == ["x"]
    refused = {item.path.split("#")[1]: item.reason for item in found.skipped}
    assert set(refused) == {"../evil.json", "/etc/evil.json", "s/../../evil.json", "s/link", "s/hard", "s/dev"}
    assert all(reason.startswith("refused: ") for reason in refused.values())
    assert all(item.kind == "broken" for item in found.skipped)


def test_damaged_archives_are_refused_whole(tmp_path: Path) -> None:
    record = json.dumps({"messages": chat(3)}).encode()
    assert 512 < len(record) < 1024, "two blocks: the second header stands at 1536"
    plain = tar_gz({"s/one.json": record, "s/two.json": record}, compress=False)
    damaged = {
        "body-cut.tar": plain[:1000],
        "header-cut.tar": plain[: 1536 + 200],
        "no-end.tar": plain[:1536],
        "header-garbled.tar": plain[:1536] + b"\xff" * 512 + plain[2048:],
        "gzip-cut.tar.gz": gzip.compress(plain)[:-20],
    }
    for name, data in damaged.items():
        archive(tmp_path, data, name)
    found = discover(archive(tmp_path, plain, "whole.tar"))
    assert [s.id for s in found.sessions] == ["whole/s/one", "whole/s/two"]
    reasons = {Path(item.path).name: item.reason for item in found.skipped}
    assert reasons.keys() == damaged.keys()
    assert all(item.kind == "broken" for item in found.skipped)
    assert all("tar archive" in reason for name, reason in reasons.items() if name != "gzip-cut.tar.gz"), reasons


def test_limits(tmp_path: Path, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = archive(tmp_path, folder_tar(session, "s"))
    monkeypatch.setattr(files, "MAX_ARCHIVE_MEMBERS", 2)
    assert [item.reason for item in discover(folder).skipped] == ["more than 2 members"]
    monkeypatch.setattr(files, "MAX_ARCHIVE_MEMBERS", 100)
    monkeypatch.setattr(files, "MAX_ARCHIVE_BYTES", 100)
    assert [item.reason for item in discover(folder).skipped] == ["members hold more than 100 bytes"]
    monkeypatch.setattr(files, "MAX_ARCHIVE_BYTES", 10_000_000)
    deep = tar_gz({"/".join(["d"] * 5000) + "/x.json": b"{}"})
    assert "folders deep" in discover(archive(tmp_path, deep, "deep.tar.gz")).skipped[0].reason
