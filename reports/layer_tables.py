"""Where the time and the bytes of a decode step go: GPU time by stage, scan bytes by layer."""

from __future__ import annotations

import re

from leadline.reports.check_tables import NO_GPU
from leadline.reports.contents import Contents
from leadline.reports.steps import LAYERS, STAGES
from leadline.reports.table import Table
from leadline.reports.words import NOTHING, number, significant, visible


def stages(contents: Contents) -> Table:
    """GPU milliseconds per decoded token by stage; a dash and the reason where no stage was timed."""
    names = list(dict.fromkeys(stage.stage for stage in contents.stages))
    timed = {(stage.scanner, stage.stage): stage.ms for stage in contents.stages}
    rows = []
    for figures in contents.scanners:
        own = [timed.get((figures.line.sha256, name)) for name in names]
        known = [ms for ms in own if ms is not None]
        rows.append((figures.line.shown, significant(sum(known) if known else None), *map(significant, own)))
    notes = ["Kernel and copy durations per decoded token, by what they did; stages that a fused kernel joins are one."]
    if not names:
        notes = [f"GPU ms by stage: {NOTHING}, {NO_GPU}."]
    elif len(timed) < len(names) * len(rows):
        notes.append(f"{NOTHING}: no branch of that scanner recorded that stage.")
    return Table(
        "stages",
        "GPU time by stage",
        ("scanner", "sum, ms", *names),
        tuple(rows) if names else (),
        notes=tuple(notes),
        queries=(STAGES,),
        empty=NOTHING,
    )


def layers(contents: Contents) -> Table:
    """Scan bytes per decoded token by layer, with the bits per token behind them."""
    found = {(layer.scanner, layer.place): layer for layer in contents.layers}
    lines = [
        figures.line
        for figures in contents.scanners
        if any(layer.scanner == figures.line.sha256 and layer.bits > 0 for layer in contents.layers)
    ]

    def cell(scanner: str, place: int) -> str:
        layer = found.get((scanner, place))
        return NOTHING if layer is None else f"{layer.scan_bytes / 1000:,.1f} ({number(layer.bits, 1)})"

    rows = tuple(
        (f"layer {name}", *(cell(line.sha256, place) for line in lines))
        for place, name in enumerate(contents.model.scanned_layers)
    )
    return Table(
        "layers",
        "Bytes by layer",
        ("layer", *(line.shown for line in lines)),
        rows if lines else (),
        intro="Scan kB per decoded token, all KV heads of the layer together, and in brackets its bits per token.",
        queries=(LAYERS,),
        folded=True,
    )


def stored(contents: Contents) -> list[Table]:
    """Tables that other commands left in the database, as they stand there."""
    return [
        Table(
            "stored-" + re.sub(r"\W+", "-", table.name),
            table.title,
            table.columns,
            tuple(tuple(_shown(value) for value in row) for row in table.rows),
            notes=() if len(table.rows) == table.total else (f"The first {len(table.rows)} of {table.total} rows.",),
            queries=(table.query,),
            folded=len(table.rows) > 40,
        )
        for table in contents.stored
    ]


def _shown(value: object) -> str:
    if value is None:
        return NOTHING
    return significant(value, 4) if isinstance(value, float) else visible(str(value))
