"""Histories of the two runs of a verification, written as parents and attempts would write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from segue.notices.disturbance import DisturbanceKind
from segue.records import Capacity, CheckpointRef, Environment, Manifest, StopReason, Verdict, VerdictKind, WitnessRow
from segue.runlog.entries import CommitEntry, DecisionEntry, SealEntry, VerdictEntry
from segue.spec import RunSpec
from segue.verification.runs import DrillRuns
from segue.verification.verification_outcome import Found, judge_verification
from segue.verification.verifications import Outcome, Verification
from tests.support.histories import ENVIRONMENT, Logbook, make_spec

KILL, NOTICE = DisturbanceKind.KILL, DisturbanceKind.NOTICE
SLOT = datetime(2026, 11, 8, 4, tzinfo=UTC)
STATE = {"model": "aa", "optimizer": "bb", "rng.torch": "cc"}
ROW = WitnessRow(
    step=51, loss=1.0, grad_norm=1.0, param_norm=1.0, lr=(0.1,), batch_fingerprint="b", input_fingerprint="i"
)
EXACT = Verdict(kind=VerdictKind.EXACT, components_compared=3, rows_compared=8)
UNVERIFIED = Verdict(kind=VerdictKind.UNVERIFIED, components_compared=3)


class Run:
    """One of the two runs: attempts that are ended, the last of which finishes."""

    def __init__(self, spec: RunSpec) -> None:
        self.book = Logbook(spec)
        self.hits: dict[str, DisturbanceKind] = {}

    def attempt(
        self,
        reason: StopReason,
        *,
        commit: int,
        verdict: Verdict | None = None,
        hit: DisturbanceKind | None = None,
        is_sealed: bool = True,
        state: Mapping[str, str] = STATE,
        environment: Environment = ENVIRONMENT,
        capacity: Capacity = Capacity.SPOT,
    ) -> CheckpointRef:
        book = self.book
        plan = book.plan(capacity)
        name = book.claim(plan, environment=environment)
        if verdict is not None:
            book.write(VerdictEntry, attempt_id=name, parent=plan.parent, verdict=verdict)
        manifest = Manifest(
            step=commit,
            samples_seen=commit,
            epoch=0,
            shards=(),
            tensor_count=0,
            components=dict(state),
            environment=environment,
        )
        slot = book.write(CommitEntry, epoch=book._epoch, attempt_id=name, manifest=manifest)
        ref = CheckpointRef(slot=slot, step=commit, attempt_id=name)
        if is_sealed:
            book.write(SealEntry, attempt_id=name, checkpoint=ref, rows=(ROW,))
        if hit is not None:
            self.hits[name] = hit
        book.report(plan, reason, attempt_id=name, to_step=commit, seconds=60.0, train_seconds=50.0, train_steps=commit)
        return ref

    def finish(self, **facts: Any) -> None:
        self.attempt(StopReason.FINISHED, commit=100, **facts)
        self.end("finished", "step 100 is committed")

    def end(self, action: str, reason: str) -> None:
        self.book.write(DecisionEntry, plan=None, action=action, reason=reason)


class Pair:
    """The two runs of one verification."""

    def __init__(self, *, slot: datetime = SLOT, **fields: Any) -> None:
        self.runs = DrillRuns.of(make_spec(run_id="nightly", **fields), slot=slot)
        self.undisturbed, self.disturbed = Run(self.runs.undisturbed), Run(self.runs.disturbed)

    def judge(self, kinds: Sequence[DisturbanceKind] = (KILL,), *, said: str | None = None) -> Verification:
        found = Found(self.undisturbed.book.history, self.disturbed.book.history, self.disturbed.hits, said)
        return judge_verification(self.runs, found, kinds=kinds)


def sound(*, slot: datetime = SLOT) -> Verification:
    """A verification that passed."""
    pair = Pair(slot=slot)
    pair.undisturbed.finish()
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    pair.disturbed.finish(verdict=EXACT)
    return pair.judge()


def red(*, slot: datetime = SLOT) -> Verification:
    """A verification whose final states differ."""
    pair = Pair(slot=slot)
    pair.undisturbed.finish()
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    pair.disturbed.finish(verdict=EXACT, state=STATE | {"optimizer": "dd"})
    verification = pair.judge()
    assert verification.outcome is Outcome.NOT_CONTINUOUS
    return verification
