"""The claim: how an attempt takes the right to write to a run, and fences the attempt that held it before."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from segue.errors import StalePlanError
from segue.launch.assignment import Assignment
from segue.records import Environment
from segue.runlog import keys
from segue.runlog.entries import ClaimEntry, Entry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.stores.retry import patiently


@dataclass(frozen=True)
class Claim:
    """The right to write to the run until a higher epoch is claimed."""

    attempt_id: str
    epoch: int
    slot: int


def claim_run(runlog: RunLog, assignment: Assignment, *, environment: Environment) -> Claim:
    """Append a claim with a higher epoch than all earlier claims.

    From then on every earlier attempt is fenced. A crash right after it leaves a claim without commits, which the next
    attempt fences in turn.

    Raises:
        StalePlanError: this attempt was already claimed or reported, or a newer one was decided. An orchestrator may
            start the same flow run twice; only one of the two may train.
    """
    plan = assignment.plan
    patiently(runlog.reload, what="log")

    def build(stamp: Stamp) -> Entry:
        _refuse_stale(read_history(runlog), assignment, is_signed=runlog.is_signed)
        # A slot that cannot be read may have held a claim, so it counts as one.
        epoch = runlog.highest_epoch + len(runlog.damage) + 1
        return ClaimEntry.model_validate(
            stamp(epoch=epoch)
            | {
                "attempt_id": keys.attempt_id(plan.segment, plan.attempt, epoch),
                "segment": plan.segment,
                "attempt": plan.attempt,
                "capacity": plan.capacity,
                "host": socket.gethostname(),
                "trainer_pid": os.getpid(),
                "segment_pid": os.getppid(),
                "environment": environment,
                "flow_run_id": assignment.flow_run_id,
            }
        )

    slot = patiently(lambda: runlog.append(build), what="claim")
    entry = slot.entry
    assert isinstance(entry, ClaimEntry)
    return Claim(attempt_id=entry.attempt_id, epoch=entry.epoch, slot=slot.number)


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
        gone = "the signed log has no decision of it, so its end was cut off"
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why=gone)
    if history.report_of(*key) is not None:
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why="its end is already reported")
    if history.attempt_of(*key) is not None:
        raise StalePlanError(segment=plan.segment, attempt=plan.attempt, why="another process has already claimed it")
