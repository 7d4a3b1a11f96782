"""The history that is folded record by record is the one that the whole log defines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.records import (
    Capacity,
    CheckpointRef,
    Environment,
    Finding,
    Machine,
    MachineCheck,
    Manifest,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    VerdictKind,
    WitnessRow,
)
from segue.runlog import keys
from segue.runlog.entries import (
    AnyEntry,
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    DrillEntry,
    HandoverEntry,
    LiftEntry,
    MachineEntry,
    OpenEntry,
    PricesEntry,
    PruneEntry,
    QuarantineEntry,
    ReportEntry,
    SealEntry,
    SpendingEntry,
    StartEntry,
    VerdictEntry,
    encode,
)
from segue.runlog.history import Folding, fold, read_history
from segue.runlog.log import Damage, RunLog, Slot
from segue.spec import RunSpec
from segue.stores import LocalStore
from tests.support.whole_fold import whole_fold

AT = datetime(2026, 1, 1, tzinfo=UTC)
HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
SPECS = tuple(
    RunSpec.parse({"run_id": "r", "recipe": "a.b:c", "steps": steps, "pools": {"prices": prices}})
    for steps, prices in ((10, None), (20, None), (20, "file: a"), (20, "file: b"))
)

slots = st.integers(0, 12)
attempts = st.sampled_from(["a-e1", "a-e2", "a-e3"])
numbers = st.tuples(st.integers(0, 1), st.integers(1, 2))
refs = st.builds(CheckpointRef, slot=slots, step=st.integers(0, 3), attempt_id=attempts)
plans = st.builds(
    lambda of, parent: SegmentPlan(
        segment=of[0], attempt=of[1], capacity=Capacity.SPOT, deployment="segment/spot", parent=parent
    ),
    numbers,
    st.none() | refs,
)
FINDING = Finding(component="optimizer", channel="digest", sentence="differs.")
verdicts = st.builds(
    Verdict, kind=st.sampled_from(VerdictKind), rows_compared=st.integers(0, 1), findings=st.just((FINDING,))
)


def row(step: int) -> WitnessRow:
    zeros: dict[str, Any] = {"loss": 0, "grad_norm": 0, "param_norm": 0, "lr": ()}
    return WitnessRow(step=step, batch_fingerprint="", input_fingerprint="", **zeros)


def manifest(step: int) -> Manifest:
    facts: dict[str, Any] = {"shards": (), "tensor_count": 0, "components": {}, "environment": HERE}
    return Manifest(step=step, samples_seen=step, epoch=0, **facts)


def report(of: tuple[int, int], reason: StopReason, attempt_id: str | None, seconds: int) -> SegmentReport:
    facts: dict[str, Any] = {"segment": of[0], "attempt": of[1], "capacity": Capacity.SPOT, "seconds": seconds}
    return SegmentReport(attempt_id=attempt_id, stop_reason=reason, from_step=0, to_step=0, **facts)


def of_kind(kind: type[AnyEntry], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    common = {"entry_id": st.just("x"), "written_at": st.just(AT), "epoch": st.integers(0, 3)}
    return st.builds(kind, **common | fields)


machine = {"host": st.just("h"), "trainer_pid": st.just(1), "segment_pid": st.just(1), "environment": st.just(HERE)}
planned = of_kind(DecisionEntry, plan=plans, action=st.sampled_from(["run", "import"]), reason=st.just("r"))
ends = st.sampled_from(["finished", "failed", "stopped"])
entries = st.one_of(
    of_kind(OpenEntry, spec=st.sampled_from(SPECS)),
    planned,
    of_kind(DecisionEntry, plan=st.none(), action=ends, reason=st.just("r")),
    st.builds(
        lambda entry, of: entry.model_copy(update={"segment": of[0], "attempt": of[1]}),
        of_kind(
            ClaimEntry,
            attempt_id=attempts,
            segment=st.just(0),
            attempt=st.just(1),
            capacity=st.just(Capacity.SPOT),
            deployment=st.sampled_from([None, "segment/spot", "segment/other"]),
            **machine,
        ),
        numbers,
    ),
    of_kind(
        StartEntry,
        segment=st.just(0),
        attempt=st.integers(1, 2),
        number=st.integers(1, 2),
        deployment=st.just("segment/spot"),
        outcome=st.sampled_from(["slow", "claimed", "start_failed", "withdrawn"]),
        seconds=st.sampled_from([0.0, 95.0]),
    ),
    of_kind(
        MachineEntry,
        segment=st.just(0),
        attempt=st.integers(1, 2),
        deployment=st.just("segment/spot"),
        machine=st.just(Machine(kind="host", name="h")),
        machine_check=st.just(MachineCheck(seconds=0, results={}, problems=("disk: full",))),
    ),
    of_kind(CommitEntry, attempt_id=attempts, manifest=st.builds(manifest, st.integers(0, 3))),
    of_kind(
        SealEntry,
        attempt_id=attempts,
        checkpoint=refs,
        rows=st.lists(st.builds(row, st.integers(1, 3)), max_size=2).map(tuple),
    ),
    of_kind(VerdictEntry, attempt_id=attempts, parent=refs, verdict=verdicts),
    of_kind(
        PricesEntry,
        source=st.sampled_from(["file: a", "file: b"]),
        prices=st.dictionaries(st.just("segment/spot"), st.sampled_from([1.0, 2.0])),
        taken_at=st.just(AT),
    ),
    of_kind(SpendingEntry, month=st.just("2026-01"), others_cost=st.sampled_from([0.0, 1.0])),
    of_kind(DrillEntry, checkpoint=refs, verdict=verdicts, seconds=st.just(1)),
    of_kind(
        ReportEntry,
        report=st.builds(report, numbers, st.sampled_from(StopReason), st.none() | attempts, st.integers(0, 9)),
    ),
    of_kind(
        HandoverEntry,
        spare=st.just("spare0"),
        deployment=st.just("segment/spot"),
        segment=st.just(0),
        attempt=st.just(1),
        reason=st.just("r"),
    ),
    of_kind(QuarantineEntry, slot=slots, checkpoint=st.none(), reason=st.sampled_from(["torn", "seen again"])),
    of_kind(LiftEntry, slot=slots, reason=st.just("read again")),
    of_kind(PruneEntry, slots=st.lists(slots, max_size=3).map(tuple)),
)
logs = st.lists(st.tuples(entries, st.integers(0, 2)), max_size=30)
"""Entries, each with the number of unreadable slots before it."""


def numbered(log: list[tuple[Any, int]]) -> list[Slot]:
    found, number = [], -1
    for entry, gap in log:
        number += 1 + gap
        found.append(Slot(number, entry))
    return found


@pytest.mark.matrix
@settings(max_examples=300)
@given(logs)
def test_after_every_record_the_history_is_that_of_the_whole_log(log: list[tuple[Any, int]]) -> None:
    folding, read = Folding(), []
    for count, slot in enumerate(numbered(log), start=1):
        folding.add(slot)
        damage = (Damage(count, "key", "why"),)
        read.append((folding.history(damage=damage, next_slot=slot.number + 1), damage))
    whole = numbered(log)
    for count, (history, damage) in enumerate(read, start=1):  # Later records must not have changed the earlier ones.
        so_far, end = whole[:count], whole[count - 1].number + 1
        assert history == whole_fold(so_far, damage=damage, next_slot=end)
        assert history == fold(so_far, damage=damage, next_slot=end)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").create()


def written(store: LocalStore, log: list[Any]) -> RunLog:
    for number, entry in enumerate(log):
        store.put(keys.log_key("r", number), encode(entry))
    return RunLog(store, "r")


COMMITS = [CommitEntry(entry_id="x", written_at=AT, epoch=1, attempt_id="a-e1", manifest=manifest(n)) for n in range(6)]
LATE = CommitEntry(entry_id="x", written_at=AT, epoch=0, attempt_id="a-e0", manifest=manifest(9))


def test_without_a_new_record_the_history_is_the_same_object(store: LocalStore) -> None:
    log = written(store, COMMITS[:3])
    history = read_history(log)
    assert read_history(log) is history
    assert read_history(log.reload()) is history
    store.put(keys.log_key("r", 3), encode(COMMITS[3]))
    later = read_history(log)
    assert (len(history.checkpoints), len(later.checkpoints)) == (3, 4)
    assert later.checkpoints[:3] == history.checkpoints


def test_a_restored_record_counts_at_its_place(store: LocalStore) -> None:
    log = written(store, [LATE, *COMMITS])
    before = read_history(log)
    store.put(keys.log_key("r", 0), b"garbage")
    damaged = read_history(log := RunLog(store, "r"))
    assert ([item.slot for item in damaged.damage], len(damaged.checkpoints)) == ([0], 6)
    store.put(keys.log_key("r", 0), encode(LATE))
    assert read_history(log.reload()) == before


def test_new_damage_makes_a_new_history(store: LocalStore) -> None:
    log = written(store, COMMITS[:2])
    read_history(log)
    store.put(keys.log_key("r", 2), b"garbage")
    history = read_history(log)
    assert ([item.slot for item in history.damage], history.next_slot) == ([2], 3)
