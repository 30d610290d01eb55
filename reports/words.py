"""Numbers and untrusted text as a reader sees them: how many digits, what stands for nothing, what is made visible."""

from __future__ import annotations

import unicodedata

from leadline.reports.stats import Mean

NOTHING = "—"
_BIDI = {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


def number(value: float | None, digits: int = 3) -> str:
    """A number with a fixed count of decimals, or a dash."""
    if value is None:
        return NOTHING
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def signed(value: float | None, digits: int = 3) -> str:
    """A difference with its sign; zero has none."""
    if value is None:
        return NOTHING
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, never in exponent form above 1e-6."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def megabytes(value: float | None) -> str:
    """Bytes as MB (10^6), three significant digits."""
    return significant(None if value is None else value / 1e6)


def with_interval(mean: Mean | None, digits: int = 3) -> str:
    """A mean and its 95% interval: "0.750 [0.612, 0.888]"; "(n=1)" or "(all equal)" where there can be none."""
    if mean is None:
        return NOTHING
    if mean.low is None or mean.high is None:
        return f"{number(mean.mean, digits)} ({'n=1' if mean.n == 1 else 'all equal'})"
    return f"{number(mean.mean, digits)} [{number(mean.low, digits)}, {number(mean.high, digits)}]"


def probability(p: float | None) -> str:
    """A p value: three decimals, and never shown as 0."""
    if p is None:
        return NOTHING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def share(part: int, of: int) -> str:
    """ "3/12"; a dash where nothing could be counted."""
    return f"{part}/{of}" if of else NOTHING


def percent(part: int, of: int, digits: int = 0) -> str:
    """A share of counts in percent."""
    return f"{100 * part / of:.{digits}f}%" if of else NOTHING


def plural(count: int, noun: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def visible(text: str) -> str:
    """Text in which no character acts on the page: control and bidirectional characters are written as "<U+202E>"."""
    return "".join(f"<U+{ord(c):04X}>" if _acts(c) else c for c in text)


def _acts(character: str) -> bool:
    return character in _BIDI or (character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cs"))
