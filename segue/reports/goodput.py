"""Attributes every paid second of a run to a cause. The module is pure.

The goodput is the share of the paid seconds in which attempts made steps that were not made again later. In the
library `ml-goodput-measurement`, the goodput also includes seconds without a machine. Here, seconds without a machine
cost nothing, and reports show them separately.

Attempts report the seconds of each of their phases. A step in the phases `replay` and `first step` counts as training
for the usual duration of a step. The rest of these phases is overhead. If an attempt could not report, its last
heartbeat replaces the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from segue.policy.spending import LIVE, STANDBYS, WITHDRAWN, Charge
from segue.records import SegmentReport
from segue.runlog.history import History
from segue.units import duration

TRAINING = "training"
START, DATA = "start", "data"
_NAMES = {
    START: START,
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
"""Maps each phase to a cause. All seconds of the phase that are not training count for this cause."""
CAUSES = (TRAINING, *_NAMES.values(), STANDBYS, WITHDRAWN)
"""All causes. For logs of older versions, `start` also contains the seconds of build, restore and replay."""
_SHOWN_SHARE = 0.005
"""A sentence does not name causes with a smaller share."""


@dataclass(frozen=True)
class Goodput:
    """The paid seconds of a run or attempt, by cause."""

    seconds: Mapping[str, float]

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """The goodput. If no seconds were paid, the value is None."""
        total = self.total_seconds
        return self.seconds.get(TRAINING, 0.0) / total if total else None

    @property
    def sentence(self) -> str:
        """A text with the goodput and the largest other causes. If no seconds were paid, the text is empty."""
        if self.share is None:
            return ""
        others = sorted(((s, cause) for cause, s in self.seconds.items() if cause != TRAINING), reverse=True)
        named = [f"{cause} {duration(s)}" for s, cause in others if s >= _SHOWN_SHARE * self.total_seconds]
        rest = f"; {', '.join(named)}" if named else ""
        return f"{self.share:.0%} of {duration(self.total_seconds)} in steps that count{rest}"

    def __add__(self, other: Goodput) -> Goodput:
        both = {cause: self.seconds.get(cause, 0.0) + other.seconds.get(cause, 0.0) for cause in CAUSES}
        return Goodput({cause: seconds for cause, seconds in both.items() if seconds})


def goodput_of(history: History, charges: Sequence[Charge], *, standby_seconds: float = 0.0) -> Goodput:
    """Return the paid seconds of a run by cause, without the attempt that trains now.

    While the first attempt trains, the result is empty.
    """
    ended = [charge for charge in charges if charge.use != LIVE]
    parts = [Goodput({cause: charge.seconds}) for cause, charge in charges_by_cause(history, ended)]
    known = total([*parts, Goodput({STANDBYS: standby_seconds})])
    return known if any(charge.report is not None for charge in ended) else Goodput({})


def total(parts: Iterable[Goodput]) -> Goodput:
    """Return the sum of the seconds by cause."""
    return sum(parts, Goodput({}))


def goodput_of_attempt(history: History, report: SegmentReport, *, lost_steps: int) -> Goodput:
    """Return the paid seconds of an attempt by cause.

    `lost_steps` is the number of steps that a later attempt had to make again.
    """
    if not report.got_capacity or not report.seconds:
        return Goodput({})
    phases = report.phase_seconds or _phases_of_older_version(report)
    spent = sum(phases.values())
    # If an attempt died, its last heartbeat counts from a slightly earlier begin than its seconds.
    scale = report.seconds / spent if spent else 0.0
    phases = {phase: seconds * scale for phase, seconds in phases.items()}
    made, replayed = report.to_step - report.from_step, _replayed_steps(history, report)
    # After the last step, an attempt that hung or died was in a step that it never finished.
    in_steps = min(phases.get("step", 0.0), report.train_seconds)
    usual = in_steps / max(made - max(replayed, 1), 1)
    in_replay = min(replayed * usual, phases.get("replay", 0.0))
    in_first = min(usual, phases.get("first step", 0.0)) if made and not replayed else 0.0
    training = in_steps + in_replay + in_first
    lost = min(lost_steps * usual, training)
    found = {name: phases.get(phase, 0.0) for phase, name in _NAMES.items()} | {TRAINING: training - lost}
    found["lost work"] += lost - in_steps
    found["replay"] -= in_replay
    found["first step"] -= in_first
    return total([Goodput(found)])


def goodput_by_attempt(history: History) -> list[tuple[SegmentReport, Goodput]]:
    """Return the report and the paid seconds by cause of each ended attempt, in order of time."""
    ended = zip(history.last_reports(), _lost_steps(history), strict=True)
    return [(report, goodput_of_attempt(history, report, lost_steps=steps)) for report, steps in ended]


def charges_by_cause(history: History, charges: Iterable[Charge]) -> list[tuple[str, Charge]]:
    """Return the charges of a run, divided by cause. The charges may be those of one month.

    Each charge of an attempt is divided in the same proportions as the seconds of this attempt.
    """
    of_attempt = {id(report): known for report, known in goodput_by_attempt(history)}
    found = []
    for charge in charges:
        report = charge.report
        if report is None:
            found.append((charge.use, charge))
            continue
        known = of_attempt[id(report)]
        for cause, seconds in known.seconds.items():
            share = seconds / known.total_seconds
            found.append((cause, replace(charge, seconds=share * charge.seconds, transfer=0.0)))
        if charge.transfer:
            found.append((DATA, replace(charge, seconds=0.0)))
    return found


def _lost_steps(history: History) -> list[int]:
    """Return for each reported attempt the number of its steps that a later attempt had to make again.

    The attempt did not commit these steps, or a later attempt resumed from an older checkpoint.
    """
    reports = history.last_reports()
    again_from, found = max((report.to_step for report in reports), default=0), list[int]()
    for report in reversed(reports):
        kept = min(report.to_step - report.lost_steps, again_from)
        found.append(report.to_step - max(kept, report.from_step))
        if report.got_capacity:
            again_from = min(again_from, report.from_step)
    return found[::-1]


def _replayed_steps(history: History, report: SegmentReport) -> int:
    attempt = history.attempt_of(report.segment, report.attempt)
    verdict = attempt.verdict if attempt is not None else None
    made = report.to_step - report.from_step
    return min(verdict.rows_compared, made) if verdict is not None else 0


def _phases_of_older_version(report: SegmentReport) -> dict[str, float]:
    steps = min(report.train_seconds, report.seconds)
    return {START: report.seconds - steps, "step": steps}
