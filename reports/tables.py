"""The tables of a report in their order: first what was found, then what it was found with."""

from __future__ import annotations

from leadline.reports import run_tables, scanner_tables
from leadline.reports.choices import CHOICES, protocol
from leadline.reports.contents import Contents
from leadline.reports.query import METRICS
from leadline.reports.table import Table

DECLARED = "difference-agreement"


def tables(contents: Contents) -> list[Table]:
    """What was found; tables without rows are left out, but the declared comparison: its notes say what is missing."""
    made = [
        scanner_tables.agreement(contents),
        *(run_tables.differences(contents, metric) for metric in METRICS),
        scanner_tables.teacher_forced(contents),
        scanner_tables.bytes_moved(contents),
        scanner_tables.time(contents),
        scanner_tables.divergence(contents),
        run_tables.sessions(contents),
        run_tables.exclusions(contents),
    ]
    return [table for table in made if table.rows or table.id == DECLARED]


def background(contents: Contents) -> list[Table]:
    """What it was found with: protocol, choices, environment, commands."""
    settings = tuple(protocol(contents.spec, contents.model))
    return [
        Table("protocol", "Protocol", ("setting", "value"), settings, numeric=False),
        Table("choices", "Choices behind the numbers", ("what", "choice"), CHOICES, numeric=False),
        run_tables.environment(contents),
        run_tables.commands(contents),
    ]
