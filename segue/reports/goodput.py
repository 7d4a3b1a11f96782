"""Attributes every paid second of a run to a cause. The module is pure.

The goodput is the share of the paid seconds in which an attempt made steps that count, for the first time. The
definition follows the library `ml-goodput-measurement`, which counts all seconds of a job; here, seconds without a
machine cost nothing and are shown beside the paid ones.

Attempts report the seconds of each of their phases. A step of the phases `replay` and `first step` counts as training
for as long as the attempt's other steps took; the rest of these phases is overhead. An attempt that could not report is
known from its last heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from segue.policy.spending import STANDBYS, Charge
from segue.records import SegmentReport
from segue.runlog.history import History
from segue.units import duration

TRAINING = "training"
START, DATA = "start", "data"
_NAMES = {
    "build": "build",
    "restore": "setup and restore",
    "replay": "replay",
    "first step": "first step",
    "step": "lost work",
    "evaluate": "evaluation",
    "save": "saves",
    "rehearsal": "rehearsal",
    "end": "end",
}
"""The cause to which the seconds of a phase belong, as far as they are not training."""
CAUSES = (TRAINING, *_NAMES.values(), START, STANDBYS)
"""All causes. `start` contains build, restore and replay of an attempt in a log of an older version."""
_SHOWN_SHARE = 0.005
"""A cause with a smaller share is not named in a sentence."""


@dataclass(frozen=True)
class Goodput:
    """Paid seconds by cause."""

    seconds: Mapping[str, float]

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """The goodput. The value is None if nothing was paid."""
        total = self.total_seconds
        return self.seconds.get(TRAINING, 0.0) / total if total else None

    @property
    def sentence(self) -> str:
        """The goodput and the largest other causes. The text is empty if nothing was paid."""
        if self.share is None:
            return ""
        others = sorted(((s, cause) for cause, s in self.seconds.items() if cause != TRAINING), reverse=True)
        named = [f"{cause} {duration(s)}" for s, cause in others if s >= _SHOWN_SHARE * self.total_seconds]
        rest = f"; {', '.join(named)}" if named else ""
        return f"{self.share:.0%} of {duration(self.total_seconds)} in steps that count{rest}"

    def __add__(self, other: Goodput) -> Goodput:
        both = {cause: self.seconds.get(cause, 0.0) + other.seconds.get(cause, 0.0) for cause in CAUSES}
        return Goodput({cause: seconds for cause, seconds in both.items() if seconds})


def goodput_of(history: History, *, standby_seconds: float = 0.0) -> Goodput:
    """Return the paid seconds of all attempts that have ended and of standbys, by cause."""
    known = total(goodput_of_attempt(history, report) for report in history.last_reports())
    return known + Goodput({STANDBYS: standby_seconds})


def total(parts: Iterable[Goodput]) -> Goodput:
    """Return the sum of the seconds by cause."""
    return sum(parts, Goodput({}))


def goodput_of_attempt(history: History, report: SegmentReport) -> Goodput:
    """Return the paid seconds of an attempt by cause."""
    if not report.got_capacity or not report.seconds:
        return Goodput({})
    phases = dict(report.phase_seconds)
    if not phases:
        return _of_older_version(report)
    made, replayed = report.to_step - report.from_step, _replayed_steps(history, report)
    usual = phases.get("step", 0.0) / max(made - max(replayed, 1), 1)
    in_replay = min(replayed * usual, phases.get("replay", 0.0))
    in_first = min(usual, phases.get("first step", 0.0)) if made and not replayed else 0.0
    lost = min(report.lost_steps * usual, phases.get("step", 0.0))
    found = {name: phases.pop(phase) for phase, name in _NAMES.items() if phase in phases}
    training = found.get("lost work", 0.0) - lost + in_replay + in_first
    found |= {"lost work": lost, TRAINING: training}
    found["replay"] = found.get("replay", 0.0) - in_replay
    found["first step"] = found.get("first step", 0.0) - in_first
    return total([Goodput(found)])


def charges_by_cause(history: History, charges: Iterable[Charge]) -> list[tuple[str, Charge]]:
    """Return the charges of a run with their causes. The charge of an attempt is divided by the attempt's seconds."""
    found = []
    for charge in charges:
        if charge.report is None:
            found.append((charge.use, charge))
            continue
        for cause, seconds in goodput_of_attempt(history, charge.report).seconds.items():
            found.append((cause, replace(charge, seconds=seconds, transfer=0.0)))
        if charge.transfer:
            found.append((DATA, replace(charge, seconds=0.0)))
    return found


def _replayed_steps(history: History, report: SegmentReport) -> int:
    attempt = history.attempt_of(report.segment, report.attempt)
    verdict = attempt.verdict if attempt is not None else None
    made = report.to_step - report.from_step
    return min(verdict.rows_compared, made) if verdict is not None else 0


def _of_older_version(report: SegmentReport) -> Goodput:
    steps = min(report.train_seconds, report.seconds)
    usual = steps / report.train_steps if report.train_steps else 0.0
    lost = min(report.lost_steps * usual, steps)
    return total([Goodput({START: report.seconds - steps, TRAINING: steps - lost, "lost work": lost})])
