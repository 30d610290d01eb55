"""The tables with one row per scanner: agreement, teacher-forced figures, bytes, time, divergence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leadline.reports import query
from leadline.reports.contents import Contents, ScannerFigures
from leadline.reports.rows import ScannerCost
from leadline.reports.stats import Mean
from leadline.reports.stats_ratios import quartiles
from leadline.reports.steps import STEPS, StepFigures
from leadline.reports.table import Rows, Table
from leadline.reports.words import NOTHING, megabytes, number, percent, plural, share, significant, with_interval

Cell = Callable[[ScannerFigures], str]


def _by_scanner(contents: Contents, columns: Sequence[tuple[str, Cell]]) -> tuple[tuple[str, ...], Rows]:
    names = ("scanner", *(name for name, _ in columns))
    rows = tuple((f.line.shown, *(cell(f) for _, cell in columns)) for f in contents.scanners)
    return names, rows


def agreement(contents: Contents) -> Table:
    """Agreement per scanner with exact top-k, dense, and the recording."""
    eagerly = {each.scanner for each in contents.eager}
    columns, rows = _by_scanner(
        contents,
        (
            ("role", lambda f: f"{f.line.role}, eager" if f.line.sha256 in eagerly else f.line.role),
            ("sessions (units)", lambda f: f"{f.sessions} ({f.units})"),
            ("steps", lambda f: str(f.steps)),
            ("bits per token", _scan(lambda c: number(c.bits_per_token, 1))),
            ("agreement with exact top-k", lambda f: with_interval(f.agreement)),
            ("with dense", lambda f: with_interval(f.dense_agreement)),
            ("with recording", lambda f: with_interval(f.recorded_agreement)),
            ("token agreement", lambda f: with_interval(f.token_agreement)),
            ("same step", lambda f: _mean(f.exact_match)),
            ("same action", lambda f: share(*f.action)),
            ("same tool", lambda f: share(*f.action_name)),
        ),
    )
    notes = [
        "Mean over units [95% t interval]; a unit is a source: one session, or the sessions that share it.",
        "Agreement: 2 LCS / (sum of lengths) of the words of a step. Same action: same tool and arguments, of the "
        "steps where the reference holds a complete call; same tool: the name alone.",
    ]
    if contents.of_role("noise-floor"):
        notes.append(
            "The noise-floor row is exact top-k again, after a prefill in other chunks: what rounding alone does, and "
            "as much as any scanner can be seen to agree."
        )
    fused = [f.line.shown for f in contents.scanners if f.line.fused]
    if fused:
        notes.append(f"Decoded by kernels (transfer and score in one, a step is one CUDA graph): {', '.join(fused)}.")
    notes += eager_notes(contents)
    return Table(
        "agreement", "Agreement", columns, rows, notes=tuple(notes), queries=(query.SCANNERS, query.SCANNER_UNITS)
    )


def eager_notes(contents: Contents) -> list[str]:
    """One sentence per reason why scanners were decoded without kernels although there was a GPU."""
    reasons = dict.fromkeys(each.reason for each in contents.eager)
    named = {why: [contents.shown(each.scanner) for each in contents.eager if each.reason == why] for why in reasons}
    return [
        f"Eager: {', '.join(names)} went through the model's own forward and the references, because {why}; bytes are "
        "counted alike, times are not comparable with those of kernels."
        for why, names in named.items()
    ]


def teacher_forced(contents: Contents) -> Table:
    """KL, top-1 and extra nats on the reference's text and on the recorded text."""
    columns, rows = _by_scanner(
        contents,
        (
            ("KL(dense‖·), reference text", lambda f: with_interval(f.reference_kl_dense, 4)),
            ("KL(exact‖·), reference text", lambda f: with_interval(f.reference_kl_exact, 4)),
            ("top-1 = dense", lambda f: _mean(f.reference_top1_dense)),
            ("top-1 = exact", lambda f: _mean(f.reference_top1_exact)),
            ("KL(dense‖·), recorded text", lambda f: with_interval(f.recorded_kl_dense, 4)),
            ("KL(exact‖·), recorded text", lambda f: with_interval(f.recorded_kl_exact, 4)),
            ("extra nats, recorded text", lambda f: with_interval(f.recorded_extra_nats, 4)),
            ("top-1 = dense, recorded", lambda f: _mean(f.recorded_top1_dense)),
            ("top-1 = exact, recorded", lambda f: _mean(f.recorded_top1_exact)),
        ),
    )
    stored = any(f.reference_kl_dense or f.recorded_kl_dense for f in contents.scanners)
    return Table(
        "teacher-forced",
        "Teacher-forced agreement",
        columns,
        rows if stored else (),
        intro="The same text through every scanner, token by token: far less noisy than free decoding. Close to exact "
        "top-k and close to dense are different questions; each column names its own.",
        notes=("Nats per token. Extra nats: negative log likelihood of the recorded text minus dense's.",),
        queries=(query.SCANNER_UNITS,),
    )


def single_tokens(contents: Contents) -> Table:
    """How far single tokens of the forced texts diverge: what a mean over tokens hides."""
    tails = {tail.scanner: tail for tail in contents.tails}
    found = [(f.line.shown, tails[f.line.sha256]) for f in contents.scanners if f.line.sha256 in tails]
    return Table(
        "single-tokens",
        "Divergence of single tokens",
        ("scanner", "tokens", "above 0.1 nat", "above 1 nat", "worst, nats"),
        tuple(
            (
                name,
                str(tail.tokens),
                percent(tail.above_tenth, tail.tokens, 2),
                percent(tail.above_one, tail.tokens, 2),
                number(tail.worst, 2),
            )
            for name, tail in found
        ),
        intro="KL(exact‖·) of every token of both forced texts. A scan that misses the one key which a head rests on "
        "loses that token, whatever its mean says.",
        queries=(query.TOKEN_TAILS,),
    )


def bytes_moved(contents: Contents) -> Table:
    """What each scanner reads and stores."""
    d = contents.model.head_dim

    columns, rows = _by_scanner(
        contents,
        (
            ("bits per token, b", _scan(lambda c: number(c.bits_per_token, 1))),
            ("b / d", _scan(lambda c: number(c.bits_per_token / d))),
            ("code bits", _scan(lambda c: number(c.code_bits, 1))),
            ("active channels", _scan(lambda c: number(c.active_channels, 1))),
            ("scan MB", _scan(lambda c: megabytes(c.scan_realised_bytes))),
            ("planned = realised", _scan(lambda c: "yes" if c.mismatches == 0 else f"no, in {c.mismatches}")),
            ("scan MB in 32-byte sectors", _scan(lambda c: megabytes(c.scan_sector_bytes))),
            ("row MB", _cost(lambda c: megabytes(c.row_bytes))),
            ("union rows", _cost(lambda c: number(c.union_rows, 1))),
            ("tail MB", _cost(lambda c: megabytes(c.tail_bytes))),
            ("stored MB", _cost(lambda c: megabytes(c.index_bytes))),
        ),
    )
    return Table(
        "bytes",
        "Bytes",
        columns,
        rows,
        intro="Per decoded token, all layers and KV heads together; bits per token of context, per KV head per layer.",
        notes=(
            "MB is 10^6 bytes. Scan: what ranks the keys, as the transfer counted it. Rows: exact K and V of the "
            "winners, the union over the query heads of a group. Tail: the unquantized last tokens, not part of b. "
            "Stored: the whole index, once.",
        ),
        queries=(query.SCANNER_COSTS,),
    )


def time(contents: Contents) -> Table:
    """CPU seconds, wall and GPU milliseconds, never mixed."""

    def spread(value: Callable[[StepFigures], float | None]) -> Cell:
        """Median and quartiles over steps; nothing unless every step has the time."""

        def cell(f: ScannerFigures) -> str:
            found = [value(row) for row in contents.steps if row.scanner == f.line.sha256]
            times = quartiles([each for each in found if each is not None])
            if times is None or times.n < len(found):
                return NOTHING
            return f"{significant(times.median)} [{significant(times.low)}, {significant(times.high)}]"

        return cell

    on_gpu = any(f.cost is not None and f.cost.on_gpu for f in contents.scanners)
    timers = sorted({timer for f in contents.scanners if f.cost for timer in f.cost.timers.split(",")})
    columns, rows = _by_scanner(
        contents,
        (
            ("branches", _cost(lambda c: str(c.branches))),
            ("CPU s per token", _cost(lambda c: significant(c.cpu_seconds))),
            ("wall ms per token, median step", spread(lambda row: row.wall_ms)),
            ("GPU ms per token", _cost(lambda c: significant(c.gpu_ms))),
            ("GPU ms, median step", spread(lambda row: row.gpu_ms)),
            ("index build s", _cost(lambda c: significant(c.index_build_seconds))),
        ),
    )
    why = (
        "GPU ms is empty where some branch was decoded without a GPU timer."
        if on_gpu
        else "GPU ms is empty: no GPU in this run. CPU seconds are not GPU time and say nothing about it."
    )
    machines = len({row.environment["cpu"] for row in contents.invocations})
    notes = [
        why,
        "CPU s: processor time of a branch over its tokens. Wall ms: the median decode step of a branch after two "
        "warm-up steps. Medians over branches, with their quartiles.",
        f"GPU timer: {', '.join(timers) or NOTHING}. Read times beside each other only from an idle machine.",
    ]
    notes += eager_notes(contents)
    if machines > 1:
        notes.append(f"Branches were decoded on {machines} kinds of machine (see Environment): times are mixed.")
    return Table("time", "Time", columns, rows, notes=tuple(notes), queries=(query.SCANNER_COSTS, STEPS))


def divergence(contents: Contents) -> Table:
    """How long a branch stays identical to the reference, and degenerate steps."""
    longest = contents.spec.max_new_tokens

    def after(tokens: int) -> tuple[str, Cell]:
        def cell(f: ScannerFigures) -> str:
            if f.survival is None or tokens > longest:
                return NOTHING
            return percent(getattr(f.survival, f"after_{tokens}"), f.survival.steps)

        return f"identical after {plural(tokens, 'token')}", cell

    columns, rows = _by_scanner(
        contents,
        (
            *(after(tokens) for tokens in (1, 4, 16, 32, 64)),
            (
                "logit margin where it parts",
                lambda f: NOTHING if f.survival is None else significant(f.survival.margin),
            ),
            ("empty steps", lambda f: percent(f.empty, f.steps)),
            ("repeating steps", lambda f: percent(f.repeating, f.steps)),
        ),
    )
    return Table(
        "divergence",
        "First divergence and degenerate steps",
        columns,
        rows,
        notes=(
            "Share of steps whose tokens are still the reference's after so many; a step that ended with it counts as "
            "identical. Margin: the reference's top-1 minus top-2 logit at the first differing token, mean.",
        ),
        queries=(query.SURVIVAL, query.SCANNER_UNITS),
    )


def _cost(cell: Callable[[ScannerCost], str]) -> Cell:
    return lambda f: NOTHING if f.cost is None else cell(f.cost)


def _scan(cell: Callable[[ScannerCost], str]) -> Cell:
    """As `_cost`, but nothing for dense attention, which ranks no keys."""
    return lambda f: NOTHING if f.cost is None or f.line.role == "dense" else cell(f.cost)


def _mean(mean: Mean | None) -> str:
    return number(None if mean is None else mean.mean)
