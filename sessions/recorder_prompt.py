"""What the scripted agent is told at the start of every session: the system prompt and the schemas of its tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SYSTEM_PROMPT = """\
You are a software engineer working in a terminal. You are given one task in a small project and finish it on your own.

How to work
- Look before you change: list the project, read the files that matter, run what already exists.
- Reproduce a bug before you fix it, with a failing test where the project has tests.
- Make the smallest change that solves the task. Keep the style of the code around it, and leave other files alone.
- Run the tests after every change. When something surprises you, say so and look closer instead of guessing.
- The network is not available. Do not install packages.

How to answer
- Say in one or two sentences what you are about to do and why, then call a tool.
- When the task is done, call finish with a short summary for the user: what was wrong, what you changed, how you
  checked it."""


@dataclass(frozen=True)
class ToolNames:
    """What a recording format calls the shell and the file editor."""

    bash: str
    editor: str


def tool_schemas(names: ToolNames) -> list[dict[str, Any]]:
    """The four tools as OpenAI function schemas."""
    path = {"type": "string", "description": "Absolute path, e.g. /workspace/project/file.py."}
    return [
        _function(
            names.bash,
            "Run a command in a shell that stays open: the folder you change to is kept for the next command.",
            {"command": {"type": "string", "description": "The command line to run."}},
            ["command"],
        ),
        _function(
            names.editor,
            "View, create and edit text files. str_replace needs old_str to occur exactly once in the file.",
            {
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
                "path": path,
                "file_text": {"type": "string", "description": "For create: the content of the new file."},
                "old_str": {"type": "string", "description": "For str_replace: the text to replace."},
                "new_str": {"type": "string", "description": "For str_replace and insert: the new text."},
                "insert_line": {"type": "integer", "description": "For insert: the line after which new_str goes."},
                "view_range": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "description": "For view: first and last line to show.",
                },
            },
            ["command", "path"],
        ),
        _function(
            "think",
            "Write down a thought. Nothing is run and nothing changes.",
            {"thought": {"type": "string", "description": "The thought."}},
            ["thought"],
        ),
        _function(
            "finish",
            "End the task.",
            {"message": {"type": "string", "description": "The summary for the user."}},
            ["message"],
        ),
    ]


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
