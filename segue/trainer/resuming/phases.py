"""The phases of a resume after its checkpoint was found: replaying, then judged. Frozen values. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from segue.continuity.differences import CONTENT, FLOATS, STATE
from segue.continuity.naming import CARRIED
from segue.continuity.noise import Noise
from segue.continuity.verdict import Prelude, prelude_findings
from segue.records import CheckpointRef, Finding, Verdict, VerdictKind, WitnessRow
from segue.trainer.resuming.comparison import Comparison

_SHOWN_BY_STEPS: Collection[str] = (*FLOATS, *CONTENT, STATE, CARRIED)


@dataclass(frozen=True)
class Replaying:
    """The steps after the commit are made again and compared with the witness."""

    comparison: Comparison
    rows: tuple[WitnessRow, ...] = ()
    """The rows of the steps made so far."""
    early: tuple[Finding, ...] = ()
    """The differences before a step, which was therefore not made."""
    other_hands: tuple[Finding, ...] = ()
    """Changes that other code made between the restore and the first step: the cause, if the replay differs."""
    is_undecided: bool = False
    """Whether a notice left no time to find the cause of a difference. If it is withdrawn, there may be time."""

    @property
    def parent(self) -> CheckpointRef:
        return self.comparison.checkpoint.ref

    @property
    def is_complete(self) -> bool:
        """Whether the last row with a witness is there."""
        return bool(self.rows) and self.rows[-1].step >= self.comparison.last_witnessed

    def with_row(self, row: WitnessRow) -> Replaying:
        return replace(self, rows=(*self.rows, row))

    def differences_before(self, prelude: Prelude) -> tuple[Finding, ...]:
        """The differences from the witness before a step is made."""
        expected = self.comparison.expected(prelude.step)
        if expected is None:
            return ()
        changes = self.comparison.environment_changes
        return prelude_findings(expected, prelude, environment_changes=changes, is_first=not self.rows)

    def noting_other_hands(self) -> Replaying:
        """The same phase, with the changes that other code made before the first step as a cause."""
        return replace(self, comparison=self.comparison.noting(self.other_hands), other_hands=())

    def verdict(self, noise: Noise) -> Verdict:
        return self.comparison.verdict(self.rows, early=self.early, noise=noise)


@dataclass(frozen=True)
class Judged:
    """The verdict is reached."""

    parent: CheckpointRef
    verdict: Verdict


def may_be_noise(verdict: Verdict) -> bool:
    """Whether only replayed steps speak against a resume: kernels or a recipe may not compute the same twice."""
    return verdict.kind is VerdictKind.BROKEN and all(each.channel in _SHOWN_BY_STEPS for each in verdict.findings)
