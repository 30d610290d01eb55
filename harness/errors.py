"""The errors a user meets: each names what was found, what was expected and what to do, and carries the exit code the
command ends with.
"""

from __future__ import annotations


class LeadlineError(Exception):
    """Base of every error that is the user's or the machine's to mend; printed as one message, never as a traceback."""

    exit_code = 1


class UsageError(LeadlineError):
    """A wrong argument, option, file or configuration (exit code 2)."""

    exit_code = 2


class MachineError(LeadlineError):
    """The machine cannot do it: no GPU, not enough memory (exit code 3)."""

    exit_code = 3


class RegressionError(LeadlineError):
    """A declared regression was found by a comparison (exit code 4)."""

    exit_code = 4


def explain(
    what: str,
    *,
    file: object = None,
    field: str | None = None,
    found: object = None,
    expected: object = None,
    do: str | None = None,
) -> str:
    """Compose an error text of the house form: file, field, found, expected, what to do. Omitted parts are left out."""
    parts = [what]
    if file is not None:
        parts.append(f"  file:     {file}")
    if field is not None:
        parts.append(f"  field:    {field}")
    if found is not None:
        parts.append(f"  found:    {found}")
    if expected is not None:
        parts.append(f"  expected: {expected}")
    if do is not None:
        parts.append(f"  do:       {do}")
    return "\n".join(parts)
