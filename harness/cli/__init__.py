"""The `leadline` command: one typer application whose commands live one file each beside this one."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from leadline import __version__

app = typer.Typer(
    name="leadline",
    help="Replay recorded coding-agent sessions and measure which key scan a long context needs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Replay recorded coding-agent sessions and measure which key scan a long context needs."""


def _mount() -> None:
    from leadline.cli import bench, scanners, sessions
    from leadline.cli.calibrate import calibrate
    from leadline.cli.compare import compare
    from leadline.cli.demo import demo
    from leadline.cli.env import env
    from leadline.cli.export import export
    from leadline.cli.fidelity import fidelity
    from leadline.cli.plan import plan
    from leadline.cli.replay import replay, resume
    from leadline.cli.report import report
    from leadline.cli.ruler import ruler
    from leadline.cli.share import share

    for command in (plan, replay, resume, report, compare, export, share, calibrate, fidelity, ruler, demo, env):
        app.command()(command)
    app.add_typer(bench.app, name="bench", help="Time decode steps on synthetic contents.")
    app.add_typer(scanners.app, name="scanners", help="List, write and check scanners.")
    app.add_typer(sessions.app, name="sessions", help="List, show and check recorded sessions.")


def main() -> None:
    """Run the command; a `LeadlineError` is printed as one message and ends with its exit code."""
    from leadline.errors import LeadlineError

    try:
        app()
    except LeadlineError as error:
        print(f"leadline: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # the reader of a pipe went away: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


_mount()
