"""Mutation fuzzing of every reader: a session, or a reason why not; never an exception, never a hang.

Run as `python tests/sessions/fuzz_readers.py --runs 20000 --seed 1`; LEADLINE_RECORDINGS adds recorded sessions to the
seeds. Each run takes one seed, changes it (bytes or its decoded JSON), reads it and checks what every session
promises. A run that raises, takes more than five seconds or reports a failed reader is printed with its number, and
`--only NUMBER` repeats it.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import random
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from session_forms import every_form

from leadline.sessions.convert import write_sessions
from leadline.sessions.directory import Skipped, iter_sessions
from leadline.sessions.schema import Session

LIMIT_S = 5.0
_VALUES: list[Any] = [
    None, True, 0, -1, 10**30, 1e300, -(2**63), float("nan"), "", "x", "\ud83d", "\x00", "a" * 5000, [], {}, [None],
    [[]], {"": None}, {"text": 1}, [{"type": "text"}], [{"type": "image_url"}], "data:image/png;base64,iVBORw0KGgo=",
    "<|im_end|>", ["user"], {"role": "user"}, "\u2028\x1b[31m",
]  # fmt: skip


@dataclass
class Outcome:
    """What many runs gave: counts of results, the slowest run, and one line for every run that broke a promise."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)


def fuzz(runs: int, seed: int, *, only: int | None = None, recordings: Path | None = None) -> Outcome:
    """`runs` mutated inputs (or run number `only` alone), drawn from `seed`."""
    seeds = list(every_form().items()) + list(_recorded(recordings))
    outcome = Outcome()
    for number in range(runs) if only is None else [only]:
        draw = random.Random(f"{seed}/{number}")
        name, form = draw.choice(seeds)
        with tempfile.TemporaryDirectory() as held:
            root = Path(held)
            _write(root / "in", _mutated(form, draw))
            started = time.process_time()
            try:
                _read(root, outcome, convert=draw.random() < 0.1, redact=draw.random() < 0.2, draw=draw)
            except Exception:
                outcome.failures.append(f"run {number} ({name}): {traceback.format_exc(limit=-4)}")
            spent = time.process_time() - started
            outcome.slowest = max(outcome.slowest, spent)
            if spent > LIMIT_S:
                outcome.failures.append(f"run {number} ({name}): {spent:.1f} s")
    return outcome


def _read(root: Path, outcome: Outcome, *, convert: bool, redact: bool, draw: random.Random) -> None:
    view: Any = draw.choice(["condensed", "full"])
    found = list(iter_sessions(root / "in", view, redact=redact))
    sessions = [item for item in found if isinstance(item, Session)]
    for item in found:
        if isinstance(item, Skipped):
            outcome.counts[item.kind] += 1
            assert "reader failed" not in item.reason, item.reason
            assert "\n" not in item.reason, item.reason
    for session in sessions:
        outcome.counts["session"] += 1
        _check(session)
    outcome.counts["nothing"] += not found
    if convert and sessions:
        before = sorted(session.sha256 for session in sessions)
        for target, name in (("chat", "o.jsonl"), ("atif", "o")):
            write_sessions(sessions, target, root / name)  # type: ignore[arg-type]
            again = [item for item in iter_sessions(root / name, view) if isinstance(item, Session)]
            assert sorted(session.sha256 for session in again) == before, f"{target}: another session is read back"
        outcome.counts["round trip"] += 1


def _check(session: Session) -> None:
    assert session.sha256
    assert len({step.index for step in session.steps}) == len(session.steps)
    for segment in session.segments:
        assert 0 <= segment.carried <= len(segment.messages)
        offered: set[str] = set()
        for message in segment.messages:
            message.content.encode()
            if message.role == "assistant":
                offered = {made.id for made in message.tool_calls}
            assert message.role != "tool" or message.tool_call_id in offered, "a result without its call"
            assert message.role == "tool" or message.tool_call_id is None
    for step in session.steps:
        assert session.prompt(step) is not None


def _write(root: Path, form: dict[str, bytes]) -> None:
    root.mkdir()
    for name, data in form.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def _mutated(form: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    changed = dict(form)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        name = draw.choice(sorted(changed))
        draw.choice([_in_tree, _in_tree, _in_tree, _in_bytes])(changed, name, draw)
    if draw.random() < 0.05:
        del changed[draw.choice(sorted(changed))]
    if draw.random() < 0.05 and changed:
        name = draw.choice(sorted(changed))
        changed[draw.choice(["x.json", "y.jsonl", "events/9.json", "1.json"])] = changed[name]
    return changed


def _in_bytes(form: dict[str, bytes], name: str, draw: random.Random) -> None:
    data = form[name]
    at = draw.randrange(len(data) + 1)
    junk = bytes(draw.randrange(256) for _ in range(draw.choice([1, 2, 8])))
    deep = draw.choice([b"[", b'{"a":']) * draw.choice([10, 2000, 100_000])
    form[name] = draw.choice(
        [data[:at], data[:at] + junk + data[at:], data[:at] + junk + data[at + len(junk) :], data[at:], data + data,
         data[:at] + deep + data[at:], gzip.compress(data), gzip.compress(data)[:-9], b"\xef\xbb\xbf" + data,
         data.replace(b"\n", b"\r\n"), data[:at] + b"9" * 6000 + data[at:], data.replace(b'"', b"'")]
    )  # fmt: skip


def _in_tree(form: dict[str, bytes], name: str, draw: random.Random) -> None:
    packed = form[name].startswith(b"\x1f\x8b")
    try:
        data = gzip.decompress(form[name]) if packed else form[name]
        pieces = data.split(b"\n") if name.endswith((".jsonl", ".log")) else [data]
        at = draw.randrange(len(pieces))
        value = json.loads(pieces[at])
    except (ValueError, EOFError, OSError, zlib.error, RecursionError):  # damaged by an earlier change
        _in_bytes(form, name, draw)
        return
    try:
        for _ in range(draw.choice([1, 1, 3])):
            value = _changed(value, draw)
        pieces[at] = json.dumps(value).encode()
    except RecursionError:  # nested more than this process can copy
        _in_bytes(form, name, draw)
        return
    made = b"\n".join(pieces)
    form[name] = gzip.compress(made) if packed else made


def _changed(value: Any, draw: random.Random) -> Any:
    """The tree with one node replaced, removed, doubled, moved, wrapped or nested."""
    nodes = list(_nodes(value))
    if not nodes:
        return copy.deepcopy(draw.choice(_VALUES))
    owner, key = draw.choice(nodes)
    old = owner[key]
    change = draw.randrange(8)
    if change <= 2:
        owner[key] = copy.deepcopy(draw.choice(_VALUES))
    elif change == 3:
        del owner[key]
    elif change == 4 and isinstance(owner, list):
        owner.insert(draw.randrange(len(owner) + 1), copy.deepcopy(old))
    elif change == 5:
        other, place = draw.choice(nodes)
        if not isinstance(other, list) or place < len(other):
            owner[key] = json.loads(json.dumps(other.get(place) if isinstance(other, dict) else other[place]))
    elif change == 6:
        owner[key] = draw.choice([[old], {"text": old}, str(old), json.dumps(old)])
    else:
        for _ in range(draw.choice([3, 60, 300])):
            old = draw.choice([[old], {"a": old}])
        owner[key] = old
    return value


def _nodes(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    keys: Any = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        if depth < 12:
            yield from _nodes(value[key], depth + 1)


def _recorded(recordings: Path | None) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Recorded files of at most 40 kB (small enough to be read many times), and small recorded folders."""
    if recordings is None:
        return
    for path in sorted(recordings.glob("*/*")):
        files = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
        if 0 < sum(item.stat().st_size for item in files) <= 40_000:
            yield path.name, {str(item.relative_to(path.parent)): item.read_bytes() for item in files}


def main(read: Callable[..., Outcome] = fuzz) -> int:
    """Run from the command line; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    asked = parser.parse_args()
    named = os.environ.get("LEADLINE_RECORDINGS")
    outcome = read(asked.runs, asked.seed, only=asked.only, recordings=Path(named) if named else None)
    for failure in outcome.failures:
        print(failure)
    counts = ", ".join(f"{count} {what}" for what, count in outcome.counts.most_common())
    print(f"{asked.runs} runs, seed {asked.seed}: {counts}; slowest {outcome.slowest:.2f} s of CPU time")
    print(f"{len(outcome.failures)} broke a promise")
    return bool(outcome.failures)


if __name__ == "__main__":
    sys.exit(main())
