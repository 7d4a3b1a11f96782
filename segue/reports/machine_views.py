"""Shows what the runs of a store have observed on machines. The module is pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from statistics import median
from typing import Any

from segue.policy.machines.bad_machines import bad_machines, by_machine
from segue.records import SeenMachine
from segue.units import duration

_CANNOT = "not possible"
"""Text for a bad machine that attempts cannot avoid, for example in a pool of processes."""


def machine_facts(seen: Iterable[SeenMachine], *, now: datetime) -> list[dict[str, Any]]:
    """Return the properties and failures of each machine. Bad machines come first, then the newest observations."""
    facts = []
    for own in by_machine(seen):
        ends, slowness = [each.end for each in own], [each.slowness for each in own if each.slowness is not None]
        newest, judged = max(own, key=lambda each: each.begun_at), next(iter(bad_machines(own, now=now)), None)
        facts.append(
            {
                "machine": newest.machine.name,
                "kind": newest.machine.kind,
                "zone": newest.zone or None,
                "devices": sorted({serial for each in own for serial in each.machine.devices}),
                "attempts": len(own),
                "deaths": ends.count("died"),
                "hangs": ends.count("hung"),
                "wrong_numbers": ends.count("wrong_numbers"),
                "failed_checks": ends.count("check_failed"),
                "slowness": round(median(slowness), 3) if slowness else None,
                "last_seen": newest.begun_at.isoformat(),
                "avoided_until": judged.until.isoformat() if judged is not None else None,
                "can_be_avoided": newest.machine.kind != "host",
                "why": judged.why if judged is not None else None,
            }
        )
    return sorted(facts, key=lambda each: (each["avoided_until"] or "", each["last_seen"]), reverse=True)


def machine_row(facts: dict[str, Any], *, now: datetime) -> dict[str, str]:
    """Return the row of one machine in the table."""
    until = facts["avoided_until"]
    left = duration((datetime.fromisoformat(until) - now).total_seconds()) if until is not None else ""
    avoided = "-" if until is None else f"for {left}" if facts["can_be_avoided"] else _CANNOT
    return {
        "machine": facts["machine"],
        "kind": facts["kind"],
        "zone": facts["zone"] or "-",
        "attempts": str(facts["attempts"]),
        "deaths": str(facts["deaths"]),
        "hangs": str(facts["hangs"]),
        "wrong numbers": str(facts["wrong_numbers"]),
        "failed checks": str(facts["failed_checks"]),
        "step time": "-" if facts["slowness"] is None else f"{facts['slowness']:.2f}x",
        "seen": f"{duration((now - datetime.fromisoformat(facts['last_seen'])).total_seconds())} ago",
        "avoided": avoided,
        "because": facts["why"] or "-",
    }
