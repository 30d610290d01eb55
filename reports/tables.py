"""The tables of a report in their order: first what was found, then what it was found with."""

from __future__ import annotations

from leadline.reports import (
    check_tables,
    decode_tables,
    fidelity_tables,
    layer_tables,
    query,
    ruler_tables,
    run_tables,
    scanner_tables,
)
from leadline.reports.choices import CHOICES, protocol
from leadline.reports.contents import Contents
from leadline.reports.query import METRICS
from leadline.reports.table import Table

DECLARED = "difference-agreement"
# Shown without rows too: their notes say what is missing and why.
ALWAYS = (DECLARED, "stages")


def tables(contents: Contents) -> list[Table]:
    """What was found; tables without rows are left out, but those whose notes say what is missing."""
    primary, *secondary = METRICS
    made = [
        scanner_tables.agreement(contents),
        run_tables.differences(contents, primary),
        check_tables.against_floor(contents),
        check_tables.checks(contents),
        check_tables.outcomes(contents),
        check_tables.selections(contents),
        scanner_tables.teacher_forced(contents),
        scanner_tables.single_tokens(contents),
        *(run_tables.differences(contents, metric) for metric in secondary),
        scanner_tables.divergence(contents),
        scanner_tables.bytes_moved(contents),
        layer_tables.layers(contents),
        scanner_tables.time(contents),
        layer_tables.stages(contents),
        check_tables.ratios(contents),
        *decode_tables.decode(contents.decode),
        *fidelity_tables.fidelity_sections(contents.fidelity),
        *ruler_tables.ruler(contents.ruler),
        *layer_tables.stored(contents),
        run_tables.sessions(contents),
        run_tables.degenerate(contents),
        run_tables.exclusions(contents),
    ]
    return [table for table in made if table.rows or table.id in ALWAYS]


def background(contents: Contents) -> list[Table]:
    """What it was found with: protocol, choices, calibrations, environment, commands."""
    settings = tuple(protocol(contents.spec, contents.model))
    made = [
        Table("protocol", "Protocol", ("setting", "value"), settings, numeric=False),
        Table("choices", "Choices behind the numbers", ("what", "choice"), CHOICES, numeric=False, folded=True),
        run_tables.calibrations(contents),
        run_tables.machines(contents.invocations, "invocation", query.INVOCATIONS),
        run_tables.commands(contents.invocations, "invocation"),
    ]
    return [table for table in made if table.rows]
