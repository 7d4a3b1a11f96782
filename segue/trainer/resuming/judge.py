"""The verdict of all ranks about a resume. If noise may be the cause of a difference, fresh processes are asked
first."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from segue.continuity.noise import FIX, NONE, Noise, in_words, known_noise, noise_of_attempts
from segue.records import Verdict, VerdictKind
from segue.runlog.entries import Entry, VerdictEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.stores.retry import patiently
from segue.trainer.claim import Claim
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.replays.opinion import SecondOpinion
from segue.trainer.resuming.comparison import Terms
from segue.trainer.resuming.phases import Replaying, may_be_noise

log = logging.getLogger(__name__)


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
        """Return the noise that explains the difference of the replay; None if there is no time to measure it."""
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
        """Return the noise among attempts from the same checkpoint. There may be two such attempts, because a second
        resume is made after a first broken resume."""
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
