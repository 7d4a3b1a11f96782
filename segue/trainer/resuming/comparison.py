"""The facts by which a resume is judged, and the resulting verdict. Pure: it reads, writes and awaits nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from segue.checkpoints.format.digests import Digests
from segue.continuity.noise import Noise
from segue.continuity.recipe_diff import SetupChanges
from segue.continuity.verdict import digest_findings, judge
from segue.records import Environment, Finding, Verdict, VerdictKind, WitnessRow
from segue.runlog.history import Checkpoint
from segue.trainer.resuming.metric import MetricCheck
from segue.trainer.resuming.restored_state import RestoredState


@dataclass(frozen=True)
class Terms:
    """The differences that an attempt may have from the one before, and still continue the run."""

    environment: Environment
    """The environment of this process; known only after the recipe was built, which may change it."""
    accept: Collection[str] = ()
    """Changes of the setup that the run spec accepts, by name."""
    is_order_of_sums_relevant: bool = True
    """Whether the run's numbers depend on the order in which the gradient norm is summed."""

    def changes_since(self, committed: Environment) -> tuple[str, ...]:
        """The parts of the environment that differ from the commit and may change the numbers."""
        changes = committed.differs_from(self.environment)
        return tuple(name for name in changes if name != "arithmetic" or self.is_order_of_sums_relevant)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All facts that are known of a resume before its first step."""

    checkpoint: Checkpoint
    committed: Digests
    restored: RestoredState
    environment_changes: tuple[str, ...]
    other_packages: tuple[str, ...]
    """Packages whose version differs from that at the commit."""
    has_other_kernels: bool
    """Whether torch.compile chose its kernels again since the commit, by timing them."""
    setup: SetupChanges
    untracked: tuple[Finding, ...]
    """Values that no component holds and that are not as they were at the commit."""
    values_at_commit: Mapping[str, Any]
    """The marks of such values in the checkpoint."""
    as_built: frozenset[str]
    """Components with which the run begins as they were built, because a fork has no state of them."""
    metric: MetricCheck = field(default_factory=MetricCheck)
    witness: tuple[WitnessRow, ...] = ()
    """The rows of the steps after the commit, as the previous attempt made them; on the leader alone."""
    last_witnessed: int = 0
    """The last step with such a row, on every rank; 0: there is none."""

    @property
    def is_lost(self) -> bool:
        """Whether state or setup differ already, so that no step needs to be made."""
        found = digest_findings(self.committed, self.restored.digests, environment_changes=self.environment_changes)
        return bool(found or self.setup.findings)

    def expected(self, step: int) -> WitnessRow | None:
        """The row of this step in the previous attempt."""
        return next((row for row in self.witness if row.step == step), None)

    def noting(self, findings: Sequence[Finding]) -> Comparison:
        """The same comparison, with further findings that explain rows that differ."""
        return replace(self, setup=replace(self.setup, noted=(*findings, *self.setup.noted)))

    def verdict(self, replay: Sequence[WitnessRow], *, early: tuple[Finding, ...], noise: Noise) -> Verdict:
        """The verdict. Other packages and kernels count as another environment only if the bits are not equal."""
        changes = self.environment_changes
        others = (*self.other_packages, *(["kernels that torch.compile timed"] if self.has_other_kernels else []))
        verdict = self._verdict_in(changes, replay, early=early, noise=noise)
        if others and verdict.kind is VerdictKind.BROKEN:
            verdict = self._verdict_in((*changes, *others), replay, early=early, noise=noise)
        return verdict.model_copy(update={"environment_changes": (*changes, *others)})

    def _verdict_in(
        self,
        environment_changes: tuple[str, ...],
        replay: Sequence[WitnessRow],
        *,
        early: tuple[Finding, ...],
        noise: Noise,
    ) -> Verdict:
        return judge(
            committed=self.committed,
            restored=self.restored.digests,
            witness=self.witness,
            replay=replay,
            environment_changes=environment_changes,
            setup=self.setup,
            untracked=self.untracked,
            early=early,
            metric=self.metric.findings(noise),
            noise=noise,
        )
