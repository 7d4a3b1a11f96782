"""Decides which machines an attempt avoids. The module is pure.

Each observation of a machine has a weight, which halves in a day, so that attempts use a bad machine again. A machine
is bad if the sum of the weights is one or more. A failed check or wrong numbers make a machine bad for a day. A single
hang or a single slow attempt does not make a machine bad. Deaths without notice have a small weight, because spot
machines die. Deaths alone never make a machine bad.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from segue.policy.machines.machine_evidence import SLOW_RATIO, seen_machines
from segue.records import Machine, MachineKind, SeenMachine, StopReason
from segue.runlog.history import History
from segue.spec import RunSpec

HALF_LIFE = timedelta(days=1)
_WEIGHTS = {"check_failed": 2.0, "wrong_numbers": 2.0, "slow": 1.2, "hung": 0.6, "died": 0.05}
_MOST_OF_DEATHS = 0.5
_WEIGHT_OF_SLOWNESS = 0.6
_MOST_AVOIDED = 8
"""Maximum number of machines that an attempt avoids, the worst first."""
_MOST_NAMED = 3


@dataclass(frozen=True)
class BadMachine:
    """A machine that attempts avoid until a given time."""

    machine: Machine
    until: datetime
    why: str

    @property
    def in_words(self) -> str:
        return f"{self.machine.in_words}: {self.why}"


def by_machine(seen: Iterable[SeenMachine]) -> list[list[SeenMachine]]:
    """Return the observations of each machine."""
    found: defaultdict[tuple[str, str], list[SeenMachine]] = defaultdict(list)
    for each in seen:
        found[each.machine.kind, each.machine.name].append(each)
    return list(found.values())


def bad_machines(seen: Iterable[SeenMachine], *, now: datetime) -> list[BadMachine]:
    """Return the machines that are bad now, the worst first."""
    judged = [_judged(each, now=now) for each in by_machine(seen)]
    return sorted((each for each in judged if each is not None), key=lambda each: each.until, reverse=True)


def of_run(history: History, *, log_id: str, now: datetime) -> list[BadMachine]:
    """Return the bad machines for a run, by its own attempts and by earlier attempts of other runs."""
    return bad_machines([*history.seen_pools.machines, *seen_machines(history, log_id=log_id)], now=now)


def avoided_nodes(spec: RunSpec, history: History, *, now: datetime) -> tuple[str, ...]:
    """Return the nodes that the next attempt avoids.

    If an attempt avoided nodes and got no capacity, the next attempt avoids no node, because other nodes may not exist.
    """
    last = history.fresh_reports[-1] if history.fresh_reports else None
    plan = history.plan_of(last.segment, last.attempt) if last is not None else None
    if last is not None and last.stop_reason is StopReason.NO_CAPACITY and plan is not None and plan.avoided_nodes:
        return ()
    bad = of_run(history, log_id="", now=now)
    return tuple(each.machine.name for each in bad if each.machine.kind == cluster_of(spec))[:_MOST_AVOIDED]


def cluster_of(spec: RunSpec) -> MachineKind:
    """Return the type of cluster nodes that the attempts of a run can avoid."""
    return "slurm" if spec.slurm is not None else "ray" if spec.ray is not None else "kubernetes"


def warning_of(bad: Sequence[BadMachine]) -> str:
    """Return a sentence that names the worst machines. The text is empty if no machine is bad."""
    more = f"; and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
    return f"bad machines: {'; '.join(each.in_words for each in bad[:_MOST_NAMED])}{more}" if bad else ""


def _judged(seen: Sequence[SeenMachine], *, now: datetime) -> BadMachine | None:
    shares: defaultdict[str, float] = defaultdict(float)
    for each in seen:
        age = (now - each.begun_at - timedelta(seconds=each.seconds)) / HALF_LIFE
        share = 0.5 ** max(age, 0.0) / each.machines
        if each.end == "check_failed":  # Each rank writes one, and each attempt on a machine without a substitute.
            shares[each.end] = max(shares[each.end], _WEIGHTS[each.end] * share)
        else:
            shares[each.end] += _WEIGHTS.get(each.end, 0.0) * share
        is_slower = each.end != "slow" and (each.slowness or 0.0) >= SLOW_RATIO
        shares["slow"] += _WEIGHT_OF_SLOWNESS * share if is_slower else 0.0
    shares["died"] = min(shares["died"], _MOST_OF_DEATHS)
    score = sum(shares.values())
    if score < 1.0:
        return None
    worst = max(shares, key=lambda end: shares[end])
    reasons = [each.why for each in seen if each.end == worst and each.why]
    slowest = max((each.slowness or 0.0 for each in seen), default=0.0)
    why = reasons[-1] if reasons else f"its steps took {slowest:.2f} times as long as on like machines"
    return BadMachine(seen[-1].machine, now + math.log2(score) * HALF_LIFE, why)
