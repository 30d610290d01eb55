"""The tables of docs/agent-sessions.md and of README's first section, from the published databases.

`python tests/reports/agent_sessions_tables.py` writes them between their markers; a test says whether they stand there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from leadline.database import Results
from leadline.reports.contents import gather
from leadline.reports.json_report import report_json

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "reports" / "reference" / "agent-sessions"
PAGES = (ROOT / "README.md", ROOT / "docs" / "agent-sessions.md")
NONE = "–"
FLOOR = "exact (prefill in 3072s)"
STAGES = {"primary": "primary", "full-view": "full view", "k512": "k = 512", "small-model": "0.5B"}


@cache
def figures(stage: str) -> dict[str, Any]:
    """What `leadline report --json` says of a stage's database."""
    with Results.open(PUBLISHED / f"{stage}.sqlite", read_only=True) as results:
        found: dict[str, Any] = json.loads(report_json(gather(results)))
        found["points"] = results.query("SELECT prompt_tokens FROM branch_point ORDER BY 1")
        found["decoded"] = results.query(
            "SELECT c.decode_steps, r.stopped FROM step_result r JOIN step_cost c ON c.step_result_id = r.id "
            "JOIN scanner s ON s.run_id = r.run_id AND s.sha256 = r.scanner_sha256 WHERE s.label = 'exact'"
        )
    return found


def scanners(stage: str) -> dict[str, dict[str, Any]]:
    return {one["line"]["label"]: one for one in figures(stage)["scanners"]}


def pairs(stage: str, metric: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = figures(stage)["comparisons"]["comparisons"]
    return {(one["scanner"], one["baseline"]): one for one in found if one["metric"] == metric and one["declared"]}


# --- cells ------------------------------------------------------------------------------------------------------------


def named(label: str) -> str:
    return {"exact": "exact top-k", "dense": "dense", FLOOR: "exact top-k again, prefill in 3072s"}.get(
        label, f"`{label}`"
    )


def estimate(one: dict[str, Any], digits: int = 2, scale: float = 1.0) -> str:
    mean = f"{one['mean'] * scale:.{digits}f}"
    if one["low"] is None:
        return mean
    return f"{mean} [{one['low'] * scale:.{digits}f}, {one['high'] * scale:.{digits}f}]".replace("-", "−")


def difference(one: dict[str, Any], digits: int = 2, scale: float = 1.0) -> str:
    low, high = one["low"], one["high"]
    around = "" if low is None else f" [{low * scale:+.{digits}f}, {high * scale:+.{digits}f}]"
    return f"{one['difference'] * scale:+.{digits}f}{around}".replace("-", "−")


def chance(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def bits(one: dict[str, Any]) -> str:
    found = one["cost"]["bits_per_token"]
    return f"{found:.1f}" if found else NONE


def calls(one: dict[str, Any]) -> str:
    same, of = one["action"]
    return f"{same:.0f}/{of}" if of else NONE


def gpu(label: str, stage: str = "timing") -> str:
    found = scanners(stage)[label]["cost"]["gpu_ms"]
    return f"{found:.1f}" if found else NONE


def degenerate(one: dict[str, Any]) -> str:
    bad = one["empty"] + one["repeating"]
    return f"{bad}/{one['steps']}" if bad else "none"


def table(head: Iterable[str], align: str, rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; `align` holds l or r for every column."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if one == "l" else "--:" for one in align) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


# --- tables -----------------------------------------------------------------------------------------------------------


def readme() -> str:
    rows, found = [], pairs("primary", "agreement")
    for label, one in scanners("primary").items():
        if label == "exact":
            continue
        pair = found.get((label, "sparq:r=16"))
        rows.append((
            named(label), bits(one), estimate(one["agreement"]), calls(one),
            f"{one['reference_kl_exact']['mean'] * 1000:.1f}",
            difference(pair["difference"]) if pair else NONE, pair["verdict"] if pair else NONE, gpu(label),
        ))  # fmt: skip
    head = (
        "scanner",
        "scan bits",
        "agreement",
        "same call",
        "KL",
        "agreement less `sparq:r=16`'s",
        "verdict",
        "GPU ms",
    )
    return table(head, "lrrrrrlr", rows)


def stages() -> str:
    rows = []
    for stage, shown in STAGES.items():
        found, exact = figures(stage), scanners(stage)["exact"]
        tokens = [one["prompt_tokens"] for one in found["points"]]
        points = len(tokens)
        aside = sum(one["reason"].startswith("degenerate: ") for one in found["exclusions"])
        steps = [one["decode_steps"] for one in found["decoded"]]
        ended = sum(one["stopped"] for one in found["decoded"])
        lengths = (min(tokens), statistics.median(tokens), max(tokens))
        rows.append((
            f"[{shown}](../reports/reference/agent-sessions/{stage}.md)", str(found["spec"]["k"]),
            str(exact["sessions"]), str(exact["units"]), f"{points}" + (f" (+{aside})" if aside else ""),
            " / ".join(f"{one / 1000:.0f}k" for one in lengths),
            f"{statistics.mean(steps):.0f}", f"{ended}/{points}", str(found["run"]["results"]),
        ))  # fmt: skip
    head = (
        "stage", "k", "recordings", "clusters", "branch points (set aside)", "prompt tokens, least / median / most",
        "tokens decoded, mean", "steps that ended within 128", "branches",
    )  # fmt: skip
    return table(head, "lrrrrrrrr", rows)


def against_floor(stage: str, label: str) -> str:
    """A scanner's agreement less that of the noise floor, and whether the interval holds 0."""
    found = figures(stage)["floor"].get(label)
    if found is None:
        return NONE
    d = found["difference"]
    apart = d["low"] is not None and not d["low"] <= 0 <= d["high"]
    return difference(d) + (" **apart**" if apart else "")


def primary() -> str:
    rows = [
        (
            named(label), f"{one['sessions']} ({one['units']})", bits(one), estimate(one["agreement"]),
            against_floor("primary", label), f"{one['exact_match']['mean']:.2f}", calls(one),
            estimate(one["reference_kl_exact"], 2, 1000), f"{one['recorded_kl_exact']['mean'] * 1000:.2f}",
            f"{one['reference_kl_dense']['mean'] * 1000:.1f}", degenerate(one), gpu(label),
        )
        for label, one in scanners("primary").items()
    ]  # fmt: skip
    head = (
        "scanner", "recordings (clusters)", "scan bits", "agreement", "less the noise floor's", "same step",
        "same call", "KL(exact‖·)", "on the recorded text", "KL(dense‖·)", "degenerate", "GPU ms",
    )  # fmt: skip
    return table(head, "lrrrrrrrrrrr", rows)


def verdicts() -> str:
    rows = []
    divergence = pairs("primary", "kl_exact_reference")
    for (label, baseline), one in pairs("primary", "agreement").items():
        kl = divergence[label, baseline]
        rows.append((
            f"{named(label)} − {named(baseline)}", difference(one["difference"], 3), chance(one["p"]),
            chance(one["holm_p"]), one["verdict"], difference(kl["difference"], 1, 1000), chance(kl["holm_p"]),
            kl["verdict"],
        ))  # fmt: skip
    head = ("pair", "agreement, difference", "p", "Holm p", "verdict", "KL(exact‖·), difference", "Holm p", "verdict")
    return table(head, "lrrrlrrl", rows)


def secondary(stage: str, timed: str | None = None) -> str:
    """One row a scanner of a secondary stage: its comparison to SparQ r=16, and its GPU time in the stage `timed`."""
    rows = []
    divergence = pairs(stage, "kl_exact_reference")
    for label, one in scanners(stage).items():
        pair, kl = pairs(stage, "agreement").get((label, "sparq:r=16")), divergence.get((label, "sparq:r=16"))
        compared = [NONE] * 3
        if pair and kl:
            compared = [difference(pair["difference"]), f"{pair['verdict']} ({chance(pair['holm_p'])})"]
            compared.append(f"{kl['verdict']} ({chance(kl['holm_p'])})")
        rows.append((
            named(label), f"{one['sessions']} ({one['units']})", bits(one), estimate(one["agreement"]),
            against_floor(stage, label), calls(one), estimate(one["reference_kl_exact"], 1, 1000), degenerate(one),
            *compared, *([gpu(label, timed)] if timed else []),
        ))  # fmt: skip
    head = (
        "scanner", "recordings (clusters)", "scan bits", "agreement", "less the noise floor's", "same call",
        "KL(exact‖·)", "degenerate", "agreement less `sparq:r=16`'s", "verdict (Holm p)", "by KL",
        *(["GPU ms"] if timed else []),
    )  # fmt: skip
    return table(head, "lrrrrrrrrll" + ("r" if timed else ""), rows)


def against_sparq32() -> str:
    rows = []
    for stage, shown in STAGES.items():
        one = pairs(stage, "agreement")["fathom:budget=80", "sparq:r=32"]
        kl = pairs(stage, "kl_exact_reference")["fathom:budget=80", "sparq:r=32"]
        d = one["difference"]
        rows.append((
            shown, f"{d['mean']:.2f}", f"{d['baseline_mean']:.2f}", difference(d, 3), chance(one["holm_p"]),
            one["verdict"], difference(kl["difference"], 2, 1000), f"{kl['verdict']} ({chance(kl['holm_p'])})",
        ))  # fmt: skip
    head = ("stage", "`fathom:budget=80`", "`sparq:r=32`", "difference", "Holm p", "verdict", "KL(exact‖·), 10⁻³",
            "verdict (Holm p)")  # fmt: skip
    return table(head, "lrrrrlrl", rows)


def times(stage: str) -> str:
    shares: dict[str, dict[str, float]] = {}
    labels = {one["line"]["sha256"]: label for label, one in scanners(stage).items()}
    for one in figures(stage)["stages"]:
        shares.setdefault(labels[one["scanner"]], {})[one["stage"]] = one["ms"]
    names = list(dict.fromkeys(name for found in shares.values() for name in found))
    rows = [
        (named(label), gpu(label, stage), *(f"{found[name]:.2f}" if name in found else NONE for name in names))
        for label, found in ((label, shares[label]) for label in labels.values())
        if label != FLOOR
    ]
    return table(("scanner", "GPU ms", *names), "l" + "r" * (1 + len(names)), rows)


TABLES: dict[str, Callable[[], str]] = {
    "agent sessions": readme,
    "stages": stages,
    "primary": primary,
    "verdicts": verdicts,
    "k512": partial(secondary, "k512", "timing-k512"),
    "full-view": partial(secondary, "full-view"),
    "small-model": partial(secondary, "small-model"),
    "fathom 80 and sparq 32": against_sparq32,
    "times": partial(times, "timing"),
    "times k512": partial(times, "timing-k512"),
}


def blocks(page: str) -> dict[str, str]:
    """The tables that stand on a page, by the names in their markers."""
    found = {}
    for name in TABLES:
        start, end = f"<!-- {name} table -->\n", f"\n<!-- end of {name} table -->"
        if start in page:
            found[name] = page.split(start)[1].split(end)[0]
    return found


def main() -> None:
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for name, stands in blocks(page).items():
            marker = f"<!-- {name} table -->\n"
            page = page.replace(marker + stands, marker + TABLES[name]())
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
