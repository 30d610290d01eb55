"""What an OpenHands V1 observation said to the model: the text of its tool message, in the 2025-09 and later schemas.

Only these fields reach the prompt; `old_content`, `new_content`, screenshots and task lists never do.
"""

from __future__ import annotations

from typing import Any

from .content import content_text, cut
from .schema import Note
from .shape import integer, mapping, string

LIMIT = 30_000
_CLIPPED = (
    "<response clipped><NOTE>Due to the max output limit, only part of the full response has been shown to you.</NOTE>"
)


def observation_text(observation: dict[str, Any], where: str, notes: list[Note]) -> str:
    """The tool message of one observation, by its `kind` and the fields it has."""
    kind = string(observation.get("kind"))
    if "content" in observation:
        text = content_text(observation["content"], where, notes)
        if kind in ("TerminalObservation", "ExecuteBashObservation"):
            text = _terminal(text, observation, where, notes)
        return f"[An error occurred during execution.]\n{text}" if observation.get("is_error") is True else text
    error = observation.get("error")
    if kind == "ExecuteBashObservation" or ("output" in observation and "metadata" in observation):
        text = content_text(observation.get("output"), where, notes)
        failed = bool(error)
        return _terminal(text, observation, where, notes, "[There was an error during command execution.]\n" * failed)
    if isinstance(error, str) and error:
        return content_text(error, where, notes)
    for field in ("output", "message", "text"):
        if field in observation:
            return content_text(observation[field], where, notes)
    return ""


def _terminal(text: str, observation: dict[str, Any], where: str, notes: list[Note], before: str = "") -> str:
    metadata = mapping(observation.get("metadata"))
    text = f"{string(metadata.get('prefix'))}{text}{string(metadata.get('suffix'))}"
    if string(metadata.get("working_dir")):
        text += f"\n[Current working directory: {metadata['working_dir']}]"
    if string(metadata.get("py_interpreter_path")):
        text += f"\n[Python interpreter: {metadata['py_interpreter_path']}]"
    exit_code = integer(metadata.get("exit_code"))
    if exit_code is not None and exit_code != -1:
        text += f"\n[Command finished with exit code {exit_code}]"
    return _cut(before + text, where, notes)


def _cut(text: str, where: str, notes: list[Note]) -> str:
    # The V1 limit counts its own marker, so the two halves are shorter than V0's.
    return cut(text, LIMIT, _CLIPPED, where, notes, room=LIMIT - len(_CLIPPED))
