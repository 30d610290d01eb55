"""Timed decode steps by themselves, for a database that holds no replay: Markdown, HTML, plain numbers, CSV."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from leadline.database import Results
from leadline.reports.decode_rows import MEASUREMENTS, Timed, measurements, timed
from leadline.reports.decode_tables import decode, found_ratios, setting
from leadline.reports.flat import Figure, decode_figures
from leadline.reports.json_report import plain
from leadline.reports.markdown import cell, table_parts
from leadline.reports.pages import environment, shared
from leadline.reports.rows import InvocationRow
from leadline.reports.run_tables import commands, machines
from leadline.reports.table import Table
from leadline.reports.words import number, plural


@dataclass(frozen=True)
class DecodeContents:
    """What `leadline bench decode` left in a database."""

    database: str
    decode: tuple[Timed, ...]
    measurements: tuple[InvocationRow, ...]


def gather_decode(results: Results) -> DecodeContents | None:
    """Everything timed in a database, as of one moment; None where nothing is."""
    with results.snapshot():
        found = timed(results)
        if not found:
            return None
        return DecodeContents(Path(results.path).name, found, tuple(measurements(results)))


def decode_summary(contents: DecodeContents) -> list[str]:
    """What was found, in a sentence per setting."""
    against = found_ratios(contents.decode)
    sentences = []
    for each in contents.decode:
        ratio = against.get((each.measurement, setting(each.time), each.time.label))
        if ratio is not None and ratio.label == ratio.baseline:
            same = [
                f"{other.label} {number(other.gpu_ratio, 2)}"
                for key, other in against.items()
                if key[:2] == (each.measurement, setting(each.time)) and other.label != ratio.baseline
            ]
            times = f"; GPU time over it: {', '.join(same)}" if same else ""
            sentences.append(
                f"{setting(each.time)}, on {each.machine}: a step of {ratio.baseline} takes "
                f"{number(each.time.time.gpu_ms, 1)} ms of GPU time and {number(each.time.time.wall_ms, 1)} ms of "
                f"wall-clock{times}."
            )
    return sentences or [f"{plural(len(contents.decode), 'timed step')}, none of them of the baseline scanner."]


def decode_sections(contents: DecodeContents) -> list[Table]:
    """Times, stages and published figures, then the machines and the commands."""
    return [
        *decode(contents.decode),
        machines(contents.measurements, "measurement", MEASUREMENTS),
        commands(contents.measurements, "measurement"),
    ]


_HEADING = "How long a decode step takes under each scanner"


def decode_markdown(contents: DecodeContents) -> str:
    """GitHub-flavoured Markdown."""
    parts = [
        f"# {_HEADING}",
        f"{cell(contents.database)} · synthetic contents",
        *map(cell, decode_summary(contents)),
        *(part for table in decode_sections(contents) for part in table_parts(table)),
    ]
    return "\n\n".join(parts) + "\n"


def decode_html(contents: DecodeContents) -> str:
    """A complete HTML document that loads nothing."""
    return (
        environment()
        .get_template("measured.html.j2")
        .render(
            title=f"decode time, {contents.database}",
            heading=_HEADING,
            meta=f"{contents.database} · synthetic contents",
            summary=decode_summary(contents),
            tables=decode_sections(contents),
            **shared(),
        )
    )


def decode_json(contents: DecodeContents) -> str:
    """The figures as numbers."""
    return json.dumps({"summary": decode_summary(contents), **plain(contents)}, indent=2, allow_nan=False)


def decode_flat(contents: DecodeContents) -> list[Figure]:
    """The figures as rows of the flat table; `run` is 0, for there is none."""
    return decode_figures(0, contents.decode)
