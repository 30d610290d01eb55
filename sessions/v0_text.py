"""What an OpenHands V0 action or observation said to the model, as its ConversationMemory put it into the prompt."""

from __future__ import annotations

from typing import Any

from .content import IMAGE, content_text, cut, note, plain
from .schema import Note
from .shape import integer, items, mapping, string

LIMIT = 30_000
_CUT = "\n[... Observation truncated due to length ...]\n"
_INLINE_IMAGE = "![image](data:image/png;base64,"
_IMAGE_SHOWN = "![image](data:image/png;base64, ...) already displayed to user"
_TAGS = {"run": ("execute_bash", "command"), "run_ipython": ("execute_ipython", "code"),
         "browse_interactive": ("execute_browse", "browser_actions"), "browse": ("execute_browse", "url")}  # fmt: skip


def observation_text(body: dict[str, Any], where: str, notes: list[Note], *, old: bool, for_user: bool) -> str:
    """The text of one observation, cut at 30,000 characters (file reads excepted).

    old: the log is from before tool calls, when every observation was a user message that opened with OBSERVATION.
    for_user: the observation answers no tool call of the agent (a command the user ran).
    """
    kind = string(body.get("observation"))
    extras = mapping(body.get("extras"))
    text = _raw_text(body, where, notes)
    if kind == "read":
        return f"OBSERVATION:\n{text}" if old else text
    if kind == "run":
        text = _run_text(text, extras)
        if for_user and not old:
            text = f"\nObserved result of command executed by user:\n{text}"
    text = cut(text, LIMIT, _CUT, where, notes)
    if kind == "error":
        text += "\n[Error occurred in processing last action]"
    elif kind == "user_rejected":
        text += "\n[Last action has been rejected by the user]"
    return f"OBSERVATION:\n{text}" if old or kind == "user_rejected" else text


def _raw_text(body: dict[str, Any], where: str, notes: list[Note]) -> str:
    kind = string(body.get("observation"))
    extras = mapping(body.get("extras"))
    if kind == "run_ipython":
        lines = string(body.get("content")).split("\n")
        images = sum(_INLINE_IMAGE in line for line in lines)
        if images:
            note(notes, "image", where, f"{images} inline image(s) replaced as OpenHands did")
        shown = (_IMAGE_SHOWN if _INLINE_IMAGE in line else line for line in lines)
        return plain("\n".join(shown), where, notes)
    if kind == "edit" and string(extras.get("formatted_output_and_error")):
        return plain(extras["formatted_output_and_error"], where, notes)  # the prompt had this, not the diff
    if kind == "delegate":
        return plain(string(mapping(extras.get("outputs")).get("content")) or string(body.get("content")), where, notes)
    return content_text(body.get("content"), where, notes)


def _run_text(text: str, extras: dict[str, Any]) -> str:
    metadata = extras.get("metadata")
    if not isinstance(metadata, dict):
        exit_code = integer(extras.get("exit_code"))
        if exit_code is None:
            return text
        return f"{text}\n[Command {integer(extras.get('command_id'))} finished with exit code {exit_code}]"
    text = f"{string(metadata.get('prefix'))}{text}{string(metadata.get('suffix'))}"
    if string(metadata.get("working_dir")):
        text += f"\n[Current working directory: {metadata['working_dir']}]"
    if string(metadata.get("py_interpreter_path")):
        text += f"\n[Python interpreter: {metadata['py_interpreter_path']}]"
    exit_code = integer(metadata.get("exit_code"))
    if exit_code is not None and exit_code != -1:
        text += f"\n[Command finished with exit code {exit_code}]"
    return text


def message_text(body: dict[str, Any], where: str, notes: list[Note]) -> str:
    """A message action: its content, one marker for each attached image. The `message` key is a summary for people."""
    args = mapping(body.get("args"))
    text = content_text(args.get("content", body.get("message")), where, notes)
    images = sum(bool(string(url)) for url in items(args.get("image_urls") or args.get("images_urls")))
    if images:
        note(notes, "image", where, f"{images} attached image(s) replaced by {IMAGE}")
    return "\n".join([text, *[IMAGE] * images])


def action_text(body: dict[str, Any], where: str, notes: list[Note]) -> str:
    """An action recorded without its model response, in the text form of agents from before tool calls."""
    action, args = string(body.get("action")), mapping(body.get("args"))
    thought = plain(string(args.get("thought")), where, notes)
    if action in _TAGS:
        tag, argument = _TAGS[action]
        return f"{thought}\n<{tag}>\n{string(args.get(argument))}\n</{tag}>"
    note(notes, "repaired", where, f"a {action!r} action has no recorded model response; only its thought is kept")
    return thought


def finish_text(body: dict[str, Any], said: str, where: str, notes: list[Note]) -> str:
    """A finish as later prompts show it: plain text without a tool call."""
    args = mapping(body.get("args"))
    outputs = mapping(args.get("outputs"))
    texts = [string(args.get("thought")), said]
    if not said:
        texts += [string(args.get("final_thought")), string(outputs.get("content"))]
    kept = [text for number, text in enumerate(texts) if text and text not in texts[:number]]
    return plain("\n".join(kept), where, notes)


def recall_text(extras: dict[str, Any], where: str, notes: list[Note]) -> str:
    """What a recall added: repository instructions and microagent texts; the template around them is not recorded."""
    texts = [string(extras.get("repo_instructions"))]
    texts += [string(mapping(agent).get("content")) for agent in items(extras.get("microagent_knowledge"))]
    text = "\n\n".join(text for text in texts if text)
    if text:
        note(
            notes, "missing", where, "the text around recalled instructions is not recorded; only their content is kept"
        )
    return plain(text, where, notes)
