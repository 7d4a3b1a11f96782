"""The phases of a resume after its checkpoint is found. The resume is first replaying, then judged. The phases are
immutable values without side effects."""

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
    """The phase in which the steps after the commit are replayed and compared with the witness."""

    comparison: Comparison
    rows: tuple[WitnessRow, ...] = ()
    """Rows of the replayed steps so far."""
    early: tuple[Finding, ...] = ()
    """Differences that were found before a step. Because of these differences, the step was not made."""
    other_hands: tuple[Finding, ...] = ()
    """Changes by other code between the restore and the first step. If the replay differs, these changes are the likely
    cause."""
    is_undecided: bool = False
    """Whether a notice left no time to find the cause of a difference. If the notice is withdrawn, the search for the
    cause can continue."""

    @property
    def parent(self) -> CheckpointRef:
        return self.comparison.checkpoint.ref

    @property
    def is_complete(self) -> bool:
        """Whether every step with a witness row was replayed."""
        return bool(self.rows) and self.rows[-1].step >= self.comparison.last_witnessed

    def with_row(self, row: WitnessRow) -> Replaying:
        return replace(self, rows=(*self.rows, row))

    def differences_before(self, prelude: Prelude) -> tuple[Finding, ...]:
        """Return the differences from the witness that are visible before the step is made."""
        expected = self.comparison.expected(prelude.step)
        if expected is None:
            return ()
        changes = self.comparison.environment_changes
        return prelude_findings(expected, prelude, environment_changes=changes, is_first=not self.rows)

    def noting_other_hands(self) -> Replaying:
        """Return a copy of the phase that names the changes by other code as the cause."""
        return replace(self, comparison=self.comparison.noting(self.other_hands), other_hands=())

    def verdict(self, noise: Noise) -> Verdict:
        return self.comparison.verdict(self.rows, early=self.early, noise=noise)


@dataclass(frozen=True)
class Judged:
    """The phase after the verdict."""

    parent: CheckpointRef
    verdict: Verdict


def may_be_noise(verdict: Verdict) -> bool:
    """Whether only replayed steps differ. The cause may then be noise, because kernels or a recipe may not compute the
    same numbers twice."""
    return verdict.kind is VerdictKind.BROKEN and all(each.channel in _SHOWN_BY_STEPS for each in verdict.findings)
