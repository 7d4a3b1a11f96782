"""Defines the history of a run as one value: checkpoints, attempts, decisions, and values derived from these records.

The module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from segue.records import (
    Capacity,
    CheckpointRef,
    Finding,
    Manifest,
    SeenPools,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    WitnessRow,
)
from segue.runlog.entries import (
    ClaimEntry,
    DecisionEntry,
    DrillEntry,
    HandoverEntry,
    MachineEntry,
    PricesEntry,
    SpendingEntry,
    StartEntry,
    VerdictEntry,
)
from segue.runlog.log import Damage
from segue.spec import RunSpec

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint, with everything that the log states about the checkpoint."""

    ref: CheckpointRef
    manifest: Manifest
    rows: tuple[WitnessRow, ...] = ()
    quarantined: str | None = None
    is_pruned: bool = False


@dataclass(frozen=True)
class Attempt:
    """One claim, and the report, the verdict and the commits of the attempt with this claim."""

    claim: ClaimEntry
    report: SegmentReport | None = None
    verdict: Verdict | None = None
    commits: tuple[CheckpointRef, ...] = ()


@dataclass(frozen=True)
class History:
    """All data on which a decision may depend.

    `fresh_from` is the index in `reports` of the first report after the last decision that ended the run. Failure
    budgets count from this index. If a person starts an ended run again, the budgets are therefore full again. If a
    killed parent is started again, the budgets do not change. `broken_resumes` contains the newest consecutive broken
    verdicts since the last decision that ended the run. Verdicts without a comparison are ignored.
    """

    spec: RunSpec | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    starts: tuple[StartEntry, ...] = ()
    """Start entries. Each start entry describes one start of an attempt on its pool."""
    unfit_machines: tuple[MachineEntry, ...] = ()
    """The machines that failed the check before the claim."""
    reports: tuple[SegmentReport, ...] = ()
    resumes: tuple[VerdictEntry, ...] = ()
    drills: tuple[DrillEntry, ...] = ()
    """Resume rehearsals that were made since the last decision that ended the run."""
    broken_drill: Verdict | None = None
    """The verdict of the newest rehearsal, if it is broken and no later resume was verified.

    The rehearsal may be older than the last start of the run.
    """
    rehearsed_noise: Mapping[str, float] = field(default_factory=dict)
    """Largest relative difference between replays from one state, by channel, as measured by rehearsals."""
    process_values: frozenset[str] = frozenset()
    """Values of the setup that differ between processes, by component and path, as detected by rehearsals."""
    untracked: tuple[Finding, ...] = ()
    """Untracked state, and damaged parts of the loss curve, as reported with the commits."""
    decisions: tuple[DecisionEntry, ...] = ()
    decision_prices: tuple[Mapping[str, float], ...] = ()
    """The prices by deployment at each decision. If the prices of the run spec applied, the mapping is empty."""
    prices: PricesEntry | None = None
    """The newest prices from the price source that the run spec names."""
    seen_pools: SeenPools = SeenPools()  # noqa: RUF009 - frozen
    """What other runs of the store measured on the pools of this run, as known at the beginning of this run."""
    spending: SpendingEntry | None = None
    """The newest spending entry."""
    handover: HandoverEntry | None = None
    """The newest hand-over, if no decision came after it."""
    handovers: tuple[HandoverEntry, ...] = ()
    broken_resumes: tuple[VerdictEntry, ...] = ()
    is_over: bool = False
    """Whether a decision ended the run and no person has opened the run again."""
    stop: DecisionEntry | None = None
    """A person's stop request that is newer than the last opening of the run. The value is None without such a
    request."""
    stop_slot: int | None = None
    fresh_from: int = 0
    earlier_plans: frozenset[tuple[int, int]] = frozenset()
    """Segment and attempt of each plan before the last end of the run. Later reports of these attempts are not
    fresh.
    """
    damage: tuple[Damage, ...] = ()
    named_damage: frozenset[int] = field(default_factory=frozenset)
    next_slot: int = 0

    @property
    def unread(self) -> tuple[Damage, ...]:
        """The unreadable slots that no person has given up. Each of these slots may contain any kind of record."""
        return tuple(damage for damage in self.damage if damage.slot not in self.named_damage)

    # Cached, because a waiting parent reads the same history many times.
    @cached_property
    def usable(self) -> tuple[Checkpoint, ...]:
        """The checkpoints from which an attempt may resume, the oldest checkpoint first."""
        return tuple(c for c in self.checkpoints if c.quarantined is None and not c.is_pruned)

    @property
    def newest(self) -> Checkpoint | None:
        return self.usable[-1] if self.usable else None

    @property
    def committed_step(self) -> int:
        """The step from which the next resume would start."""
        return self.newest.manifest.step if self.newest else 0

    def is_finished(self, spec: RunSpec) -> bool:
        """Whether the run is finished.

        A run is finished if its goal is committed, or the step at which its code ended the run early. The value is
        False if the newest rehearsal is broken, or if a broken rehearsal ended the run. For a program, the value is
        also False until the program has ended by itself.
        """
        if self.broken_drill is not None and spec.continuity.rehearsal == "stop":
            return False
        if self.is_over and self.decisions and self.decisions[-1].action == "broken":
            return False
        return self.is_committed(spec) and not self.owes_end(spec)

    def owes_end(self, spec: RunSpec) -> bool:
        """Whether a program has completed all steps of its loop, but not yet the code after the loop."""
        if spec.program is None or not self.is_committed(spec):
            return False
        if self.decisions and self.decisions[-1].action == "finished":
            return False
        ended_at = [each.to_step for each in self.reports if each.stop_reason is StopReason.FINISHED]
        return self.committed_step not in ended_at

    def is_committed(self, spec: RunSpec) -> bool:
        """Whether the run's last step is committed. This step is the goal, or the step at which the training code ended
        the run early."""
        return self.committed_step >= spec.steps or self.finish_reason is not None

    @property
    def finish_reason(self) -> str | None:
        """The reason why the training code ended the run early. The value is None if the code did not end the run."""
        report = next((report for report in reversed(self.reports) if report.finish_reason is not None), None)
        return report.finish_reason if report is not None and report.to_step == self.committed_step else None

    @property
    def open_plan(self) -> SegmentPlan | None:
        """The newest plan if its attempt has no report and may therefore be alive. None for any other plan."""
        plan = next((entry.plan for entry in reversed(self.decisions) if entry.plan is not None), None)
        if plan is None or self.report_of(plan.segment, plan.attempt) is not None:
            return None
        return plan

    @cached_property
    def fresh_reports(self) -> tuple[SegmentReport, ...]:
        """The newest report of each attempt since the run was last started again. Attempts that were planned before a
        decision that ended the run do not count."""
        before = {(report.segment, report.attempt) for report in self.reports[: self.fresh_from]} | self.earlier_plans
        return tuple(report for report in self.last_reports() if (report.segment, report.attempt) not in before)

    def report_of(self, segment: int, attempt: int) -> SegmentReport | None:
        """Return the newest report of an attempt.

        The attempt's own report replaces an earlier report by the controller.
        """
        return self._reports_by_number.get((segment, attempt))

    def handover_of(self, segment: int, attempt: int) -> HandoverEntry | None:
        """Return the hand-over for which an attempt was recalled. If a later decision exists, or if no such hand-over
        exists, return None.
        """
        entry = self.handover
        return entry if entry is not None and (entry.segment, entry.attempt) == (segment, attempt) else None

    def decision_of(self, segment: int, attempt: int) -> DecisionEntry | None:
        """Return the first decision that planned an attempt."""
        return self._decisions_by_number.get((segment, attempt))

    def prices_of(self, segment: int, attempt: int) -> Mapping[str, float]:
        """Return the prices by deployment at the decision for an attempt. Empty means the prices of the run spec."""
        return self._prices_by_number.get((segment, attempt), {})

    def starts_of(self, segment: int, attempt: int) -> tuple[StartEntry, ...]:
        """Return the start entries of an attempt, in the order of the log."""
        return self._starts_by_number.get((segment, attempt), ())

    def starts_on_its_pool(self, segment: int, attempt: int) -> tuple[StartEntry, ...]:
        """Return an attempt's start entries that belong to the pool of the attempt's plan."""
        plan, known = self.plan_of(segment, attempt), self.starts_of(segment, attempt)
        return known if plan is None else tuple(each for each in known if each.deployment == plan.deployment)

    def is_import(self, segment: int, attempt: int) -> bool:
        """Whether the attempt imports weights instead of training."""
        return (segment, attempt) in self._imports

    @property
    def has_trained(self) -> bool:
        """Whether an attempt that trains has ever claimed the run."""
        return any(not self.is_import(a.claim.segment, a.claim.attempt) for a in self.attempts)

    def unfit_machine_of(self, segment: int, attempt: int) -> MachineEntry | None:
        """Return the last failed check of a machine for this attempt."""
        found = (it for it in reversed(self.unfit_machines) if (it.segment, it.attempt) == (segment, attempt))
        return next(found, None)

    def attempt_of(self, segment: int, attempt: int) -> Attempt | None:
        """Return the attempt with its newest claim. Return None if the attempt never claimed the run."""
        return self._attempts_by_number.get((segment, attempt))

    def attempt_named(self, attempt_id: str | None) -> Attempt | None:
        """Return the attempt with this id. Return None if no claim has this id."""
        return self._attempts_by_id.get(attempt_id) if attempt_id is not None else None

    def plan_of(self, segment: int, attempt: int) -> SegmentPlan | None:
        """Return the plan of an attempt. Return None if no decision planned the attempt."""
        decision = self.decision_of(segment, attempt)
        return decision.plan if decision is not None else None

    def parent_of(self, segment: int, attempt: int) -> CheckpointRef | None:
        """Return the checkpoint from which the plan of an attempt resumes. None means step 0, or an attempt without a
        plan.
        """
        decision = self.decision_of(segment, attempt)
        return decision.plan.parent if decision is not None and decision.plan is not None else None

    def last_reports(self) -> tuple[SegmentReport, ...]:
        """Return the newest report of each attempt, in the order of the attempts."""
        return self._last_reports

    def checkpoint(self, ref: CheckpointRef) -> Checkpoint | None:
        return self._checkpoints_by_ref.get(ref)

    @cached_property
    def _reports_by_number(self) -> dict[tuple[int, int], SegmentReport]:
        """The newest report of each attempt, in the order in which the attempts first reported."""
        return {(report.segment, report.attempt): report for report in self.reports}

    @cached_property
    def _last_reports(self) -> tuple[SegmentReport, ...]:
        return tuple(self._reports_by_number.values())

    @cached_property
    def _attempts_by_number(self) -> dict[tuple[int, int], Attempt]:
        return {(attempt.claim.segment, attempt.claim.attempt): attempt for attempt in self.attempts}

    @cached_property
    def _attempts_by_id(self) -> dict[str, Attempt]:
        return {attempt.claim.attempt_id: attempt for attempt in self.attempts}

    @cached_property
    def _decisions_by_number(self) -> dict[tuple[int, int], DecisionEntry]:
        planned = ((entry.plan, entry) for entry in reversed(self.decisions) if entry.plan is not None)
        return {(plan.segment, plan.attempt): entry for plan, entry in planned}

    @cached_property
    def _starts_by_number(self) -> dict[tuple[int, int], tuple[StartEntry, ...]]:
        found: dict[tuple[int, int], tuple[StartEntry, ...]] = {}
        for entry in self.starts:
            place = (entry.segment, entry.attempt)
            found[place] = (*found.get(place, ()), entry)
        return found

    @cached_property
    def _prices_by_number(self) -> dict[tuple[int, int], Mapping[str, float]]:
        planned = ((entry.plan, prices) for entry, prices in zip(self.decisions, self.decision_prices, strict=True))
        numbered = (((plan.segment, plan.attempt), prices) for plan, prices in planned if plan is not None)
        return dict(reversed(list(numbered)))

    @cached_property
    def _imports(self) -> frozenset[tuple[int, int]]:
        plans = (entry.plan for entry in self.decisions if entry.action == "import")
        return frozenset((plan.segment, plan.attempt) for plan in plans if plan is not None)

    @cached_property
    def _checkpoints_by_ref(self) -> dict[CheckpointRef, Checkpoint]:
        return {checkpoint.ref: checkpoint for checkpoint in self.checkpoints}

    def once(self, compute: Callable[[RunSpec, History], T], spec: RunSpec) -> T:
        """Return the result of a pure function of this history and a spec. The result is cached after the first
        call.
        """
        known = self._computed.get(compute)
        if known is None or known[0] is not spec:
            known = self._computed[compute] = (spec, compute(spec, self))
        found: T = known[1]
        return found

    @cached_property
    def _computed(self) -> dict[object, tuple[RunSpec, Any]]:
        return {}

    def seconds_on(self, capacity: Capacity) -> float:
        """Return the paid seconds on this capacity, summed over the newest report of each attempt."""
        paid = (report for report in self.last_reports() if report.capacity is capacity and report.got_capacity)
        return sum(report.seconds for report in paid)
