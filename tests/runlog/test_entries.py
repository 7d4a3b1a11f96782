"""The records of the log as bytes: nothing is lost by encoding and decoding, and damage is detected."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import crc32c
import pytest
from pydantic import ValidationError

from segue.errors import DamagedRecordError
from segue.records import (
    Capacity,
    CheckpointRef,
    CodeFailure,
    Environment,
    Finding,
    Machine,
    MachineCheck,
    Manifest,
    Notice,
    SeenInterval,
    SeenPools,
    SeenStart,
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
    Entry,
    HandoverEntry,
    LiftEntry,
    MachineEntry,
    ModelEntry,
    OpenEntry,
    PoolsEntry,
    PricesEntry,
    PruneEntry,
    QuarantineEntry,
    ReportEntry,
    SealEntry,
    SpendingEntry,
    StartEntry,
    VerdictEntry,
    VerificationEntry,
    decode,
    encode,
)
from segue.shard import Shard
from segue.spec import RunSpec

SEEN: dict[str, Any] = {"pool": "segment/spot", "log_id": "a", "seconds": 9.5}
COMMON: dict[str, Any] = {
    "entry_id": "0123456789abcdef",
    "written_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "epoch": 3,
}
REF = CheckpointRef(slot=7, step=40, attempt_id="seg000-a1-e1")
HERE = Environment(torch="2.13.0+cpu", device="cpu", instruction_set="AVX512", threads=2)
PLAN = SegmentPlan(segment=1, attempt=2, capacity=Capacity.SPOT, deployment="segment/spot", parent=REF, max_seconds=0.1)
ROW = WitnessRow(
    step=41, loss=0.1 + 0.2, grad_norm=5e-324, param_norm=1.7976931348623157e308, lr=(1e-3, -0.0),
    loss_scale=65536.0, batch_fingerprint="aa", input_fingerprint="bb",
)  # fmt: skip
ODD_ROW = ROW.model_copy(update={"loss": math.nan, "grad_norm": math.inf, "param_norm": -math.inf, "lr": (math.nan,)})
MANIFEST = Manifest(
    step=40, samples_seen=1280, epoch=5, parent=REF, environment=HERE, metric=math.nan,
    shards=(Shard(key="attempts/a/rank-0.json", size_bytes=9, chunk_bytes=8, chunk_crc32c=(0, 2**32 - 1)),),
    tensor_count=2,
    components={"model": "m", "rng.torch": "r"},
)  # fmt: skip
REPORT = SegmentReport(
    segment=1, attempt=2, attempt_id=None, capacity=Capacity.ON_DEMAND, stop_reason=StopReason.FAILED,
    from_step=0, to_step=9, note="",
    notice=Notice(kind="sigterm", received_at=COMMON["written_at"], grace_seconds=math.inf),
    failure=CodeFailure(type="KeyError", message='"\\\0\x1b\n\u2028\U0001f642', traceback="line\n" * 3),
)  # fmt: skip
FINDING = Finding(component="optimizer", channel="digest", step=41, sentence="The optimizer's state differs.")
VERDICT = Verdict(kind=VerdictKind.BROKEN, findings=(FINDING,), rows_compared=8, environment_changes=("torch",))
MACHINE = Machine(kind="slurm", name="n\u00fc1", devices=("GPU-1",))
CHECK = MachineCheck(seconds=0.25, results={"disk": "full"}, problems=("disk: full",))
SPEC = RunSpec.parse({"run_id": "run-1", "recipe": "a.b:c", "steps": 3, "config": {"x": [1.5, None, {"y": "ü"}]}})
ENTRIES: list[Entry] = [
    OpenEntry(**COMMON, spec=SPEC),
    DecisionEntry(**COMMON, plan=PLAN, action="run", reason="r", numbers={"a": math.inf, "b": math.nan, "c": 0.1}),
    DecisionEntry(**COMMON, plan=None, action="hopeless", reason="too late"),
    ClaimEntry(
        **COMMON, attempt_id="seg001-a2-e3", segment=1, attempt=2, capacity=Capacity.SPOT, host="h", trainer_pid=2,
        segment_pid=1, environment=HERE,
    ),
    StartEntry(**COMMON, segment=1, attempt=2, number=1, deployment="a/b", outcome="slow", seconds=95.5, reason="r"),
    CommitEntry(**COMMON, attempt_id="seg001-a2-e3", manifest=MANIFEST),
    SealEntry(**COMMON, attempt_id="seg001-a2-e3", checkpoint=REF, rows=(ROW, ODD_ROW)),
    VerdictEntry(**COMMON, attempt_id="seg001-a2-e3", parent=REF, verdict=VERDICT),
    DrillEntry(**COMMON, checkpoint=REF, verdict=VERDICT, seconds=4.25),
    ReportEntry(**COMMON, report=REPORT),
    HandoverEntry(**COMMON, standby="spare4", deployment="a/b", segment=1, attempt=2, reason="r", numbers={"c": 0.1}),
    MachineEntry(**COMMON, segment=1, attempt=2, deployment="a/b", machine=MACHINE, machine_check=CHECK),
    QuarantineEntry(**COMMON, slot=7, checkpoint=REF, reason="flipped"),
    LiftEntry(**COMMON, slot=7, reason="read again: sound"),
    PruneEntry(**COMMON, slots=(1, 2, 3)),
    PricesEntry(**COMMON, source="file: prices.toml", prices={"segment/spot": 0.42}, taken_at=COMMON["written_at"]),
    SpendingEntry(**COMMON, month="2026-11", others_cost=12.5, standby_cost=0.5, standby_month_cost=0.25),
    PoolsEntry(
        **COMMON,
        seen=SeenPools(
            intervals=(SeenInterval(**SEEN, is_up=True, begun_at=COMMON["written_at"], has_ended=True),),
            starts=(SeenStart(**SEEN, decided_at=COMMON["written_at"]),),
        ),
    ),
    ModelEntry(**COMMON, record={"kind": "choice", "version": 1, "shares": [0.5, None]}),
    VerificationEntry(**COMMON, record={"outcome": "passed", "kills": 1, "differing": []}),
]  # fmt: skip
SMALL = PruneEntry(**COMMON, slots=(1,))
NO_RECORDS = [b"", b"{}", b"null", b"1", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5_000]
NO_RECORDS += [b'{"kind":"prune"}', b'{"kind":"nothing"}', b'{"kind":"prune","schema_version":1e400}']
STRANGERS = [f"run/log/{name}" for name in ("0000001.json", "000000001.json", "00000001.json~", "00000001.json\n")]
STRANGERS += ["run/log/0000000\u0661.json", "run/log/old/log/00000001.json", "log/00000001.json", "run/x/00000001.json"]


def sealed(body: bytes) -> bytes:
    """A body with a matching checksum, which only a writer can make, not an accident."""
    return b'{"crc32c":"%08x","entry":' % crc32c.crc32c(body) + body + b"}"


def why_refused(data: bytes) -> str:
    with pytest.raises(DamagedRecordError) as raised:
        decode(data, key="run/log/00000000.json")
    assert raised.value.key == "run/log/00000000.json"
    return raised.value.why


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_every_kind_of_entry_is_decoded_as_it_was_encoded(entry: Entry) -> None:
    found = decode(encode(entry), key="k")
    assert type(found) is type(entry)
    # NaN is not equal to itself, but its repr is the same.
    assert repr(found).replace("TzInfo(0)", "datetime.timezone.utc") == repr(entry)
    assert encode(found) == encode(entry)


def test_every_kind_of_entry_is_tested() -> None:
    assert {type(entry) for entry in ENTRIES} == set(get_args(get_args(AnyEntry)[0]))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_a_record_is_strict_json_that_other_tools_can_read(entry: Entry) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads(encode(entry), parse_constant=refuse)
    assert list(record) == ["crc32c", "entry"]
    assert record["entry"]["schema_version"] == 1


def test_witness_rows_keep_every_bit_and_values_that_are_not_finite() -> None:
    entry = decode(encode(SealEntry(**COMMON, attempt_id="a", checkpoint=REF, rows=(ROW, ODD_ROW))), key="k")
    assert isinstance(entry, SealEntry)
    row, odd = entry.rows
    assert row == ROW
    assert (row.loss.hex(), row.grad_norm.hex(), math.copysign(1, row.lr[1])) == ((0.1 + 0.2).hex(), (5e-324).hex(), -1)
    assert (math.isnan(odd.loss), odd.grad_norm, odd.param_norm, math.isnan(odd.lr[0])) == (
        True,
        math.inf,
        -math.inf,
        True,
    )


def test_a_time_in_another_zone_is_the_same_moment() -> None:
    local = COMMON["written_at"].astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert decode(encode(SMALL.model_copy(update={"written_at": local})), key="k").written_at == COMMON["written_at"]


def test_a_surrogate_in_a_traceback_does_not_cost_the_report() -> None:
    failure = CodeFailure(type="OSError", message="no file \udcff.csv", traceback="\ud83d")
    entry = decode(encode(ReportEntry(**COMMON, report=REPORT.model_copy(update={"failure": failure}))), key="k")
    assert isinstance(entry, ReportEntry)
    assert entry.report == REPORT.model_copy(
        update={"failure": CodeFailure(type="OSError", message="no file ?.csv", traceback="?")}
    )


def test_every_flipped_bit_is_detected() -> None:
    data = encode(SMALL)
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        assert why_refused(bytes(flipped)) == "its checksum does not match its bytes"


def test_every_truncation_and_every_addition_is_detected() -> None:
    data = encode(SMALL)
    for length in range(len(data)):
        why_refused(data[:length])
        why_refused(data[length + 1 :])
    for more in (b"\n", b" ", b"}", b"\0", data):
        why_refused(data + more)
        why_refused(more + data)


@pytest.mark.parametrize("body", NO_RECORDS, ids=lambda body: repr(body[:20]))
def test_a_matching_checksum_alone_does_not_make_a_record(body: bytes) -> None:
    assert "not a log record" in why_refused(sealed(body))


def test_an_unknown_field_is_refused() -> None:
    assert "not a log record" in why_refused(sealed(SMALL.model_dump_json()[:-1].encode() + b',"more":1}'))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(schema_version=2),
        lambda record: record.update(schema_version=2, more="field"),
        lambda record: record.update(schema_version=2, kind="unheard of"),
        lambda record: record["report"].update(schema_version=2),
    ],
)
def test_a_record_of_a_newer_schema_is_reported_as_newer(change: Any) -> None:
    record = json.loads(ReportEntry(**COMMON, report=REPORT).model_dump_json())
    change(record)
    assert why_refused(sealed(json.dumps(record).encode())) == "schema version 2 is newer than this segue"


@pytest.mark.parametrize("version", [0, -1, "2", None, True, 1.5, [2]])
def test_an_invalid_version_is_not_called_newer(version: object) -> None:
    record = json.loads(SMALL.model_dump_json()) | {"schema_version": version, "kind": "unheard of"}
    assert "not a log record" in why_refused(sealed(json.dumps(record).encode()))


@pytest.mark.parametrize("key", STRANGERS)
def test_a_file_with_another_name_is_no_slot(key: str) -> None:
    assert keys.slot_of(key) is None


@pytest.mark.parametrize("slot", [0, 1, 99_999_999])
def test_the_key_of_a_slot_names_the_slot(slot: int) -> None:
    assert keys.slot_of(keys.log_key("run.1-x", slot)) == slot


@pytest.mark.parametrize("wrong", [{"extra": 1}, {"size_bytes": -1}, {"chunk_bytes": 0}, {"chunk_crc32c": ["x"]}])
def test_a_shard_in_a_manifest_is_validated_like_any_record(wrong):
    data = MANIFEST.model_dump(mode="json")
    assert Manifest.model_validate(data).shards == MANIFEST.shards
    with pytest.raises(ValidationError, match=r"shards\.0"):
        Manifest.model_validate(data | {"shards": [data["shards"][0] | wrong]})
