"""The claim: how an attempt takes the right to write to a run, and fences the attempts that had this right before.

The rules of fencing, including the ways in which a read may be wrong:

1. *Who may write.* The epoch of a claim is higher than every epoch that its writer has read. For each record that the
   writer could not read, the writer raises the epoch by one more, because each of these records may be a claim. Claims
   are records of the log, so all readers see them in the same order. A writer has read all records before its own:
   `RunLog.append` writes to the slot after the last record, and fails if another writer has taken that slot. If a
   writer appends a record before the writer is fenced, the record therefore comes before the newer claim in the log.
2. *While a record cannot be read.* An unreadable record after an attempt's own claim may be a newer claim. The attempt
   reads the unreadable record again, without caches and over new connections. If the record stays unreadable, the
   attempt stops (`UnreadRecordError`): it no longer commits, prunes, quarantines, seals or reports. The claim of the
   next attempt comes after the unreadable record. By rule 1, the epoch of the next claim is higher than any epoch in
   the unreadable record. An unreadable record *before* an attempt's own claim cannot fence the attempt. An attempt that
   meets an unreadable record first tries every method of reading the record. If all methods fail, the attempt writes a
   quarantine record that names the unreadable record. Until the quarantine record exists, no process deletes anything.
3. *What readers believe.* If a record has a lower epoch than an earlier record, every reader ignores the record with
   the lower epoch. Rule 3 holds for commits, prunes, quarantines, seals, verdicts and reports (`Folding.add`). No
   correct writer appends a record with a lower epoch.
4. *Deleting.* Before an attempt deletes objects, it appends a record that names the objects. Rule 2 applies to the
   record that names the objects. To delete objects that no record names, two conditions must hold: fenced attempts of
   this log wrote the objects, and every record can be read.
5. *Which log.* The first record of a log identifies the log. The name of the log does not. The id of the log is in
   every record, in every plan, and in the id of every attempt. The keys of all objects that an attempt writes contain
   the attempt's id, and therefore the log's id. An attempt never claims a plan from another log. Before each append,
   the writer checks that the first and the newest record that it has read are still in their slots
   (`LogReplacedError`). Readers ignore a record of another log, although the record occupies a slot. Readers refuse a
   log without its first records (`LogCutError`).
6. *A wrong read costs time, never a checkpoint.* If an object fails its verification, segue reads the object again in
   other ways before it acts on the object. Rule 6 holds for records, shards, prepared commits, and for the keys that
   a listing shows or leaves out.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from segue.errors import StalePlanError
from segue.launch.assignment import Assignment
from segue.records import Environment, Machine, MachineCheck, MachineKind, SegmentPlan
from segue.runlog import keys
from segue.runlog.entries import ClaimEntry, Entry
from segue.runlog.history import History, read_history, require_whole
from segue.runlog.log import RunLog, Stamp
from segue.stores.retry import patiently

if TYPE_CHECKING:
    from segue.trainer.ranks.collectives import Ranks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Claim:
    """The right to write to the run, until another attempt claims a higher epoch."""

    attempt_id: str
    epoch: int
    slot: int
    machines: tuple[Machine, ...] = ()
    """The machine of each rank, in order of rank."""


def claim_together(
    runlog: RunLog,
    assignment: Assignment,
    ranks: Ranks,
    *,
    environment: Environment,
    machine: Machine,
    check: MachineCheck | None,
) -> Claim:
    """Make the claim on the leader, and return this claim on every rank. `machine` is the machine of this rank.

    Raises:
        StalePlanError, LostRecordError: the conditions are the same as for `claim_run`.
    """
    by_rank = tuple(map(Machine.model_validate_json, ranks.gather_texts(machine.model_dump_json())))
    devices: dict[tuple[MachineKind, str], tuple[str, ...]] = {}
    for each in by_rank:
        devices[each.kind, each.name] = (*devices.get((each.kind, each.name), ()), *each.devices)
    machines = tuple(Machine(kind=kind, name=name, devices=serials) for (kind, name), serials in devices.items())
    own = None
    if ranks.is_leader:
        own = claim_run(runlog, assignment, environment=environment, machines=machines, check=check)
        log.info("run claimed attempt=%s epoch=%d", own.attempt_id, own.epoch)
    claim = Claim(**json.loads(ranks.gather_texts(json.dumps(asdict(own)) if own is not None else "")[0]))
    if own is None:
        patiently(runlog.reload, what="log")
    return replace(claim, machines=by_rank)


def claim_run(
    runlog: RunLog,
    assignment: Assignment,
    *,
    environment: Environment,
    machines: tuple[Machine, ...] = (),
    check: MachineCheck | None = None,
) -> Claim:
    """Append a claim with a higher epoch than all earlier claims.

    After the claim, every earlier attempt is fenced. If this process crashes immediately after its claim, the next
    attempt fences this claim too.

    Raises:
        StalePlanError: this attempt already has a claim or a report, or a newer attempt was decided. StalePlanError is
            also raised if the plan is from another log, because the run was deleted and begun again. An orchestrator
            may start the same flow run twice, but only one of the two processes may train.
        LostRecordError: the log is signed, and a record in it cannot be read.
    """
    plan = assignment.plan
    patiently(runlog.reload, what="log")

    def build(stamp: Stamp) -> Entry:
        history = read_history(runlog)
        require_whole(runlog, history)
        _refuse_plan_of_another_log(runlog, plan)
        _refuse_stale(history, assignment, is_signed=runlog.is_signed)
        # A slot that cannot be read may hold a claim, so it counts as a claim.
        epoch = runlog.highest_epoch + len(runlog.damage) + 1
        return ClaimEntry.model_validate(
            stamp(epoch=epoch)
            | {
                "attempt_id": keys.attempt_id(plan.segment, plan.attempt, epoch, log_id=runlog.log_id),
                "segment": plan.segment,
                "attempt": plan.attempt,
                "capacity": plan.capacity,
                "host": socket.gethostname(),
                "trainer_pid": os.getpid(),
                "segment_pid": os.getppid(),
                "environment": environment,
                "machines": machines,
                "machine_check": check,
                "flow_run_id": assignment.flow_run_id,
                "deployment": plan.deployment if plan.pools else None,
            }
        )

    slot = patiently(lambda: runlog.append(build), what="claim")
    entry = slot.entry
    assert isinstance(entry, ClaimEntry)
    return Claim(attempt_id=entry.attempt_id, epoch=entry.epoch, slot=slot.number)


def _refuse_plan_of_another_log(runlog: RunLog, plan: SegmentPlan) -> None:
    if plan.log_id not in ("", runlog.log_id):
        deleted = f"it was decided in log {plan.log_id[:8]} of the run, and this log was deleted later"
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why=deleted)


def _refuse_stale(history: History, assignment: Assignment, *, is_signed: bool) -> None:
    plan = assignment.plan
    key = (plan.segment, plan.attempt)
    if history.stop is not None:
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why="the run was stopped")
    decided = [entry.plan for entry in history.decisions if entry.plan is not None]
    if decided and (decided[-1].segment, decided[-1].attempt) != key:
        newer = f"segment {decided[-1].segment} attempt {decided[-1].attempt} was decided later"
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why=newer)
    if is_signed and not decided:
        gone = "the signed log has no decision for it, so records at the end of the log are missing"
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why=gone)
    if history.report_of(*key) is not None:
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why="its end is already reported")
    if history.attempt_of(*key) is not None:
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why="another process has already claimed it")
