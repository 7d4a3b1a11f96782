"""The resume of one attempt: find and restore a checkpoint, replay its steps, and judge the resume."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from segue.checkpoints.format.dtensor import OwnSlices
from segue.checkpoints.saving.writer_client import ShardWriter
from segue.continuity.naming import CARRIED
from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.errors import BrokenResumeError
from segue.records import CheckpointRef, Environment, Verdict, VerdictKind
from segue.runlog.log import RunLog
from segue.stores.base import Store
from segue.trainer.claim import Claim
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.replays.fresh import SecondOpinion
from segue.trainer.resuming.comparison import Terms
from segue.trainer.resuming.found import CheckpointSource, Found
from segue.trainer.resuming.judge import Judge, Judged, Replaying
from segue.trainer.resuming.state_check import StateCheck, changed_by_another_hand
from segue.trainer.workloads.components import Component

log = logging.getLogger(__name__)


class Resume:
    """The phases of one resume, from the search for a checkpoint to the verdict.

    Without a checkpoint, the resume has no phase and no verdict. If a call does not fit the current phase, the call
    does nothing. For example, a row that arrives after the verdict is not compared.
    """

    def __init__(
        self,
        runlog: RunLog,
        claim: Claim,
        *,
        environment: Environment,
        accept: Collection[str] = (),
        fast: Sequence[Store] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks or Ranks()
        self._checkpoints = CheckpointSource(runlog, claim.epoch, fast, self._ranks)
        self._judge = Judge(runlog, claim, self._ranks, Terms(environment, accept))
        self._phase: Found | Replaying | Judged | None = None

    def judge_on(
        self,
        environment: Environment,
        *,
        opinion: SecondOpinion | None = None,
        is_order_of_sums_relevant: bool = True,
    ) -> None:
        """Set the environment for the verdict. The environment is known after the build. `opinion` is asked before a
        broken verdict."""
        terms = Terms(environment, self._judge.terms.accept, is_order_of_sums_relevant)
        self._judge = replace(self._judge, terms=terms, opinion=opinion)

    @property
    def parent(self) -> CheckpointRef | None:
        """The checkpoint from which this attempt resumes; None if the attempt does not resume."""
        return self._phase.parent if self._phase is not None else None

    @property
    def is_pending(self) -> bool:
        """Whether the verdict is still missing. While the verdict is missing, nothing may be committed."""
        return self._phase is not None and not isinstance(self._phase, Judged)

    @property
    def is_undecided(self) -> bool:
        """Whether a difference was found, but a notice left no time to find the cause. Until the cause is found,
        nothing is committed."""
        return isinstance(self._phase, Replaying) and self._phase.is_undecided

    @property
    def stored(self) -> Collection[str]:
        """Names of the components that can be restored."""
        return self._phase.stored if isinstance(self._phase, Found) else ()

    @property
    def stored_ranks(self) -> int | None:
        """Number of ranks that made the found checkpoint; None if no checkpoint was found."""
        return self._phase.ranks if isinstance(self._phase, Found) else None

    def is_pending_after(self, step: int) -> bool:
        """Whether the verdict will still be missing after this number of steps."""
        phase = self._phase
        return self.is_pending and isinstance(phase, Replaying) and step < phase.comparison.last_witnessed

    def find(
        self,
        *,
        at_most: CheckpointRef | None = None,
        own: OwnSlices | None = None,
        memory_bytes: int | None = None,
    ) -> CheckpointRef | None:
        """Select the newest valid checkpoint up to `at_most`. Verify all bytes of the checkpoint, or only the slices in
        `own`.

        Raises:
            FencedError: a newer claim exists.
            MachineTooSmallError: the checkpoint needs more memory than `memory_bytes`.
            StoreReadError: the store could not be read.
        """
        self._phase = self._checkpoints.newest(at_most=at_most, own=own, memory_bytes=memory_bytes)
        return self.parent

    def restore(self, components: Mapping[str, Component]) -> None:
        """Restore these live objects from the checkpoint that was found, in the given order. The random streams are
        restored last."""
        if isinstance(self._phase, Found):
            self._phase = self._checkpoints.restore(self._phase, components)

    def offer_base(self, shards: ShardWriter) -> int | None:
        """Use the restored checkpoint as the base of the first incremental save. Return the step of the checkpoint. If
        the checkpoint cannot be the base, return None.

        A checkpoint from a fast folder cannot be the base, because later saves would build on its durable bytes, which
        nobody has verified.
        """
        if not isinstance(self._phase, Found) or self._checkpoints.fast:
            return None
        step = self._phase.checkpoint.manifest.step
        shards.remember(step, self._phase.source.base)
        return step

    def check_state(
        self,
        components: Mapping[str, Component],
        *,
        left_out: Collection[str] = (),
        evaluate: Callable[[], float] | None = None,
    ) -> None:
        """Compare the live state with the committed state. The comparison comes immediately before the first batch is
        drawn.

        `left_out` has fingerprints of batches that this attempt skips although the previous attempt trained on them.
        `evaluate` computes the user's metric, for comparison with the metric of the commit; None if there is no metric.
        If `evaluate` changes the state, the changes are undone.

        Raises:
            BrokenResumeError: a component differs from the commit; the verdict is in the log.
        """
        if not isinstance(self._phase, Found):
            return
        judge = self._judge
        check = StateCheck(judge.runlog, self._ranks, judge.terms, judge.opinion)
        comparison = check.compare(self._phase, components, left_out=left_out, evaluate=evaluate)
        # The previous phase is dropped together with its bytes, because otherwise memory would hold a large model
        # twice.
        self._phase = Replaying(comparison)
        if not self._ranks.all(not comparison.is_lost) or not comparison.last_witnessed:
            self.settle()

    def before_step(self, components: Mapping[str, Component], prelude: Prelude, *, compare_state: bool = True) -> None:
        """Compare the state again after the batch is drawn and before the step, so that no step trains with a different
        state or input.

        If `compare_state` is False, the state is not compared. The program's own code has run since the restore, and
        may have changed the state in the same way as in the previous attempt. If there are several ranks, they compare
        the state after the step, when they exchange the step's results.

        Raises:
            BrokenResumeError: the state or the input differs; the verdict is in the log.
        """
        phase = self._phase
        if not isinstance(phase, Replaying):
            return
        is_first, comparison = not phase.rows, phase.comparison
        if is_first:
            phase = self._phase = replace(phase, other_hands=changed_by_another_hand(comparison, components))
        if self._ranks.count > 1:
            return
        found = comparison.restored.changes(components) if is_first and compare_state else ()
        if found := found or phase.differences_before(prelude):
            self._phase = replace(phase, early=found)
            self.settle()

    def wants_state(self, step: int) -> bool:
        """Whether the row of this step is compared with a witness row that has state marks."""
        if not isinstance(self._phase, Replaying):
            return False
        expected = self._phase.comparison.expected(step)
        return expected is not None and expected.state is not None

    def add_replayed(self, row: StepRow) -> None:
        """Add the row of a replayed step. After the last expected row, reach the verdict.

        Raises:
            BrokenResumeError: the replay differs from the witness; the verdict is in the log.
        """
        if not isinstance(self._phase, Replaying):
            return
        self._phase = self._phase.with_row(row.as_witness())
        if self._phase.is_complete:
            self.settle()

    def settle(self) -> None:
        """Decide the verdict from the replayed steps so far, and write the verdict to the run's log.

        Raises:
            BrokenResumeError: the verdict is `broken`.
        """
        phase = self._phase
        if not isinstance(phase, Replaying):
            return
        verdict = self._judge.verdict(phase)
        if verdict is None:
            self._phase = replace(phase, is_undecided=True)
            log.warning(
                "the resume is not judged: a notice came before fresh processes could repeat the steps; the next "
                "attempt judges it"
            )
            return
        self._phase = Judged(phase.parent)
        self._judge.record(verdict, phase)
        _say(verdict, step=phase.parent.step)


def _say(verdict: Verdict, *, step: int) -> None:
    """Log the verdict. If the verdict is broken, raise an error."""
    is_broken = verdict.kind is VerdictKind.BROKEN
    # The error that ends the attempt names the difference and the fix, so the log does not repeat them.
    is_lost = not is_broken and any(finding.channel == CARRIED for finding in verdict.findings)
    said = verdict.kind if is_broken else verdict.sentence
    log.log(logging.WARNING if is_lost else logging.INFO, "resume judged step=%d verdict=%s", step, said)
    if is_broken:
        finding = verdict.findings[0]
        raise BrokenResumeError(component=finding.component, detail=finding.sentence, fix=finding.fix)
