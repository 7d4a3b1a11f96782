"""Histories as logs would tell them: real entries, folded by the real fold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from segue.policy.decide import Decision, decide
from segue.records import (
    Capacity,
    CheckpointRef,
    CodeFailure,
    CurveDigest,
    Environment,
    Finding,
    Machine,
    Manifest,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    VerdictKind,
)
from segue.runlog import keys
from segue.runlog.entries import (
    AnyEntry,
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    OpenEntry,
    QuarantineEntry,
    ReportEntry,
    VerdictEntry,
)
from segue.runlog.history import History, fold
from segue.runlog.log import Slot
from segue.shard import Shard
from segue.spec import RunSpec

START = datetime(2026, 1, 1, tzinfo=UTC)
ENVIRONMENT = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)


def make_spec(*, deadline_in: float | None = None, **fields: Any) -> RunSpec:
    """A run of 100 steps that commits every 10, on a clock that starts at START."""
    common: dict[str, Any] = {"run_id": "r", "recipe": "a.b:c", "steps": 100, "checkpoints": {"every_steps": 10}}
    if deadline_in is not None:
        common["deadline"] = START + timedelta(seconds=deadline_in)
    return RunSpec.parse(common | fields)


class Logbook:
    """Writes entries as controller and attempts would, at times given in seconds after START."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.seconds = spec, 0.0
        self._slots: list[Slot] = []
        self._epoch = 0
        self._folded: tuple[int, History] | None = None
        self.write(OpenEntry, spec=spec)

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    @property
    def history(self) -> History:
        if self._folded is None or self._folded[0] != len(self._slots):
            self._folded = (len(self._slots), fold(self._slots, next_slot=len(self._slots)))
        return self._folded[1]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What was written so far."""
        return tuple(self._slots)

    def write(self, kind: type[AnyEntry], *, epoch: int = 0, **fields: Any) -> int:
        number = len(self._slots)
        entry = kind(entry_id=f"e{number}", written_at=self.now, epoch=epoch, **fields)
        self._slots.append(Slot(number, entry))
        return number

    def ask(self) -> Decision:
        """What `decide` says now; nothing is written."""
        return decide(self.spec, self.history, now=self.now)

    def decide(self) -> Decision:
        """What `decide` says now, written down."""
        made = self.ask()
        self.write(DecisionEntry, plan=made.plan, action=made.action, reason=made.reason, numbers=made.numbers)
        return made

    def plan(self, capacity: Capacity = Capacity.SPOT, **changes: Any) -> SegmentPlan:
        """A plan for this capacity, whatever the policy thinks of it."""
        asked = self.ask().plan
        assert asked is not None
        made = asked.model_copy(update={"capacity": capacity} | changes)
        self.write(DecisionEntry, plan=made, action="run", reason="the test says so")
        return made

    def claim(
        self,
        plan: SegmentPlan,
        *,
        segment_pid: int = 2**22,
        environment: Environment = ENVIRONMENT,
        deployment: str | None = None,
        machines: tuple[Machine, ...] = (),
    ) -> str:
        self._epoch += 1
        name = keys.attempt_id(plan.segment, plan.attempt, self._epoch)
        facts = {"attempt_id": name, "segment": plan.segment, "attempt": plan.attempt, "capacity": plan.capacity}
        machine = {"host": "h", "trainer_pid": 1, "segment_pid": segment_pid, "environment": environment}
        machine |= {"machines": machines}
        self.write(ClaimEntry, epoch=self._epoch, deployment=deployment, **facts, **machine)
        return name

    def commit(
        self, attempt_id: str, step: int, *, size_bytes: int = 0, curve: tuple[CurveDigest, ...] = ()
    ) -> CheckpointRef:
        shards = (Shard(f"{step}", size_bytes, size_bytes, (0,)),) if size_bytes else ()
        facts = {
            "step": step,
            "samples_seen": step,
            "epoch": 0,
            "shards": shards,
            "tensor_count": len(shards),
            "curve": curve,
        }
        manifest = Manifest(new_bytes=size_bytes, components={}, environment=ENVIRONMENT, **facts)
        slot = self.write(CommitEntry, epoch=self._epoch, attempt_id=attempt_id, manifest=manifest)
        return CheckpointRef(slot=slot, step=step, attempt_id=attempt_id)

    def report(self, plan: SegmentPlan, reason: StopReason, *, attempt_id: str | None, **fields: Any) -> SegmentReport:
        start = plan.parent.step if plan.parent else 0
        facts = {"segment": plan.segment, "attempt": plan.attempt, "capacity": plan.capacity, "from_step": start}
        failure = CodeFailure(type="ValueError", message="no such column", traceback="Traceback ...")
        shown = {"to_step": start, "failure": failure if reason is StopReason.FAILED else None} | fields
        report = SegmentReport(attempt_id=attempt_id, stop_reason=reason, **facts, **shown)
        self.write(ReportEntry, report=report)
        return report

    def attempt(
        self,
        reason: StopReason,
        capacity: Capacity = Capacity.SPOT,
        *,
        commit: int | None = None,
        deployment: str | None = None,
        machines: tuple[Machine, ...] = (),
        **fields: Any,
    ) -> SegmentReport:
        """A whole attempt: decision, claim, perhaps a commit, report."""
        plan = self.plan(capacity, **({} if deployment is None else {"deployment": deployment}))
        name = self.claim(plan, machines=machines)
        if commit is not None:
            self.commit(name, commit)
        return self.report(plan, reason, attempt_id=name, **fields)

    def not_started(self, capacity: Capacity = Capacity.SPOT) -> SegmentReport:
        """An attempt that never got capacity."""
        return self.report(self.plan(capacity), StopReason.NO_CAPACITY, attempt_id=None, got_capacity=False)

    def quarantine(self, ref: CheckpointRef, *, reason: str = "a shard is torn") -> None:
        self.write(QuarantineEntry, slot=ref.slot, checkpoint=ref, reason=reason)

    def verdict(self, kind: VerdictKind) -> None:
        finding = Finding(component="optimizer", channel="digest", sentence="optimizer state differs.")
        parent, attempt = self.history.checkpoints[-1].ref, self.history.attempts[-1].claim.attempt_id
        self.write(VerdictEntry, attempt_id=attempt, parent=parent, verdict=Verdict(kind=kind, findings=(finding,)))

    def resume(
        self,
        kind: VerdictKind,
        *,
        channel: str = "digest",
        rows: int = 8,
        commit: int | None = None,
        machine: Machine | None = None,
    ) -> SegmentPlan:
        """A whole attempt that resumed from where its plan says, and was judged so."""
        plan = self.plan()
        name = self.claim(plan, machines=(machine,) if machine is not None else ())
        finding = Finding(component="optimizer", channel=channel, sentence="optimizer state differs.")
        is_good = kind in (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
        verdict = Verdict(kind=kind, findings=() if is_good else (finding,), rows_compared=rows)
        self.write(VerdictEntry, attempt_id=name, parent=plan.parent, verdict=verdict)
        if commit is not None:
            self.commit(name, commit)
        self.report(plan, StopReason.NOTICE if is_good else StopReason.FAILED, attempt_id=name)
        return plan
