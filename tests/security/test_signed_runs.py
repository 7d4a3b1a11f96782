"""Signed runs: real attempts resume from what was signed, and from nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal

import crc32c
import pytest

from segue.checkpoints.loading.quarantine import give_up_by_name, quarantine
from segue.checkpoints.loading.select import newest_valid
from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import check_start, decide_next, open_run, request_stop
from segue.errors import (
    ForgedRecordError,
    LostRecordError,
    NoLostRecordError,
    NothingTrustedError,
    ReplayedRecordError,
    SigningKeyError,
    SigningKeyNeededError,
    StalePlanError,
    UnsignedLogError,
)
from segue.interop.fork import fork_run
from segue.interop.load import load_checkpoint
from segue.launch.assignment import Assignment
from segue.records import Environment, StopReason, VerdictKind
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, OpenEntry, PricesEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.runlog.open import find_run, known_runs
from segue.runlog.open import open_log as open_run_log
from segue.spec import StoreSpec
from segue.trainer.claim import claim_run
from tests.security.conftest import HEAD_BYTES, new_key, with_checksum, with_same_crc32c

HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)


def train(fork_server, spec, runlog):
    return fork_server.run_to_the_end(runlog, spec)


@pytest.fixture
def paused(fork_server, make_signed, open_log):
    """A signed run of 40 steps that has ended its first segment at step 20, with checkpoints at 10 and 20."""
    spec = make_signed(segment={"steps": 20})
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.to_step) == (StopReason.BOUND, 20)
    return spec, runlog


def reopened(spec):
    return check_start(spec, clock=SystemClock())


def commits(runlog):
    return [slot for slot in runlog.slots if isinstance(slot.entry, CommitEntry)]


def path_of(runlog, key):
    return runlog.store.root / key


@pytest.mark.matrix
def test_a_signed_run_resumes_exactly_and_every_record_and_chunk_is_signed(fork_server, paused):
    spec, runlog = paused
    reports = train(fork_server, spec, runlog)
    history = read_history(reopened(spec))
    assert reports[-1].stop_reason is StopReason.FINISHED
    assert [entry.verdict.kind for entry in history.resumes] == [VerdictKind.EXACT]
    records = [runlog.store.get(item.key) for item in runlog.store.list_objects(keys.log_prefix(spec.run_id))]
    assert all(b',"signed":{' in record for record in records)
    for checkpoint in history.checkpoints:
        assert all(len(s.chunk_sha256) == len(s.chunk_crc32c) > 0 for s in checkpoint.manifest.shards)
    assert not list(runlog.store.root.glob("*/attempts/*/*/*.commit.json")), "what is not signed is not left behind"


def test_an_unsigned_run_has_nothing_of_signatures_in_its_store(fork_server, make_spec, open_log):
    spec = make_spec(steps=10)
    runlog = open_log(spec)
    train(fork_server, spec, runlog)
    written = b"".join(path.read_bytes() for path in runlog.store.root.rglob("*.json"))
    assert b"crc32c" in written
    for word in (b'"signed":', b"signing_key", b"chunk_sha256", b'"signature":'):
        assert word not in written, word


@pytest.mark.matrix
@pytest.mark.parametrize("with_signature", [False, True])
def test_a_forged_commit_is_refused_and_nothing_is_bought(paused, with_signature):
    spec, runlog = paused
    last = commits(runlog)[-1]
    data = runlog.store.get(keys.log_key(spec.run_id, last.number))
    forged = data.replace(b'"step":20', b'"step":30')
    if not with_signature:
        forged = forged[: forged.rindex(b',"signed":')] + b"}"
    runlog.store.put(keys.log_key(spec.run_id, runlog.next_slot), with_checksum(forged))
    with pytest.raises((ForgedRecordError, ReplayedRecordError)):
        decide_next(runlog, spec, clock=SystemClock())
    with pytest.raises((ForgedRecordError, ReplayedRecordError)):
        reopened(spec)


def test_an_old_commit_in_a_newer_slot_is_refused(paused):
    spec, runlog = paused
    first = commits(runlog)[0]
    old = runlog.store.get(keys.log_key(spec.run_id, first.number))
    runlog.store.put(keys.log_key(spec.run_id, runlog.next_slot), old)
    with pytest.raises(ReplayedRecordError, match=f"record {first.number} of run tiny"):
        reopened(spec)


def test_a_spec_that_says_that_the_run_is_not_signed_is_not_believed(paused, make_spec):
    spec, runlog = paused
    plain = RunLog(runlog.store, "plain")
    plain.append(lambda stamp: _open_entry(stamp, make_spec(recipe="os:system")))
    data = runlog.store.get(keys.log_key("plain", 0))
    runlog.store.put(keys.log_key(spec.run_id, runlog.next_slot), data)
    with pytest.raises(ForgedRecordError):
        reopened(spec)


def _open_entry(stamp, spec):
    return OpenEntry.model_validate(stamp(epoch=0) | {"spec": spec})


def spoil(runlog, step, change):
    """Change the shard file of a step."""
    manifest = next(slot.entry.manifest for slot in commits(runlog) if slot.entry.manifest.step == step)
    shard = manifest.shards[0]
    path = path_of(runlog, f"tiny/{shard.key}")
    path.write_bytes(change(path.read_bytes(), shard))
    return shard


def as_same_checksum(data, shard):
    """Other weights with the crc32c of the manifest."""
    spoiled = bytearray(data)
    spoiled[-64:-4] = bytes(byte ^ 0x40 for byte in spoiled[-64:-4])
    return with_same_crc32c(bytes(spoiled), crc32c.crc32c, target=shard.chunk_crc32c[-1])


@pytest.mark.matrix
def test_a_shard_that_was_replaced_by_one_of_the_same_checksum_is_refused_and_the_one_before_is_taken(
    fork_server, paused
):
    spec, runlog = paused
    shard = spoil(runlog, 20, as_same_checksum)
    reports = train(fork_server, spec, runlog)
    assert reports[-1].stop_reason is StopReason.FINISHED
    history = read_history(runlog.reload())
    (bad,) = [c for c in history.checkpoints if c.quarantined]
    assert bad.manifest.step == 20
    assert f"{shard.key} chunk 0 is forged" in bad.quarantined
    assert [entry.parent.step for entry in history.resumes] == [10]


def test_without_a_signature_such_a_shard_is_not_noticed_when_it_is_read(fork_server, make_spec, open_log):
    # Why signed manifests have SHA-256: the same attack on an unsigned run.
    spec = make_spec(segment={"steps": 20})
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    spoil(runlog, 20, as_same_checksum)
    assert newest_valid(runlog, epoch=runlog.highest_epoch).checkpoint.manifest.step == 20


def test_a_shard_of_another_step_is_refused(paused):
    _, runlog = paused
    other = commits(runlog)[0].entry.manifest.shards[0]
    old = path_of(runlog, f"tiny/{other.key}").read_bytes()
    spoil(runlog, 20, lambda data, shard: old)
    found = newest_valid(runlog, epoch=runlog.highest_epoch)
    assert found.checkpoint.manifest.step == 10


@pytest.mark.matrix
def test_with_all_shards_spoiled_the_run_does_not_begin_again(fork_server, paused):
    spec, runlog = paused
    for step in (10, 20):
        spoil(runlog, step, as_same_checksum)
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.FAILED
    assert report.failure.type == "NothingTrustedError"
    with pytest.raises(NothingTrustedError, match="does not start again at step 0"):
        decide_next(runlog, spec, clock=SystemClock())


@pytest.mark.matrix
def test_with_all_commits_deleted_nothing_is_bought_and_the_run_does_not_begin_again(paused):
    spec, runlog = paused
    lost = [slot.number for slot in commits(runlog)]
    runlog.store.delete([keys.log_key("tiny", number) for number in lost])
    for number in lost:
        with pytest.raises(LostRecordError) as missing:
            decide_next(reopened(spec), spec, clock=SystemClock())
        assert missing.value.slot == number
        give_up_by_name(reopened(spec), number)  # As the fix says.
    with pytest.raises(NothingTrustedError) as caught:
        decide_next(reopened(spec), spec, clock=SystemClock())
    assert (caught.value.checkpoints, caught.value.unreadable) == (0, 2)


@pytest.mark.matrix
@pytest.mark.parametrize("spoil_record", ["deleted", "garbled"])
@pytest.mark.parametrize("what", ["quarantine", "stop"])
def test_a_record_in_the_middle_that_is_gone_undoes_nothing(paused, spoil_record, what):
    spec, runlog = paused
    newest = read_history(runlog).checkpoints[-1]
    if what == "quarantine":
        quarantine(runlog, checkpoint=newest, reason="a person doubts it", epoch=0)
    else:
        request_stop(runlog, reason="stop!")
    slot = runlog.next_slot - 1
    facts = {"source": "s", "prices": {}, "taken_at": "2026-01-01T00:00:00Z"}
    runlog.append(lambda stamp: PricesEntry.model_validate(stamp(epoch=0) | facts))
    key = keys.log_key("tiny", slot)
    runlog.store.delete([key]) if spoil_record == "deleted" else runlog.store.put(key, b"garbage")
    again = reopened(spec)
    for decide in (
        lambda: decide_next(again, spec, clock=SystemClock()),
        lambda: newest_valid(again, epoch=9),
        lambda: load_checkpoint("tiny", store=spec.store),
    ):
        with pytest.raises(LostRecordError, match=f"give-up-record tiny --record {slot}"):
            decide()
    assert find_run("tiny", spec.store)[1].damage[0].slot == slot  # It can be looked at.


@pytest.mark.matrix
def test_a_record_that_a_person_gives_up_holds_up_the_run_no_longer(paused):
    spec, runlog = paused
    runlog.store.delete([keys.log_key("tiny", commits(runlog)[0].number)])
    again = reopened(spec)
    with pytest.raises(LostRecordError) as caught:
        decide_next(again, spec, clock=SystemClock())
    assert give_up_by_name(again, caught.value.slot) == caught.value.why
    assert decide_next(again, spec, clock=SystemClock()).plan.parent.step == 20
    for number in (caught.value.slot, 0, 99):
        with pytest.raises(NoLostRecordError):
            give_up_by_name(again, number)


@pytest.mark.matrix
def test_a_prepared_commit_of_somebody_else_is_not_adopted(fork_server, make_signed, open_log, make_spec, tmp_path):
    # The same save in an unsigned store is complete but for its record; it is copied beside a signed run's attempt.
    spec = make_signed(segment={"steps": 20})
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    plain = make_spec(store={"url": str(tmp_path / "plain")}, segment={"steps": 30})
    plain_log = open_log(plain)
    fork_server.run_attempt(plain_log, plain)
    (attempt,) = {slot.entry.attempt_id for slot in commits(runlog)}
    (source,) = plain_log.store.root.glob("*/attempts/*/step-000000030")
    shutil.copytree(source, runlog.store.root / f"tiny/attempts/{attempt}/step-000000030")
    assert list((runlog.store.root / f"tiny/attempts/{attempt}/step-000000030").glob("*.commit.json"))
    assert newest_valid(runlog, epoch=runlog.highest_epoch + 1).checkpoint.manifest.step == 20


def test_a_missing_key_is_named_before_anything_is_touched(make_signed, make_spec, tmp_path):
    spec = make_spec(store={"url": str(tmp_path / "new"), "signing_key": f"file:{tmp_path / 'gone'}"})
    with pytest.raises(SigningKeyError, match="cannot be read"):
        open_run(spec, clock=SystemClock())
    assert not (tmp_path / "new").exists()


def test_a_run_is_signed_from_its_first_record_or_not_at_all(make_spec, make_signed, open_log, tmp_path):
    open_log(make_spec())
    with pytest.raises(UnsignedLogError):
        reopened(make_signed())
    open_log(make_signed(run_id="signed"))
    with pytest.raises(SigningKeyNeededError):
        reopened(make_spec(run_id="signed"))
    store = {"url": str(tmp_path / "store"), "signing_key": new_key(tmp_path / "b", secret="6f" * 32)}
    with pytest.raises(ForgedRecordError, match="by another key"):
        reopened(make_spec(run_id="signed", store=store))


@pytest.mark.matrix
def test_a_signed_checkpoint_is_loaded_and_forked_with_the_key_only(paused, make_signed):
    spec, _ = paused
    assert load_checkpoint(spec.run_id, store=spec.store)
    with pytest.raises(SigningKeyNeededError):
        load_checkpoint(spec.run_id, store=StoreSpec(url=spec.store.url))
    report = fork_run(make_signed(run_id="fork"), "tiny")
    assert report.step == 20
    forked = read_history(reopened(make_signed(run_id="fork"))).newest
    assert all(shard.chunk_sha256 for shard in forked.manifest.shards)


@pytest.mark.matrix
def test_a_listing_of_runs_names_those_that_it_cannot_read(paused, make_spec, open_log, caplog):
    spec, _ = paused
    open_log(make_spec(run_id="plain"))
    assert [log.run_id for log, _ in known_runs(StoreSpec(url=spec.store.url))] == ["plain"]
    assert [log.run_id for log, _ in known_runs(spec.store)] == ["tiny"]
    assert "run skipped run=tiny" in caplog.text
    assert "run skipped run=plain" in caplog.text


def test_the_spec_in_the_log_has_the_reference_and_the_key_is_nowhere(paused, tmp_path):
    spec, runlog = paused
    body = json.loads(runlog.store.get(keys.log_key("tiny", 0))[HEAD_BYTES - len(b'{"crc32c":"00000000","entry":') :])
    assert body["entry"]["spec"]["store"]["signing_key"] == spec.store.signing_key
    secret = (tmp_path / "run-key").read_bytes().strip()
    assert not any(secret in path.read_bytes() for path in runlog.store.root.rglob("*") if path.is_file())


def test_incremental_saves_of_a_signed_run_refer_to_signed_shards(fork_server, make_signed, open_log):
    spec = make_signed(
        recipe="tests.recipes.frozen:build", checkpoints={"every_steps": 10, "full_every": 4, "staging_buffers": 2}
    )
    runlog = open_log(spec)
    train(fork_server, spec, runlog)
    manifests = [slot.entry.manifest for slot in commits(runlog)]
    assert all(shard.chunk_sha256 for manifest in manifests for shard in manifest.shards)
    assert any(manifest.saves_since_full for manifest in manifests)


@pytest.mark.matrix
def test_a_signed_run_goes_on_after_a_kill(fork_server, make_signed, open_log):
    spec = make_signed(config={"pause_seconds": 0.02})
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=_kill_after_commit)
    train(fork_server, spec, runlog)
    history = read_history(runlog.reload())
    assert history.committed_step == 40
    assert [entry.verdict.kind is VerdictKind.BROKEN for entry in history.resumes] == [False]


def _kill_after_commit(pid, runlog, plan):
    if read_history(runlog).checkpoints:
        os.kill(pid, signal.SIGKILL)
        return True
    return False


@pytest.mark.parametrize("left", ["everything before the decision", "nothing"])
def test_an_attempt_refuses_a_log_whose_end_was_cut_off_with_its_decision(paused, left):
    spec, runlog = paused
    plan = decide_next(runlog, spec, clock=SystemClock()).plan
    slots = [slot.number for slot in runlog.slots]
    gone = slots[-1:] if left != "nothing" else slots
    runlog.store.delete([keys.log_key("tiny", number) for number in gone])
    with pytest.raises(StalePlanError):
        claim_run(open_run_log(spec), Assignment(spec=spec, plan=plan), environment=HERE)


@pytest.mark.matrix
def test_a_whole_local_run_is_signed_with_a_key_from_a_variable(make_spec, tmp_path, monkeypatch):
    monkeypatch.setenv("THE_RUN_KEY", "0123456789abcdef" * 4)
    spec = make_spec(store={"url": str(tmp_path / "store"), "signing_key": "env:THE_RUN_KEY"}, segment={"steps": 20})
    runlog = open_run(spec, clock=SystemClock())
    assert run_here(spec, runlog).action == "finished"
    history = read_history(reopened(spec))
    assert [entry.verdict.kind for entry in history.resumes] == [VerdictKind.EXACT]
    assert not any(b"0123456789abcdef0123" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
