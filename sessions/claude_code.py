"""Reader of Claude Code logs: JSON lines of one session, each a block of a message, linked by `parentUuid`.

The blocks of one API response (one `message.id`) are one step. Lines of a branch that the user rewound are left out,
lines of side chains are sessions of their own, and a compaction opens a new segment. The log never holds the system
prompt or tool schemas. The output of `claude --output-format stream-json` has the same lines without the links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .content import content_text, note, tool_call, tool_schemas
from .formats import Draft
from .schema import Message, Note, View
from .shape import items, mapping, string
from .turns import Act, Condense, Entry, Log, Result, Say

Line = tuple[str, dict[str, Any]]
_SPOKEN = {"user", "assistant"}


class ClaudeCode:
    """All lines of one log file."""

    format = "claude-code"

    def sniff(self, value: object) -> bool:
        body = mapping(value)
        kind = string(body.get("type"))
        if kind == "summary":
            return "leafUuid" in body
        linked = body.keys() & {"uuid", "sessionId", "session_id", "parentUuid"}
        return kind in _SPOKEN and bool(linked) and isinstance(body.get("message"), dict)

    def read(self, lines: list[tuple[str, object]], view: View, notes: list[Note]) -> list[Draft]:
        bodies = [(where, mapping(value)) for where, value in lines]
        chains: dict[str, list[Line]] = {}
        for where, body in bodies:
            chains.setdefault(_agent(body), []).append((where, body))
        main = chains.pop("", [])
        if not any(_speaks(body) for _, body in main) and chains:
            name, main = next(iter(chains.items()))  # a file of a side chain's own
            del chains[name]
        drafts = [self._draft(main, view, notes, "")]
        for name, chain in chains.items():
            drafts.append(self._draft(chain, view, [], f"agent-{name}"))
        if chains:
            note(notes, "info", "log", f"{len(chains)} side chain(s) are sessions of their own")
        return drafts

    def _draft(self, lines: list[Line], view: View, notes: list[Note], part: str) -> Draft:
        _note_other_lines(lines, notes)
        log = Log(_entries(_kept(lines, notes), notes), notes, "v1")
        tools, complete = tool_schemas(None, "log", notes)
        return Draft(self.format, log.segments(view), tools, complete, notes, part=part)


def _agent(body: dict[str, Any]) -> str:
    """The side chain a line belongs to; empty for the session itself."""
    called = string(body.get("parent_tool_use_id"))
    if body.get("isSidechain") is True:
        return string(body.get("agentId")) or called or "sidechain"
    return called


def _speaks(body: dict[str, Any]) -> bool:
    return string(body.get("type")) in _SPOKEN


def _is_boundary(body: dict[str, Any]) -> bool:
    return body.get("type") == "system" and body.get("subtype") == "compact_boundary"


def _note_other_lines(lines: list[Line], notes: list[Note]) -> None:
    kinds = Counter(string(body.get("type"))[:40] or "no type" for _, body in lines if not _is_boundary(body))
    others = {kind: count for kind, count in sorted(kinds.items()) if kind not in _SPOKEN}
    if others:
        listed = ", ".join(f"{kind} ({count})" for kind, count in others.items())
        note(notes, "info", "log", f"lines that hold no message: {listed}")


def _kept(lines: list[Line], notes: list[Note]) -> list[Line]:
    """The lines on the way from the last message back to the first, in file order, and what belongs to their turns."""
    number: dict[str, int] = {}
    for position, (_, body) in enumerate(lines):
        number.setdefault(string(body.get("uuid")), position)
    unique = [n for n, (_, body) in enumerate(lines) if number[string(body.get("uuid"))] == n or not body.get("uuid")]
    if len(unique) < len(lines):
        note(notes, "info", "log", f"{len(lines) - len(unique)} line(s) logged twice")
    if not any(body.get("parentUuid") for _, body in lines):
        return [lines[n] for n in unique]
    path = _path(lines, number, notes)
    responses = {_response(lines[n][1], "") for n in path if lines[n][1].get("type") == "assistant"} - {""}
    # Parallel calls hang their results on their own block, beside the way: what answers a kept turn is kept too.
    turns = {n for n in unique if _response(lines[n][1], "") in responses} | path
    calls = {
        string(block.get("id")) for n in turns for block in _blocks(lines[n][1]) if block.get("type") == "tool_use"
    }
    answers = {n for n in unique if calls & {string(block.get("tool_use_id")) for block in _blocks(lines[n][1])}}
    kept = [n for n in unique if n in turns | answers]
    left = sum(_speaks(lines[n][1]) for n in unique) - sum(_speaks(lines[n][1]) for n in kept)
    if left:
        note(notes, "info", "log", f"{left} line(s) of branches that were rewound are left out")
    return [lines[n] for n in kept]


def _path(lines: list[Line], number: dict[str, int], notes: list[Note]) -> set[int]:
    at: int | None = next((n for n in range(len(lines) - 1, -1, -1) if _speaks(lines[n][1])), None)
    path: set[int] = set()
    while at is not None and at not in path:
        path.add(at)
        body = lines[at][1]
        parent = string(body.get("parentUuid")) or (string(body.get("logicalParentUuid")) if _is_boundary(body) else "")
        if parent and parent not in number:
            note(notes, "repaired", lines[at][0], f"parent {parent[:40]!r} is not in the log; the line before is taken")
        before = at - 1 if at > 0 and (parent or _is_boundary(body)) else None
        at = number.get(parent, before) if parent or _is_boundary(body) else None
    return path


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    content = mapping(body.get("message")).get("content")
    return [mapping(block) for block in items(content)]


def _entries(lines: list[Line], notes: list[Note]) -> Iterator[Entry]:
    texts, calling = _responses(lines, notes)
    told: set[str] = set()
    logged: set[str] = set()
    for where, body in lines:
        if _is_boundary(body):
            yield Condense(where, where, frozenset(logged), None, None)
        elif body.get("type") == "assistant":
            response = _response(body, where)
            if response not in texts:
                note(notes, "info", where, "an answer the program made up (no model wrote it) is left out")
                continue
            text = "" if response in told else texts[response]
            made = (tool_call(_call(block), where, notes) for block in _blocks(body) if block.get("type") == "tool_use")
            calls = tuple(call for call in made if call is not None)
            if response in calling and (calls or response not in told):
                yield Act(where, where, response, text, calls)
            elif response not in told:
                yield Say(where, where, Message(role="assistant", content=text))
            told.add(response)
        elif body.get("type") == "user":
            yield from _user(body, where, notes)
        logged.add(where)


def _responses(lines: list[Line], notes: list[Note]) -> tuple[dict[str, str], set[str]]:
    """The text of every model response, and the responses that call tools."""
    parts: dict[str, list[str]] = {}
    calling: set[str] = set()
    thoughts = 0
    for where, body in lines:
        message = mapping(body.get("message"))
        if body.get("type") != "assistant" or message.get("model") == "<synthetic>":
            continue
        response = _response(body, where)
        texts = parts.setdefault(response, [])
        if isinstance(message.get("content"), str):
            texts.append(content_text(message["content"], where, notes))
        for block in _blocks(body):
            kind = block.get("type")
            if kind == "tool_use":
                calling.add(response)
            elif kind == "text":
                texts.append(content_text([block], where, notes))
            elif kind in ("thinking", "redacted_thinking"):
                thoughts += 1
            else:
                note(notes, "dropped", where, f"a block of type {kind!r:.40}")
    if thoughts:
        note(notes, "info", "log", f"{thoughts} thinking block(s) are not part of the messages")
    return {response: "\n\n".join(dict.fromkeys(t for t in texts if t)) for response, texts in parts.items()}, calling


def _response(body: dict[str, Any], where: str) -> str:
    return string(mapping(body.get("message")).get("id")) or where


def _call(block: dict[str, Any]) -> dict[str, Any]:
    return {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}


def _user(body: dict[str, Any], where: str, notes: list[Note]) -> Iterator[Entry]:
    content = mapping(body.get("message")).get("content")
    said: list[object] = []
    for block in items(content):
        if mapping(block).get("type") == "tool_result":
            text = content_text(mapping(block).get("content"), where, notes)
            yield Result(where, where, string(mapping(block).get("tool_use_id")) or None, None, text)
        else:
            said.append(block)
    text = content_text(content if isinstance(content, str) else said, where, notes)
    if text:
        yield Say(where, where, Message(role="user", content=text))
