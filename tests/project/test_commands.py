"""Every command of `leadline` explains itself, keeps its options few, and is named in the README or in docs/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from leadline.cli import app

MOST_OPTIONS = 15  # the rest belongs in the TOML file


def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    """The commands below this one, each with the words that call it."""
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from walk(command.commands[name], (*words, name))
    else:
        yield " ".join(words), command


COMMANDS = dict(walk(typer.main.get_command(app), ("leadline",)))


def test_there_are_commands() -> None:
    assert {"leadline replay", "leadline resume", "leadline calibrate"} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS)
def test_it_explains_itself(words: str) -> None:
    command = COMMANDS[words]
    assert (command.help or "").strip(), "no help text"
    unexplained = [
        parameter.opts[0]
        for parameter in command.params
        if isinstance(parameter, click.Option) and not (parameter.help or "").strip()
    ]
    assert unexplained == []


@pytest.mark.parametrize("words", COMMANDS)
def test_its_options_are_few(words: str) -> None:
    options = [
        parameter.opts[0]
        for parameter in COMMANDS[words].params
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts
    ]
    assert len(options) <= MOST_OPTIONS, options


@pytest.mark.parametrize("words", COMMANDS)
def test_it_is_documented(words: str, root: Path) -> None:
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    assert any(words in page.read_text(encoding="utf-8") for page in pages), f"`{words}` is in none of the pages"
