"""The doctor's report: a table for the terminal, and a JSON object for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from segue.doctor.check import Check, CheckOutcome

_STYLES = {CheckOutcome.OK: "green", CheckOutcome.WARN: "yellow", CheckOutcome.FAIL: "bold red"}


def table(checks: Sequence[Check]) -> Table:
    """Return one row for each check with its reason and fix, then one row for all skipped checks with the same
    reason.
    """
    made = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("outcome", "check"):
        made.add_column(name, no_wrap=True)
    made.add_column("reason", overflow="fold")
    for check in checks:
        if check.outcome is not CheckOutcome.SKIPPED:
            text = Text(check.reason)
            if check.fix:
                text.append(f". Fix: {check.fix}", style="bold")
            made.add_row(Text(check.outcome.value, style=_STYLES[check.outcome]), check.name, text)
    for reason, names in _skipped(checks).items():
        first = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        made.add_row(Text(CheckOutcome.SKIPPED.value, style="dim"), first, Text(reason, style="dim"))
    return made


def _skipped(checks: Sequence[Check]) -> dict[str, list[str]]:
    """The names of the skipped checks, by reason."""
    found: dict[str, list[str]] = {}
    for check in checks:
        if check.outcome is CheckOutcome.SKIPPED:
            found.setdefault(check.reason, []).append(check.name)
    return found


def summary(checks: Sequence[Check]) -> str:
    """Text with the number of checks per outcome."""
    counts = Counter(check.outcome for check in checks)
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in CheckOutcome)


def has_failed(checks: Sequence[Check]) -> bool:
    return any(check.outcome is CheckOutcome.FAIL for check in checks)


def facts(checks: Sequence[Check]) -> dict[str, Any]:
    """The report as plain data."""
    return {"failed": has_failed(checks), "checks": [check.model_dump(mode="json") for check in checks]}
