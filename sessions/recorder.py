"""Re-records the bundled sample sessions: a scripted agent runs real commands on real files and logs what came back.

`python -m leadline.sessions.recorder OUT_DIR [NAME ...]` plays the scripts of `samples/scripts/` (all, or those named)
and writes `OUT_DIR/replay/...` and `OUT_DIR/calibration/...`. The same scripts give the same bytes: ids and timestamps
are drawn from the session's name and are not measurements, the temporary directory is written `/workspace`, unittest's
seconds are written as 0.000, and nothing else that a command printed is touched (see `recorder_workspace`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from leadline.errors import LeadlineError, UsageError, explain
from leadline.sessions import recorder_v0, recorder_v1
from leadline.sessions.recorder_log import THOUGHT_KEPT, AgentTurn, Call, CondenseTurn, Log, UserTurn
from leadline.sessions.recorder_script import Script, Turn, bundled, load
from leadline.sessions.recorder_workspace import SHOWN_ROOT, Outcome, Workspace

_WRITE = {"openhands-v1": recorder_v1.write, "openhands-v0": recorder_v0.write}


def perform(script: Script) -> Log:
    """Play a script in a fresh workspace and return what happened. Raises MachineError where a tool is missing."""
    home = f"{SHOWN_ROOT}/{script.project}"
    with Workspace() as workspace:
        for file in script.files:
            workspace.write(f"{home}/{file.path}", file.text)
        for command in (f"mkdir -p {home} && cd {home}", *script.setup):
            done = workspace.bash(command)
            if done.exit_code != 0:
                raise UsageError(
                    explain(
                        "a setup command failed", file=script.id, field=command, found=done.text, expected="exit code 0"
                    )
                )
        turns: list[UserTurn | CondenseTurn | AgentTurn] = []
        for turn in script.turns:
            if turn.user is not None:
                turns.append(UserTurn(turn.user))
            elif turn.condense is not None:
                first, last = turn.condense.forget
                turns.append(CondenseTurn(first - 1, last - 1, turn.condense.summary))
            else:
                turns.append(AgentTurn(turn.say, _calls(turn, workspace)))
    return Log(script.id, script.task, home, tuple(turns))


def record(path: Path, out: Path) -> Path:
    """Play the script at `path` and write the session under `out`; returns the folder or file written."""
    script = load(path)
    parent = out / script.set
    for target in (parent / script.id, parent / f"{script.id}.json"):
        if target.exists():
            raise UsageError(
                explain("the recorder does not overwrite", file=target, do="remove it or name another output directory")
            )
    return _WRITE[script.format](perform(script), parent)


def _calls(turn: Turn, workspace: Workspace) -> tuple[Call, ...]:
    if turn.commands:
        return tuple(Call("bash", {"command": command}, workspace.bash(command)) for command in turn.commands)
    if (view := turn.view) is not None:
        arguments: dict[str, object] = {"command": "view", "path": view.path}
        if view.view_range is not None:
            arguments["view_range"] = list(view.view_range)
        return (Call("editor", arguments, workspace.view(view.path, view.view_range)),)
    if (create := turn.create) is not None:
        arguments = {"command": "create", **create.model_dump()}
        return (Call("editor", arguments, workspace.create(create.path, create.file_text)),)
    if (replace := turn.replace) is not None:
        arguments = {"command": "str_replace", **replace.model_dump()}
        return (Call("editor", arguments, workspace.replace(replace.path, replace.old_str, replace.new_str)),)
    if (insert := turn.insert) is not None:
        arguments = {"command": "insert", **insert.model_dump()}
        return (Call("editor", arguments, workspace.insert(insert.path, insert.insert_line, insert.new_str)),)
    if turn.think is not None:
        return (Call("think", {"thought": turn.think}, Outcome(THOUGHT_KEPT, workspace.working_dir)),)
    if turn.finish is not None:
        return (Call("finish", {"message": turn.finish}, Outcome(turn.finish, workspace.working_dir)),)
    return ()


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code (2 for a wrong argument, 3 for a missing tool)."""
    scripts = {path.stem: path for path in bundled()}
    try:
        if not arguments or arguments[0].startswith("-"):
            usage = "python -m leadline.sessions.recorder OUT_DIR [NAME ...]"
            raise UsageError(explain("no output directory", expected=usage))
        out, names = Path(arguments[0]), list(arguments[1:]) or list(scripts)
        for name in names:
            if name not in scripts:
                raise UsageError(explain("no such script", found=name, expected=", ".join(scripts)))
            print(record(scripts[name], out))
    except LeadlineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
