"""The tables of a fidelity measurement: errors, equal-error bits, the sweep over k, layers, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leadline.reports.fidelity_figures import EqualError, FidelityFigures, FidelityLine
from leadline.reports.query import Query
from leadline.reports.table import Table
from leadline.reports.words import NOTHING, number, plural, significant, with_interval

FIGURES = Query(
    "fidelity",
    "SELECT label, family, k, AVG(bits) AS bits, AVG(error) AS error, AVG(recall) AS recall, AVG(rows) AS rows\n"
    "FROM fidelity WHERE measurement_id = :measurement GROUP BY label, family, k ORDER BY k, family, bits",
)
LAYERS = Query(
    "fidelity_by_layer",
    "SELECT layer, label, AVG(error) AS error FROM fidelity WHERE measurement_id = :measurement\n"
    "GROUP BY layer, label ORDER BY layer, label",
)
_HEAT = (
    "exact", "fathom:budget=48", "fathom:budget=48,basis=rotated", "fathom:budget=48,plan=per-layer", "sparq:r=16",
    "double_sparsity:channels=32", "loki:r=32", "thumbnail", "landmarks", "streaming",
)  # fmt: skip


def fidelity_sections(stored: Sequence[FidelityFigures]) -> list[Table]:
    """The tables of all measurements of a database; ids and titles tell them apart where there are several."""
    made = []
    for figures in stored:
        spec = figures.result.spec
        for table in fidelity_tables(figures, prefix_of(figures, stored)):
            where = f": {spec.model}, {spec.length:,} tokens" if len(stored) > 1 else ""
            made.append(replace(table, title=f"{table.title}{where}"))
    return made


def prefix_of(figures: FidelityFigures, stored: Sequence[FidelityFigures]) -> str:
    """What the ids of a measurement's tables begin with."""
    return "fidelity" if len(stored) == 1 else f"fidelity-{stored.index(figures) + 1}"


def fidelity_tables(figures: FidelityFigures, prefix: str = "fidelity") -> list[Table]:
    """The tables of one measurement in the order of their questions; `prefix` begins their ids."""
    return [
        errors(figures, prefix),
        equal_error(figures, prefix),
        sweep(figures, prefix),
        by_layer(figures, prefix),
        protocol(figures, prefix),
    ]


def errors(figures: FidelityFigures, prefix: str = "fidelity") -> Table:
    """Error, multiple of exact's, recall, bits and rows of every scanner at the main k."""
    spec = figures.result.spec
    windows = len(figures.result.windows)
    notes = [
        "Error: ||o − o_dense|| / ||o_dense|| of the attention output, mean over query heads, layers and the last "
        f"{spec.positions} positions of each window; recall: the share of exact top-k's choice beyond the {spec.sink} "
        f"sinks and {spec.local} local tokens. In brackets: 95% t intervals over {plural(windows, 'window')}.",
        "Bits per token per KV head are the plan's, scales included.",
    ]
    return Table(
        f"{prefix}-errors",
        f"Attention error at k = {spec.k} of {spec.length:,} tokens",
        ("scanner", "family", "bits", "bits / d", "error", "× exact", "recall", "rows per KV head"),
        tuple(_errors_row(line, spec.head_dim) for line in _ordered(figures.main)),
        notes=tuple(notes),
        queries=(FIGURES,),
    )


def equal_error(figures: FidelityFigures, prefix: str = "fidelity") -> Table:
    """Bits at which each family reaches a target's error."""
    grids = {
        line.family: sorted(other.bits for other in figures.main if other.family == line.family)
        for line in figures.main
    }
    shown = [each for each in figures.equal if each.reached or each.below]
    missed = sorted({each.family for each in figures.equal} - {each.family for each in shown})
    notes = [
        "Bits where a family's curve reaches the target's error, by isotonic regression of log error on log bits, "
        "joined by straight lines, window by window; geometric mean over windows with its 95% t interval. Outside the "
        "grid nothing is extrapolated.",
        "Grids, bits: "
        + "; ".join(
            f"{family} {', '.join(number(bits, 0) for bits in grid)}" for family, grid in grids.items() if len(grid) > 1
        )
        + ".",
    ]
    if missed:
        notes.append(f"Not reached for any target: {', '.join(missed)}.")
    return Table(
        f"{prefix}-equal",
        "Bits of equal error",
        ("target", "its bits", "family", "bits of equal error", "saving"),
        tuple(_equal_row(each, grids[each.family]) for each in shown),
        notes=tuple(notes),
        queries=(FIGURES,),
        folded=len(shown) > 40,
    )


def sweep(figures: FidelityFigures, prefix: str = "fidelity") -> Table:
    """Error by k of the scanners measured at every k."""
    ks = sorted({line.k for line in figures.lines})
    swept: dict[str, dict[int, FidelityLine]] = {}
    for line in figures.lines:
        swept.setdefault(line.label, {})[line.k] = line
    rows = tuple(
        (label, *(f"{number(by_k[k].error.mean, 4)} ({number(by_k[k].times_exact.mean, 2)})" for k in ks))
        for label, by_k in swept.items()
        if len(ks) > 1 and set(ks) <= set(by_k)
    )
    length = figures.result.spec.length
    return Table(
        f"{prefix}-sweep",
        "Attention error by selected tokens",
        ("scanner", *(f"k = {k} ({100 * k / length:.1f}%)" for k in ks)),
        rows,
        intro="Error, and in brackets the multiple of exact top-k's at the same k.",
        queries=(FIGURES,),
    )


def by_layer(figures: FidelityFigures, prefix: str = "fidelity") -> Table:
    """Error by layer of a scanner of each kind."""
    chosen = heat_lines(figures)
    rows = tuple(
        (f"layer {layer}", *(number(line.by_layer[place], 4) for line in chosen))
        for place, layer in enumerate(figures.result.spec.layers)
    )
    return Table(
        f"{prefix}-layers",
        "Attention error by layer",
        ("layer", *(line.label for line in chosen)),
        rows,
        queries=(LAYERS,),
        folded=True,
    )


def protocol(figures: FidelityFigures, prefix: str = "fidelity") -> Table:
    """What was measured, on what."""
    spec = figures.result.spec
    calibration = "none" if spec.calibration_sha256 is None else spec.calibration_sha256[:12]
    made_at = f", made at {spec.calibration_length:,} tokens" if spec.calibration_length is not None else ""
    layers = plural(len(spec.layers), "scanned layer")
    rows = [
        ("model", f"{spec.model}, weights {spec.weights_sha256[:12]}, {spec.dtype} on {spec.device}, rope {spec.rope}"),
        ("shape", f"{layers}, {spec.kv_heads} KV heads of {spec.groups} query heads, d = {spec.head_dim}"),
        ("text", spec.text),
        ("selection", f"k = {spec.k}, of them {spec.sink} sinks and {spec.local} local"),
        ("measured", f"last {spec.positions} positions of windows of {spec.length:,} tokens, prefill in {spec.chunk}s"),
        ("calibration", calibration + made_at),
        ("basis chosen by it", spec.basis_choice or NOTHING),
        *((f"window {each.window}", f"{each.name}, tokens {each.sha256[:12]}") for each in figures.result.windows),
        *(("note", note) for note in spec.notes),
    ]
    return Table(
        f"{prefix}-protocol", "Fidelity protocol", ("setting", "value"), tuple(rows), numeric=False, folded=True
    )


def heat_lines(figures: FidelityFigures) -> list[FidelityLine]:
    """A scanner of each kind, as far as they were measured; all of them where few were."""
    found = [line for label in _HEAT for line in figures.main if line.label == label]
    return found if len(found) > 2 else list(figures.main)[:12]


def _ordered(lines: list[FidelityLine]) -> list[FidelityLine]:
    families = list(dict.fromkeys(line.family for line in lines))
    return sorted(lines, key=lambda line: (families.index(line.family), line.bits))


def _errors_row(line: FidelityLine, head_dim: int) -> tuple[str, ...]:
    return (
        line.label,
        line.family,
        number(line.bits, 1),
        number(line.bits / head_dim, 2),
        with_interval(line.error, 4),
        number(line.times_exact.mean, 2),
        number(line.recall.mean, 3),
        number(line.rows, 1),
    )


def _equal_row(each: EqualError, grid: list[float]) -> tuple[str, ...]:
    if each.mean is not None:
        around = f" [{number(each.low, 0)}, {number(each.high, 0)}]" if each.low is not None else ""
        said = f"{number(each.mean, 0)}{around}"
    elif each.below == each.windows:
        said = f"below {number(grid[0], 0)}"
    else:
        beyond = each.windows - each.reached - each.below
        said = ", ".join(
            f"{what} in {count} of {each.windows}"
            for what, count in (("reached", each.reached), ("below the grid", each.below), ("not reached", beyond))
            if count
        )
    return (
        each.target,
        number(each.target_bits, 1),
        each.family,
        said,
        significant(each.saving, 3) + ("×" if each.saving else ""),
    )
