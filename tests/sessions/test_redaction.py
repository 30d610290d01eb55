"""Redaction: what is replaced, what is not, that JSON stays JSON, and that a session says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from session_logs import call, chat

from leadline.sessions.directory import discover, iter_sessions
from leadline.sessions.formats import Draft
from leadline.sessions.redaction import KEY, MAIL, Redactor

# Made up, and put together here so that no scanner of this file takes them for real ones.
SECRETS = [
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "gh" + "p_" + "a1B2" * 9,
    "github" + "_pat_" + "a1B2c3D4" * 4,
    "s" + "k-ant-api03-" + "a1B2_" * 8,
    "hf" + "_" + "aBcDeFgH" * 4,
    "xox" + "b-1234567890-abcdef",
    "AIza" + "Sy" + "a1B2" * 9,
    "eyJ" + "hbGciOiJIUzI1" + ".eyJ" + "zdWIiOiIxMjM0" + "." + "dozjgNryP4J3jVmN",
    "npm" + "_" + "a1B2c3D4e5" * 4,
]
JANE, USER = ("/".join(["", "home", name]) for name in ("jane", "user"))
BLOCK = "-----BEGIN " + "PRIVATE KEY-----\nabc\n-----END " + "PRIVATE KEY-----"


@pytest.mark.parametrize("secret", SECRETS)
def test_keys(secret: str) -> None:
    assert Redactor().text(f"export X='{secret}' # end") == f"export X='{KEY}' # end"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BLOCK, KEY),
        ('"api_key": "' + "a1b2c3d4" * 3 + '"', f'"api_key": "{KEY}"'),
        ("Authorization: Bearer " + "Ab1_" * 8, f"Authorization: Bearer {KEY}"),
        ("password=" + "Tr0ub4dor3xxTr0ub4dor3", f"password={KEY}"),
        ("git clone https://bob:hunter2@example.org/x", f"git clone https://{KEY}@example.org/x"),
        ("mail <jane.doe+x@mail.example.co.uk>.", f"mail <{MAIL}>."),
        (f"cd {JANE}/src && ls /Users/jane.doe", f"cd {USER}/src && ls /Users/user"),
        (r"C:\Users\jane\x", r"C:\Users\user\x"),
    ],
)
def test_what_is_replaced(before: str, after: str) -> None:
    redactor = Redactor()
    assert redactor.text(before) == after
    assert redactor.text(after) == after, "doing it twice changes nothing"


@pytest.mark.parametrize(
    "text",
    [
        "token = self.tokenizer.encode(text)",
        "secret: str = get_secret_from_the_environment()",
        "git@github.com:owner/repo.git",
        "@pytest.mark.parametrize",
        f"{USER}/x and /root and /homebrew/lib",
        "sha256 " + "0" * 64,
        "a password is needed, see https://example.org/docs@v2",
        "task-12345678901234567890123",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert Redactor().text(text) == text


def test_arguments_stay_json(tmp_path: Path) -> None:
    script = "echo\njane@example.org\t" + SECRETS[1] + f'\\ "{JANE}" ' + BLOCK + " C:\\Users\\jane\\x"
    messages = chat(1)
    messages[2]["tool_calls"] = [call("c0", json.dumps({"command": script})), call("c1", '{"broken": "' + JANE)]
    (tmp_path / "c.json").write_text(json.dumps({"messages": messages}))
    first, second = discover(tmp_path, redact=True).sessions[0].steps[0].message.tool_calls
    expected = f'echo\n{MAIL}\t{KEY}\\ "{USER}" {KEY} C:\\Users\\user\\x'
    assert first.parsed() == {"command": expected}
    assert second.arguments == '{"broken": "' + USER


def test_a_session_says_what_was_replaced_and_nothing_is_missed(tmp_path: Path) -> None:
    root = tmp_path / "home" / "jane"
    root.mkdir(parents=True)
    leak = f"{JANE}/x jane@example.org {SECRETS[0]}"
    tool = {"type": "function", "function": {"name": "run", "description": leak, "parameters": {"x": [leak]}}}
    messages = [{"role": "system", "content": leak}, *chat(1, leak)[1:], {"role": "alien " + SECRETS[0]}]
    (root / "c.json").write_text(json.dumps({"messages": messages[:-1], "tools": [tool]}))
    (root / f"{SECRETS[0]}.txt").write_text("hello")
    plain = discover(root)
    assert leak in plain.sessions[0].segments[0].messages[0].content, "off unless asked for"
    found = discover(root, redact=True)
    text = found.sessions[0].model_dump_json() + repr(found.skipped)
    assert "jane@" not in text
    assert SECRETS[0] not in text
    assert JANE not in text
    note = found.sessions[0].notes[-1]
    assert (note.kind, note.where) == ("info", "redaction")
    assert note.reason == "replaced before anything was stored: 4 e-mail addresses, 4 home paths, 4 keys and tokens"
    assert found.sessions[0].sha256 != plain.sessions[0].sha256


def test_a_session_without_secrets_says_so_and_keeps_its_hash(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"messages": chat(2)}))
    (plain,) = discover(tmp_path).sessions
    (redacted,) = iter_sessions(tmp_path, redact=True)
    assert getattr(redacted, "sha256", None) == plain.sha256
    assert discover(tmp_path, redact=True).sessions[0].notes[-1].reason.endswith(": nothing found")


def test_counts_start_anew_for_every_session() -> None:
    redactor = Redactor()
    for _ in range(2):
        (note,) = redactor.draft(Draft("f", (), ({"x": JANE},), True)).notes
        assert note.reason.endswith("1 home paths")


@pytest.mark.parametrize(
    "piece",
    [
        *("-----BEGIN " + "PRIVATE KEY-----", "token", "token1", "tokenA1.", "eyJaaaaaaaaaa-", "://a:", "a@b."),
        *("a" * 50 + "@", "sk-", "SG.aaaaaaaaaaaaaaaaaa-", "<pr_description>", "data:image/x"),
    ],
)
def test_no_text_takes_time_out_of_proportion(tmp_path: Path, piece: str) -> None:
    """A pattern that looked ahead without a bound would take minutes here."""
    text = piece * (600_000 // len(piece))
    (tmp_path / "c.json").write_text(json.dumps({"messages": chat(1, text)}))
    (session,) = discover(tmp_path, redact=True).sessions
    assert len(session.steps) == 1
