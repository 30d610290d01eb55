"""The `leadline` command: one typer application whose commands live one file each beside this one."""

from __future__ import annotations

import sys

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command; a `LeadlineError` is printed as one message and ends with its exit code."""
    from leadline.errors import LeadlineError

    try:
        app()
    except LeadlineError as error:
        print(f"leadline: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
