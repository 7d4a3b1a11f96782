"""The run's history: each kind of record folded into it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from segue.records import (
    Capacity,
    CheckpointRef,
    Environment,
    Manifest,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    VerdictKind,
    WitnessRow,
)
from segue.runlog.entries import (
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    Entry,
    LiftEntry,
    OpenEntry,
    PruneEntry,
    QuarantineEntry,
    ReportEntry,
    SealEntry,
    VerdictEntry,
)
from segue.runlog.history import History, fold, read_history
from segue.runlog.log import Damage, RunLog, Slot
from segue.spec import RunSpec
from segue.stores import LocalStore

HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND


def entry(kind: type[Entry], *, epoch: int = 0, **fields: Any) -> Any:
    return kind.model_validate({"entry_id": "x", "written_at": datetime.now(UTC), "epoch": epoch} | fields)


def attempt_name(epoch: int) -> str:
    return f"attempt-e{epoch}"


def opened(steps: int) -> Entry:
    spec = RunSpec.parse({"run_id": "run-1", "recipe": "a.b:c", "steps": steps})
    return entry(OpenEntry, spec=spec)


def decided(segment: int, attempt: int = 1) -> Entry:
    plan = SegmentPlan(segment=segment, attempt=attempt, capacity=SPOT, deployment="segment/spot")
    return entry(DecisionEntry, plan=plan, action="run", reason="r")


def ended(action: str = "failed") -> Entry:
    return entry(DecisionEntry, plan=None, action=action, reason="r")


def claimed(epoch: int, segment: int = 0, attempt: int = 1) -> Entry:
    names = {"attempt_id": attempt_name(epoch), "segment": segment, "attempt": attempt, "capacity": SPOT}
    return entry(ClaimEntry, epoch=epoch, host="h", trainer_pid=2, segment_pid=1, environment=HERE, **names)


def committed(epoch: int, step: int) -> Entry:
    manifest = Manifest(
        step=step, samples_seen=step, epoch=0, shards=(), tensor_count=0, components={}, environment=HERE
    )  # fmt: skip
    return entry(CommitEntry, epoch=epoch, attempt_id=attempt_name(epoch), manifest=manifest)


def ref(slot: int, step: int, epoch: int = 1) -> CheckpointRef:
    return CheckpointRef(slot=slot, step=step, attempt_id=attempt_name(epoch))


def sealed(checkpoint: CheckpointRef, *steps: int) -> Entry:
    return entry(SealEntry, epoch=1, attempt_id=checkpoint.attempt_id, checkpoint=checkpoint, rows=rows(*steps))


def rows(*steps: int) -> tuple[WitnessRow, ...]:
    common: dict[str, Any] = {
        "grad_norm": 1,
        "param_norm": 1,
        "lr": (),
        "batch_fingerprint": "",
        "input_fingerprint": "",
    }
    return tuple(WitnessRow(step=step, loss=1 / step, **common) for step in steps)


def judged(epoch: int, kind: VerdictKind, parent: CheckpointRef | None = None) -> Entry:
    facts = {"attempt_id": attempt_name(epoch), "parent": parent or ref(1, 10), "verdict": Verdict(kind=kind)}
    return entry(VerdictEntry, epoch=epoch, **facts)


def report(segment: int, attempt: int = 1, *, reason: StopReason = StopReason.BOUND, **fields: Any) -> SegmentReport:
    common = {"attempt_id": None, "capacity": SPOT, "from_step": 0, "to_step": 0}
    return SegmentReport.model_validate(
        common | {"segment": segment, "attempt": attempt, "stop_reason": reason} | fields
    )


def reported(segment: int, attempt: int = 1, **fields: Any) -> Entry:
    return entry(ReportEntry, report=report(segment, attempt, **fields))


def history_of(*entries: Entry, first: int = 0) -> History:
    return fold([Slot(number, item) for number, item in enumerate(entries, start=first)])  # type: ignore[arg-type]


def steps(history: History) -> list[int]:
    return [checkpoint.ref.step for checkpoint in history.usable]


BROKEN = VerdictKind.BROKEN


def test_an_empty_log_is_a_run_that_has_not_started() -> None:
    history = history_of()
    assert history == History()
    assert (history.spec, history.newest, history.committed_step, history.open_plan) == (None, None, 0, None)
    assert (history.fresh_reports, history.last_reports(), history.report_of(0, 1)) == ((), (), None)


def test_the_last_spec_is_in_force() -> None:
    history = history_of(opened(10), decided(0), opened(20))
    assert history.spec is not None
    assert history.spec.steps == 20


def test_commits_become_checkpoints_named_by_their_slot() -> None:
    history = history_of(claimed(1), committed(1, 10), committed(1, 20), first=5)
    assert [checkpoint.ref for checkpoint in history.checkpoints] == [ref(6, 10), ref(7, 20)]
    assert history.attempts[0].commits == (ref(6, 10), ref(7, 20))
    assert (steps(history), history.committed_step) == ([10, 20], 20)
    assert history.checkpoint(ref(6, 10)) is history.checkpoints[0]
    assert history.checkpoint(ref(6, 11)) is None


@pytest.mark.parametrize(("epoch", "stands"), [(1, False), (2, True), (3, True)])
def test_a_commit_of_a_lower_epoch_than_an_earlier_record_is_ignored(epoch: int, stands: bool) -> None:
    history = history_of(claimed(1), committed(1, 10), claimed(2), committed(epoch, 99), committed(3, 30))
    assert (ref(3, 99, epoch) in [checkpoint.ref for checkpoint in history.checkpoints]) is stands
    assert history.committed_step == 30
    assert (ref(3, 99, 1) in history.attempts[0].commits) is False


def test_commits_of_a_lower_epoch_are_ignored_after_any_record_of_a_higher_one() -> None:
    history = history_of(committed(1, 10), entry(PruneEntry, epoch=2, slots=(77,)), committed(1, 20), committed(2, 15))
    assert steps(history) == [10, 15]


def test_records_of_the_controller_do_not_end_commits() -> None:
    assert steps(history_of(committed(1, 10), reported(0), decided(1), committed(1, 20))) == [10, 20]


def test_nothing_of_an_attempt_counts_after_a_newer_claim() -> None:
    first, second = ref(1, 10), ref(2, 20)
    before = (claimed(1), committed(1, 10), committed(1, 20), claimed(2))
    late = [
        committed(1, 30),
        entry(PruneEntry, epoch=1, slots=(1, 2)),
        entry(QuarantineEntry, epoch=1, slot=2, checkpoint=second, reason="misread"),
        sealed(first, 11),
        judged(1, VerdictKind.BROKEN),
        entry(ReportEntry, epoch=1, report=report(0, attempt_id=attempt_name(1))),
    ]
    for some in (late, *([each] for each in late)):
        assert history_of(*before, *some) == history_of(*before)
    assert [c.manifest.step for c in history_of(*before, *late, committed(2, 30)).usable] == [10, 20, 30]


def test_a_lifted_quarantine_is_as_if_it_had_not_been_and_may_be_made_again() -> None:
    set_aside = entry(QuarantineEntry, epoch=1, slot=1, checkpoint=ref(1, 10), reason="misread")
    lifted = entry(LiftEntry, slot=1, reason="read again: sound")
    assert steps(history_of(claimed(1), committed(1, 10), set_aside)) == []
    assert steps(history_of(claimed(1), committed(1, 10), set_aside, lifted)) == [10]
    assert steps(history_of(claimed(1), committed(1, 10), set_aside, lifted, set_aside)) == []
    named = entry(QuarantineEntry, slot=5, reason="cannot be read")
    assert (history_of(named).named_damage, history_of(named, lifted).named_damage) == ({5}, {5})


def test_records_of_the_controller_do_not_let_an_earlier_epoch_commit_again() -> None:
    history = history_of(committed(2, 10), reported(0), decided(1), committed(1, 99), committed(2, 20))
    assert steps(history) == [10, 20]


def test_a_quarantined_checkpoint_stays_in_the_history_and_no_attempt_resumes_from_it() -> None:
    flipped = entry(QuarantineEntry, slot=2, checkpoint=ref(2, 20), reason="flipped")
    again = entry(QuarantineEntry, slot=2, checkpoint=ref(2, 20), reason="seen again")
    history = history_of(claimed(1), committed(1, 10), committed(1, 20), flipped, again)
    assert [checkpoint.quarantined for checkpoint in history.checkpoints] == [None, "flipped"]
    assert (steps(history), history.committed_step) == ([10], 10)
    assert history.attempts[0].commits == (ref(1, 10), ref(2, 20))


def test_a_quarantine_names_a_damaged_slot() -> None:
    damage = (Damage(4, "run-1/log/00000004.json", "garbage"), Damage(5, "run-1/log/00000005.json", "garbage"))
    named = Slot(6, entry(QuarantineEntry, slot=4, reason="garbage"))
    history = fold([named], damage=damage, next_slot=7)
    assert (history.damage, history.named_damage, history.next_slot) == (damage, frozenset({4}), 7)


def test_a_pruned_checkpoint_stays_in_the_history_and_no_attempt_resumes_from_it() -> None:
    commits = [committed(1, step) for step in (10, 20, 30, 40)]
    history = history_of(*commits, entry(PruneEntry, slots=(0,)), entry(PruneEntry, slots=(1, 3)))
    assert [checkpoint.is_pruned for checkpoint in history.checkpoints] == [True, True, False, True]
    assert (steps(history), history.committed_step) == ([30], 30)


def test_a_seal_gives_its_rows_to_its_checkpoint_and_the_later_one_counts() -> None:
    seals = [sealed(ref(0, 10), 11, 12), sealed(ref(1, 20), 21), sealed(ref(0, 10), 11, 12, 13), sealed(ref(7, 70), 71)]
    history = history_of(committed(1, 10), committed(1, 20), committed(1, 30), *seals)
    assert [checkpoint.rows for checkpoint in history.checkpoints] == [rows(11, 12, 13), rows(21), ()]


def test_verdicts_belong_to_their_attempt_and_the_later_one_counts() -> None:
    two, again = judged(2, VerdictKind.UNVERIFIED), judged(2, VerdictKind.EQUIVALENT)
    history = history_of(claimed(1), claimed(2), two, again, claimed(3), judged(3, VerdictKind.EXACT))
    found = [attempt.verdict.kind if attempt.verdict else None for attempt in history.attempts]
    assert found == [None, VerdictKind.EQUIVALENT, VerdictKind.EXACT]
    assert [resume.verdict.kind for resume in history.resumes] == [VerdictKind.EQUIVALENT, VerdictKind.EXACT]


def test_the_plan_without_a_report_is_open() -> None:
    for entries, is_open in [
        ([decided(0)], (0, 1)),
        ([decided(0), claimed(1), committed(1, 10)], (0, 1)),
        ([decided(0), reported(0)], None),
        ([decided(0), reported(0), decided(0, 2)], (0, 2)),
        ([decided(0), decided(0, 2), reported(0)], (0, 2)),
        ([decided(0), reported(0), ended()], None),
        ([decided(0), reported(0), ended(), decided(1)], (1, 1)),
    ]:
        plan = history_of(*entries).open_plan
        assert (plan and (plan.segment, plan.attempt)) == is_open


def test_of_two_reports_about_an_attempt_the_later_one_counts() -> None:
    lost = reported(0, reason=StopReason.LOST, attempt_id=attempt_name(1), seconds=5)
    own = reported(0, reason=StopReason.NOTICE, attempt_id=attempt_name(1), seconds=7)
    history = history_of(claimed(1), lost, reported(1, seconds=2), own, reported(2, capacity=ON_DEMAND, seconds=100))
    found = history.report_of(0, 1)
    assert found is not None
    assert (found.stop_reason, len(history.reports)) == (StopReason.NOTICE, 4)
    assert history.attempts[0].report == found
    assert [(report.segment, report.stop_reason) for report in history.last_reports()] == [
        (0, StopReason.NOTICE), (1, StopReason.BOUND), (2, StopReason.BOUND),
    ]  # fmt: skip
    assert (history.seconds_on(SPOT), history.seconds_on(ON_DEMAND)) == (9, 100)


def test_an_attempt_claimed_twice_is_its_newest_claim() -> None:
    history = history_of(claimed(1, 0, 1), claimed(2, 0, 2), claimed(3, 0, 1))
    found = history.attempt_of(0, 1)
    assert found is not None
    assert found.claim.attempt_id == attempt_name(3)
    assert history.attempt_of(0, 3) is None


@pytest.mark.parametrize("action", ["finished", "hopeless", "failed", "broken"])
def test_reports_are_fresh_since_the_run_was_last_ended(action: str) -> None:
    history = history_of(reported(0), reported(1), ended(action), reported(2), decided(3), reported(3))
    assert [report.segment for report in history.fresh_reports] == [2, 3]
    assert history.fresh_from == 2
    assert [report.segment for report in history_of(reported(0), decided(1)).fresh_reports] == [0]
    assert history_of(reported(0), ended("hopeless"), ended(action)).fresh_reports == ()


def test_a_late_report_of_an_attempt_from_before_the_end_is_not_fresh() -> None:
    history = history_of(
        reported(0, reason=StopReason.LOST), ended(), reported(0, reason=StopReason.NOTICE), reported(1)
    )
    assert [report.segment for report in history.fresh_reports] == [1]
    assert history.reports[history.fresh_from :] == history.reports[1:]


def test_the_report_of_an_attempt_that_a_stop_recalled_is_not_fresh_when_the_run_is_opened_again() -> None:
    history = history_of(decided(0), ended("stopped"), reported(0), opened(10), reported(1))
    assert [report.segment for report in history.fresh_reports] == [1]
    assert history_of(decided(0), ended("stopped"), judged(1, BROKEN), opened(10)).broken_resumes == ()
    assert history_of(decided(0), judged(1, BROKEN), opened(10)).broken_resumes != ()


def test_a_run_is_broken_while_the_newest_verdict_since_its_last_end_is_broken() -> None:
    broken, exact, later = (judged(n, kind) for n, kind in ((2, BROKEN), (3, VerdictKind.EXACT), (4, BROKEN)))
    for entries, is_broken in [
        ([broken], True),
        ([broken, decided(1), reported(1)], True),
        ([broken, exact], False),
        ([exact, later], True),
        ([broken, ended("broken")], False),
        ([broken, ended("broken"), decided(1), exact], False),
        ([exact, ended("failed"), later], True),
    ]:
        assert bool(history_of(*entries).broken_resumes) is is_broken
    assert len(history_of(broken, later).broken_resumes) == 2


def test_reading_a_history_reads_the_records_appended_since(tmp_path: Any) -> None:
    log, other = (RunLog(LocalStore(tmp_path).create(), "run-1") for _ in range(2))
    assert read_history(log).next_slot == 0
    other.append(lambda stamp: committed(1, 10))
    other.append(lambda stamp: reported(0))
    history = read_history(log)
    assert (steps(history), len(history.reports), history.next_slot) == ([10], 1, 2)
