"""Large inputs: JSON lines are streamed, sessions come one at a time, bombs are refused, memory stays flat."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from session_forms import V1, lines, v1_files, zipped
from session_logs import chat, tar_gz

from leadline.sessions import files
from leadline.sessions.directory import Skipped, discover, iter_sessions
from leadline.sessions.schema import Session

RECORD = json.dumps({"messages": chat(20, "x" * 20_000)}).encode() + b"\n"


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "STREAM_BYTES", 100_000)
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 200_000)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 300_000)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.usefixtures("small_limits")
def test_a_file_larger_than_any_document_is_read_by_lines(tmp_path: Path, packed: bool) -> None:
    data = RECORD * 20 + b"{broken\n" + b'{"a": "' + b"y" * 250_000 + b'"}\n' + RECORD
    assert len(data) > files.MAX_FILE_BYTES
    (tmp_path / "r.jsonl").write_bytes(gzip.compress(data, 1) if packed else data)
    found = discover(tmp_path)
    assert [session.id for session in found.sessions] == [f"r#line-{n}" for n in (*range(1, 21), 23)]
    assert [(item.path.rsplit("#")[-1], item.kind) for item in found.skipped] == [
        ("line-21", "broken"),
        ("line-22", "broken"),
    ]
    assert found.skipped[1].reason == "the line has more than 200000 bytes"
    assert found.sessions[0].sha256 == found.sessions[-1].sha256


@pytest.mark.usefixtures("small_limits")
def test_a_truncated_gzip_gives_what_stands_before_the_cut(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(RECORD.replace(b"Be good.", b"Be good %d." % n) for n in range(40)), 0)
    (tmp_path / "r.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    found = discover(tmp_path)
    assert 15 <= len(found.sessions) <= 20
    assert [item.reason for item in found.skipped] == ["truncated gzip: the file ends before its data does"]


@pytest.mark.usefixtures("small_limits")
def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RATIO", 20)
    record = json.dumps({"messages": chat(1)}).encode()
    (tmp_path / "long-line.jsonl.gz").write_bytes(gzip.compress(record + b"\n" + b" " * 5_000_000))
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress((record + b"\n") * 4_000))
    (tmp_path / "blank.json.gz").write_bytes(gzip.compress(b"\n" * 20_000_000))
    reasons: dict[str, list[str]] = {}
    count = 0
    for item in iter_sessions(tmp_path):
        if isinstance(item, Skipped):
            reasons.setdefault(Path(item.path).name.split("#")[0], []).append(item.reason)
        count += isinstance(item, Session)
    assert all(len(found) == 1 for found in reasons.values())
    assert reasons["long-line.jsonl.gz"][0].startswith(("the line has more than", "decompresses to more than"))
    assert reasons["lines.jsonl.gz"][0] == "decompresses to more than 20 times its size; not read further"
    assert reasons["blank.json.gz"][0] == "decompresses to more than 300000 bytes"
    assert 0 < count < 4_000


@pytest.mark.usefixtures("small_limits")
def test_one_session_of_many_lines_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "v1.jsonl").write_bytes(lines(V1) * 300)
    (item,) = discover(tmp_path).skipped
    assert (item.reason, item.kind) == ("one session of more than 300000 bytes", "broken")


@pytest.mark.usefixtures("small_limits")
def test_a_large_document_is_still_a_document(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"messages": chat(20, "x" * 150_000)}, indent=1))
    assert [len(session.steps) for session in discover(tmp_path).sessions] == [20]


def test_streaming_holds_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "STREAM_BYTES", 1_000_000)
    (tmp_path / "r.jsonl").write_bytes(RECORD * 400)
    for number in range(40):
        (tmp_path / f"{number}.json").write_bytes(RECORD)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 10_000_000
    count = 0
    tracemalloc.start()
    for item in iter_sessions(tmp_path):
        count += isinstance(item, Session)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 440
    assert peak < 2_000_000


def test_folders_are_looked_into_when_their_turn_comes(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "c.json").write_bytes(RECORD)
    walk = iter_sessions(tmp_path)
    next(walk)
    (tmp_path / "1" / "c.json").unlink()
    (tmp_path / "2" / "d.json").write_bytes(RECORD)
    assert [item.id for item in walk if isinstance(item, Session)] == ["2/c", "2/d"]


def test_zip_archives_follow_the_rules_of_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = v1_files(pattern="event_{0:06d}_0000-{0:04d}.json") | {"meta.json": b"{}"}
    bad = {"../evil.json": b"{}", "/etc/evil.json": b"{}", "C:\\evil.json": b"{}", "a\\..\\..\\evil.json": b"{}"}
    (tmp_path / "good.zip").write_bytes(zipped(good | bad))
    found = discover(tmp_path)
    assert [(session.id, len(session.steps)) for session in found.sessions] == [("good", 3)]
    assert len(found.skipped) == 4
    assert all(item.reason == "refused: the member's path leaves the archive" for item in found.skipped)
    assert [path.name for path in tmp_path.rglob("*")] == ["good.zip"]
    whole = (tmp_path / "good.zip").read_bytes()
    (tmp_path / "good.zip").write_bytes(whole[: len(whole) // 2])
    assert discover(tmp_path).skipped[0].reason.startswith("broken zip archive: ")
    (tmp_path / "good.zip").write_bytes(zipped({"zeros.json": b" " * 5_000_000}))
    monkeypatch.setattr(files, "MAX_ARCHIVE_BYTES", 1_000_000)
    assert [item.reason for item in discover(tmp_path).skipped] == ["members hold more than 1000000 bytes"]
    monkeypatch.setattr(files, "MAX_ARCHIVE_MEMBERS", 3)
    (tmp_path / "good.zip").write_bytes(zipped(good))
    assert [item.reason for item in discover(tmp_path).skipped] == ["more than 3 members"]


def test_archives_inside_archives_end(tmp_path: Path) -> None:
    data = zipped(v1_files("s/events/"))
    for depth in range(4):
        (tmp_path / "x.tar.gz").write_bytes(data)
        found = discover(tmp_path)
        assert len(found.sessions) == (depth < 2)
        assert [item.kind for item in found.skipped] == ([] if depth < 2 else ["broken"])
        data = tar_gz({"inner.zip": data})


@pytest.mark.slow
def test_two_gigabytes_of_lines_stay_under_500_megabytes(tmp_path: Path) -> None:
    target = tmp_path / "big.jsonl"
    with target.open("wb") as stream:
        for _ in range(2**31 // len(RECORD * 100) + 1):
            stream.write(RECORD * 100)
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from leadline.sessions.directory import iter_sessions\n"
        "count = sum(1 for _ in iter_sessions(sys.argv[1]))\n"
        # Not getrusage: its maximum is inherited from the process that forked this one.
        "peak = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith('VmHWM'))\n"
        "print(count, int(peak.split()[1]) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(target)], capture_output=True, text=True, check=True)
    count, megabytes = map(int, done.stdout.split())
    assert target.stat().st_size > 2**31
    assert count == target.stat().st_size // len(RECORD)
    assert megabytes < 500
