"""The checks of every run, made on its log by a reader that no fault affects."""

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
    """The result of one run."""

    run_id: str
    is_finished: bool = False
    late_seconds: float = 0.0
    """Time from the run's deadline to its end."""
    commits: int = 0
    attempts: int = 0
    commits_lost: int = 0
    """Commits that the log has shown once, and that are now missing, quarantined or unreadable."""
    doubled_steps: int = 0
    is_identical: bool = False
    problems: list[str] = field(default_factory=list)


class RunJudge:
    """Reads the log of one run repeatedly, and remembers the earlier records."""

    def __init__(self, spec: RunSpec, open_log: Callable[[], RunLog]) -> None:
        """`open_log` returns a log that has read no record yet."""
        self._spec, self._open_log = spec, open_log
        self._seen: dict[int, AnyEntry] = {}
        self.lost: dict[int, AnyEntry] = {}
        """Records, by slot, that were in the log earlier and are now missing or different."""

    def look(self) -> None:
        """Read the whole log again, and compare it with the earlier records.

        Raises:
            StoreReadError: the log could not be read. Earlier records are still remembered.
        """
        entries = {slot.number: slot.entry for slot in self._open_log().reload().slots}
        for number, entry in self._seen.items():
            found = entries.get(number)
            if found is None or found.entry_id != entry.entry_id:
                self.lost[number] = entry
        self._seen |= entries

    def final_state(self) -> dict[str, str]:
        """Digests of all state of the newest checkpoint, computed from its bytes; empty if the checkpoint cannot be
        read."""
        try:
            return Checker(self._open_log, _NO_NOTES).final_state()
        except CheckpointError:
            return {}

    def finish(self, expected: dict[str, str]) -> Judgement:
        """Judge the run after its last process has ended. `expected` has the digests of an undisturbed run."""
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
    """Describe in one sentence how the final state differs from the undisturbed run."""
    if not final:
        return ["the last checkpoint does not read back"]
    names = sorted(name for name in final.keys() | expected.keys() if final.get(name) != expected.get(name))
    return [f"the final state differs in {', '.join(names)}"] if names and expected else []


def seconds_late(entries: Iterable[AnyEntry], *, steps: int, deadline: datetime | None) -> float:
    """Time from the deadline to the commit of the goal; 0 if the goal was committed in time, or not committed."""
    ends = [e.written_at for e in entries if isinstance(e, CommitEntry) and e.manifest.step >= steps]
    if deadline is None or not ends:
        return 0.0
    return max((ends[0] - deadline).total_seconds(), 0.0)


def doubled_steps(entries: Iterable[AnyEntry]) -> int:
    """Steps that are committed more than once, on lineages that diverge or by an attempt that was fenced.

    Each step of a run belongs to the attempt that committed the step. Quarantined checkpoints do not count, because
    their steps must be made again.
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
    """Number of steps that the loss curve has more than once, and the steps that it lacks."""
    log.reload()
    if read_history(log).newest is None:
        return 0, []
    found = curve(log)["step"].tolist()
    missing = set(range(1, steps + 1)) - set(found)
    problems = [f"the loss curve lacks {len(missing)} steps, first {min(missing)}"] if missing else []
    return len(found) - len(set(found)), problems
