"""What must hold for every run, judged from its log alone by a reader that no fault touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.crash.checks import Checker
from segue.curves.frame import curve
from segue.errors import CheckpointError
from segue.runlog.entries import AnyEntry, CommitEntry, QuarantineEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

_NO_NOTES = Path("/nonexistent")
"""The crash benchmark's trainers keep notes; these do not, and what the log has shown counts instead."""


@dataclass
class Judgement:
    """What came of one run."""

    run_id: str
    is_finished: bool = False
    late_seconds: float = 0.0
    """How long after its deadline it finished."""
    commits: int = 0
    attempts: int = 0
    commits_lost: int = 0
    """Commits that the log has shown once and that are gone, set aside, or do not read back."""
    doubled_steps: int = 0
    is_identical: bool = False
    problems: list[str] = field(default_factory=list)


class RunJudge:
    """Looks at the log of one run again and again, and remembers what it saw before."""

    def __init__(self, spec: RunSpec, open_log: Callable[[], RunLog]) -> None:
        """`open_log` gives a log that has read nothing yet."""
        self._spec, self._open_log = spec, open_log
        self._seen: dict[int, AnyEntry] = {}
        self.lost: dict[int, AnyEntry] = {}
        """Records by slot that were there and are gone, or have become other ones."""

    def look(self) -> None:
        """Read the whole log again, and compare it with what was there before.

        Raises:
            StoreReadError: the log could not be read; what was seen stays known.
        """
        entries = {slot.number: slot.entry for slot in self._open_log().reload().slots}
        for number, entry in self._seen.items():
            found = entries.get(number)
            if found is None or found.entry_id != entry.entry_id:
                self.lost[number] = entry
        self._seen |= entries

    def final_state(self) -> dict[str, str]:
        """Digests of all state of the newest checkpoint, computed from its bytes; empty when it does not read back."""
        try:
            return Checker(self._open_log, _NO_NOTES).final_state()
        except CheckpointError:
            return {}

    def finish(self, expected: dict[str, str]) -> Judgement:
        """Judge the run once nothing writes to it any more. `expected` are the digests of an undisturbed run."""
        self.look()
        checker = Checker(self._open_log, _NO_NOTES)
        history = checker.look(thoroughly=True)
        entries = [slot.entry for slot in self._open_log().reload().slots]
        lost = {number for number, entry in self.lost.items() if isinstance(entry, CommitEntry)}
        rows, row_problems = _curve_rows(self._open_log(), self._spec.steps)
        final = self.final_state()
        found = Judgement(
            run_id=self._spec.run_id,
            is_finished=history.committed_step >= self._spec.steps,
            late_seconds=seconds_late(entries, steps=self._spec.steps, deadline=self._spec.deadline),
            commits=len(history.checkpoints),
            attempts=len(history.attempts),
            commits_lost=len(lost | checker.lost | checker.torn),
            doubled_steps=doubled_steps(entries) + rows,
            is_identical=final == expected,
            problems=list(checker.problems),
        )
        found.problems += [f"record {number} is gone: {entry.kind}" for number, entry in sorted(self.lost.items())]
        if found.is_finished:
            found.problems += row_problems + _differences(final, expected)
        return found


def _differences(final: dict[str, str], expected: dict[str, str]) -> list[str]:
    """What of the final state is not that of the undisturbed run, in one sentence."""
    if not final:
        return ["the last checkpoint does not read back"]
    names = sorted(name for name in final.keys() | expected.keys() if final.get(name) != expected.get(name))
    return [f"the final state differs in {', '.join(names)}"] if names and expected else []


def seconds_late(entries: Iterable[AnyEntry], *, steps: int, deadline: datetime | None) -> float:
    """How long after the deadline the goal was committed; 0 when it was not."""
    ends = [e.written_at for e in entries if isinstance(e, CommitEntry) and e.manifest.step >= steps]
    if deadline is None or not ends:
        return 0.0
    return max((ends[0] - deadline).total_seconds(), 0.0)


def doubled_steps(entries: Iterable[AnyEntry]) -> int:
    """Steps that are committed more than once, on lineages that diverge or by an attempt that was fenced.

    Each step of a run belongs to one attempt: that which committed it. A checkpoint that was set aside does not count,
    because its steps have to be done again.
    """
    known = list(entries)
    set_aside = {e.checkpoint for e in known if isinstance(e, QuarantineEntry) and e.checkpoint is not None}
    covered: set[int] = set()
    ends: dict[str, int] = {}
    highest = doubled = 0
    for entry in known:
        highest = max(highest, entry.epoch)
        if not isinstance(entry, CommitEntry):
            continue
        manifest, attempt = entry.manifest, entry.attempt_id
        start = ends.get(attempt, manifest.parent.step if manifest.parent else 0)
        ends[attempt] = manifest.step
        if any((ref.attempt_id, ref.step) == (attempt, manifest.step) for ref in set_aside):
            continue
        steps = set(range(start + 1, manifest.step + 1))
        if entry.epoch < highest or not steps:
            doubled += max(len(steps), 1)
            continue
        doubled += len(steps & covered)
        covered |= steps
    return doubled


def _curve_rows(log: RunLog, steps: int) -> tuple[int, list[str]]:
    """How many steps the loss curve has more than once, and what is missing in it."""
    log.reload()
    if read_history(log).newest is None:
        return 0, []
    found = curve(log)["step"].tolist()
    missing = set(range(1, steps + 1)) - set(found)
    problems = [f"the loss curve lacks {len(missing)} steps, first {min(missing)}"] if missing else []
    return len(found) - len(set(found)), problems
