"""The facts that decide the verdict on a resume: the restored state, its metric, and the replayed steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from segue.checkpoints.format.digests import Digests, owners
from segue.checkpoints.format.snapshot import Snapshot, take
from segue.checkpoints.loading.live_digest import Looks, digest
from segue.continuity.naming import METRIC
from segue.continuity.noise import Noise, tolerances
from segue.continuity.recipe_diff import UNTRACKED, SetupChanges
from segue.continuity.state_marks import state_marks
from segue.continuity.verdict import digest_findings, judge, state_findings
from segue.records import Environment, Finding, Verdict, VerdictKind, WitnessRow
from segue.runlog.history import Checkpoint
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.resuming.found import Found
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.outside import OutsideState
from segue.trainer.workloads.state import BUFFERS, capture, marked_parts, restore_all


@dataclass(frozen=True)
class MetricCheck:
    """The result of evaluating the restored state once more. The default values mean that nothing differs."""

    finding: Finding | None = None
    away: float = math.inf
    """Relative difference between the new metric and the metric of the commit."""

    def findings(self, noise: Noise) -> tuple[Finding, ...]:
        """Return the finding if the metric differs by more than the noise."""
        tolerance = tolerances(noise.floats, ())["loss"] if noise.floats else 0.0
        return () if self.finding is None or self.away <= tolerance else (self.finding,)


def check_metric(
    evaluate: Callable[[], float], components: Mapping[str, Component], *, found: Found, ranks: Ranks
) -> MetricCheck:
    """Evaluate the restored state, compare the metric, and undo the state changes that `evaluate` makes.

    The comparison proves nothing if the metric differs at each call, or if the code of the metric has changed. Every
    rank evaluates. As at a save, the check uses the leader's number.
    """
    expected, outside = found.checkpoint.manifest.metric, components.get(UNTRACKED)
    committed = found.source.snapshot.skeletons.get(UNTRACKED, {})
    is_same_code = isinstance(outside, OutsideState) and outside.has_metric_of(committed)
    if expected is None or not ranks.leader_decides(is_same_code):
        return MetricCheck()
    before, check = state_marks(marked_parts(components)), MetricCheck()
    now = evaluate()
    if ranks.leader_decides(not _is_same_number(now, expected)):
        is_same_again = _is_same_number(now, evaluate())
        if is_same_again and ranks.is_leader:
            sentence = f"evaluate returns {now!r} after the restore, and returned {expected!r} at the commit"
            check = MetricCheck(Finding(component=METRIC, channel=METRIC, sentence=sentence), _relative(now, expected))
    after = state_marks(marked_parts(components))
    changed = {name.removesuffix(BUFFERS) for name, mark in after.items() if before.get(name) != mark}
    restore_all({name: c for name, c in components.items() if name in changed}, found.source.snapshot)
    return check


def _relative(one: float, other: float) -> float:
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if math.isfinite(one - other) and largest else math.inf


def _is_same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


_CHANGED_BY_STEP = ("model", "buffers", "modes", "optimizer", "scheduler", "scaler")
"""Components that only a step changes. Drawing a batch may also change random streams and `extra`."""


@dataclass(frozen=True)
class RestoredState:
    """Digests of the live objects after the restore."""

    digests: Digests
    looks: Looks
    """A quick check of tensors on the accelerator, for components that only a step changes."""

    @classmethod
    def of(cls, live: Snapshot, components: Collection[str]) -> Self:
        """Record the live state `live`, which was captured without a copy."""
        there = _on_device(live.tensors)
        fixed = {name: there[name] for name, owner in owners(there, components) if owner in _CHANGED_BY_STEP}
        return cls(digest(live), Looks.at(fixed))

    def changes(self, components: Mapping[str, Component]) -> tuple[Finding, ...]:
        """Return findings about changes since the restore, for components that only a step may change."""
        before = self.digests
        fixed = {name: c for name, c in components.items() if name in _CHANGED_BY_STEP and name in before.components}
        live = self._digest_again(take(capture(fixed), copy=False, to_host=False))
        digests = {name: value for name, value in before.components.items() if name in fixed}
        tensors = {
            name: before.tensors[name] for name, owner in owners(before.tensors, before.components) if owner in fixed
        }
        return state_findings(Digests(digests, tensors), live)

    def _digest_again(self, live: Snapshot) -> Digests:
        """Return new digests of the same state. Tensors on an accelerator are hashed only if the quick check shows a
        change."""
        there = _on_device(live.tensors)
        is_same = self.looks.finds_same(there)
        return digest(live, known={name: self.digests.tensors[name] for name in there} if is_same else None)


def _on_device(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor.device.type != "cpu"}


@dataclass(frozen=True)
class Terms:
    """The conditions under which a resumed attempt still counts as the same run."""

    environment: Environment
    """The environment of this process, read after the build of the recipe, because the build may change the
    environment."""
    accept: Collection[str] = ()
    """Names of the setup changes that the run spec accepts."""
    is_order_of_sums_relevant: bool = True
    """Whether the numbers of the run depend on the order in which the gradient norm is summed."""

    def changes_since(self, committed: Environment) -> tuple[str, ...]:
        """Return the parts of the environment that differ from the commit and may change the numbers."""
        changes = committed.differs_from(self.environment)
        return tuple(name for name in changes if name != "arithmetic" or self.is_order_of_sums_relevant)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All facts about a resume that are known before its first step."""

    checkpoint: Checkpoint
    committed: Digests
    restored: RestoredState
    environment_changes: tuple[str, ...]
    other_packages: tuple[str, ...]
    """Packages whose version has changed since the commit."""
    has_other_kernels: bool
    """Whether torch.compile has timed and chosen its kernels again since the commit."""
    setup: SetupChanges
    untracked: tuple[Finding, ...]
    """Findings about values that are in no component and differ from the commit."""
    values_at_commit: Mapping[str, Any]
    """Marks of values that are in no component, as stored in the checkpoint."""
    as_built: frozenset[str]
    """Components of a fork that keep their initial state, because the other run's checkpoint has no state for them."""
    metric: MetricCheck = field(default_factory=MetricCheck)
    witness: tuple[WitnessRow, ...] = ()
    """The witness rows that the previous attempt recorded after the commit. Only the leader has the witness rows."""
    last_witnessed: int = 0
    """The last step that has a witness row; 0 if no step has a witness row. Every rank knows the last witnessed
    step."""

    @property
    def is_lost(self) -> bool:
        """Whether the state or the setup already differs. After such a difference, no replay is needed."""
        found = digest_findings(self.committed, self.restored.digests, environment_changes=self.environment_changes)
        return bool(found or self.setup.findings)

    def expected(self, step: int) -> WitnessRow | None:
        """Return the previous attempt's row of this step, or None."""
        return next((row for row in self.witness if row.step == step), None)

    def noting(self, findings: Sequence[Finding]) -> Comparison:
        """Return a copy that also has these findings. The findings explain rows that differ."""
        return replace(self, setup=replace(self.setup, noted=(*findings, *self.setup.noted)))

    def verdict(self, replay: Sequence[WitnessRow], *, early: tuple[Finding, ...], noise: Noise) -> Verdict:
        """Return the verdict. Changed packages or kernels count as a changed environment only if the bits differ."""
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
