"""The phases of a resume after its checkpoint is found, and the verdict of all ranks. If noise may be the cause of a
difference, fresh processes replay the steps before the verdict."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from segue.continuity.differences import CONTENT, FLOATS, STATE
from segue.continuity.naming import CARRIED
from segue.continuity.noise import FIX, NONE, Noise, in_words, known_noise, noise_of_attempts
from segue.continuity.verdict import Prelude, prelude_findings
from segue.records import CheckpointRef, Finding, Verdict, VerdictKind, WitnessRow
from segue.runlog.entries import Entry, VerdictEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.stores.retry import patiently
from segue.trainer.claim import Claim
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.replays.fresh import SecondOpinion
from segue.trainer.resuming.comparison import Comparison, Terms

log = logging.getLogger(__name__)

_SHOWN_BY_STEPS: Collection[str] = (*FLOATS, *CONTENT, STATE, CARRIED)


@dataclass(frozen=True)
class Replaying:
    """The phase in which the steps after the commit are replayed and compared with the witness."""

    comparison: Comparison
    rows: tuple[WitnessRow, ...] = ()
    """Rows of the replayed steps so far."""
    early: tuple[Finding, ...] = ()
    """Differences that were detected before a step, so that the step was not made."""
    other_hands: tuple[Finding, ...] = ()
    """Changes by other code between the restore and the first step. If the replay differs, changes by other code are
    the likely cause."""
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
        """Return a copy of the phase, with the changes by other code as the cause."""
        return replace(self, comparison=self.comparison.noting(self.other_hands), other_hands=())

    def verdict(self, noise: Noise) -> Verdict:
        return self.comparison.verdict(self.rows, early=self.early, noise=noise)


@dataclass(frozen=True)
class Judged:
    """The phase after the verdict."""

    parent: CheckpointRef


def may_be_noise(verdict: Verdict) -> bool:
    """Whether only replayed steps differ. If only these steps differ, the cause may be noise: a second run of the same
    kernels or recipe may give other numbers."""
    return verdict.kind is VerdictKind.BROKEN and all(each.channel in _SHOWN_BY_STEPS for each in verdict.findings)


@dataclass(frozen=True)
class Judge:
    """The judge of one attempt's resume."""

    runlog: RunLog
    claim: Claim
    ranks: Ranks
    terms: Terms
    opinion: SecondOpinion | None = None
    """The second opinion, which is asked before a resume is judged as broken; None if no process can be asked."""

    def verdict(self, replaying: Replaying) -> Verdict | None:
        """Return the verdict of all ranks; None if a notice leaves no time to find the cause of a difference."""
        noise = known_noise(self._history(), self.terms.environment) if self.ranks.is_leader else NONE
        verdict = replaying.verdict(noise)
        if may_be_noise(verdict):
            replaying = replaying.noting_other_hands()
            verdict = replaying.verdict(noise)
        if may_be_noise(verdict):
            found = self._noise_found(replaying, known=noise)
            if found is None:
                return None
            verdict = replaying.verdict(noise | found)
        return self._of_all_ranks(verdict)

    def record(self, verdict: Verdict, replaying: Replaying) -> None:
        """Let the leader write the verdict to the run's log. If the verdict could not be written, raise an error."""
        if not self.ranks.is_leader:
            return

        def build(stamp: Stamp) -> Entry:
            common = stamp(epoch=self.claim.epoch)
            return VerdictEntry.model_validate(
                common
                | {
                    "attempt_id": self.claim.attempt_id,
                    "parent": replaying.parent,
                    "verdict": verdict,
                    "replay": replaying.rows,
                }
            )

        patiently(lambda: self.runlog.append(build, epoch=self.claim.epoch), what="verdict")

    def _noise_found(self, replaying: Replaying, *, known: Noise) -> Noise | None:
        """Return the noise that explains the difference of the replay. Return None if there is no time to measure the
        noise."""
        if self.opinion is None:
            return self._noise_of_earlier_attempts(replaying) if self.ranks.is_leader else NONE
        comparison = replaying.comparison
        return self.opinion.noise(
            comparison.checkpoint,
            witness=comparison.witness,
            attempt=replaying.rows,
            is_whole=not replaying.early,
            is_noisy=bool(known.floats),
            is_lost=bool(comparison.untracked),
        )

    def _noise_of_earlier_attempts(self, replaying: Replaying) -> Noise:
        """Return the noise among attempts from the same checkpoint. There may be two attempts from one checkpoint,
        because segue tries the checkpoint again after a broken resume."""
        comparison = replaying.comparison
        if replaying.early or comparison.environment_changes:
            return NONE
        own, parent = self.claim.attempt_id, replaying.parent
        entries = [each for each in self._history().resumes if each.parent == parent and each.attempt_id != own]
        earlier = [each.replay for each in entries if each.replay and not each.verdict.environment_changes]
        is_lost = bool(comparison.untracked)
        found = noise_of_attempts(comparison.witness, replaying.rows, earlier, is_lost=is_lost)
        if found.floats:
            log.warning("%s; this noise sets the tolerances. Fix: %s", in_words(found.floats), FIX)
        return found

    def _history(self) -> History:
        return patiently(lambda: read_history(self.runlog), what="log")

    def _of_all_ranks(self, verdict: Verdict) -> Verdict:
        """Return the first broken verdict of any rank. If no verdict is broken, return the leader's verdict, because
        only the leader has the witness."""
        verdicts = [Verdict.model_validate_json(text) for text in self.ranks.gather_texts(verdict.model_dump_json())]
        broken = (found for found in verdicts if found.kind is VerdictKind.BROKEN)
        return next(broken, verdicts[0])
