"""The crash benchmark's own promises: it kills as planned, its checks can fail, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.crash import leftovers
from benchmarks.crash.checks import Checker
from benchmarks.crash.killing_store import KillingStore, Moment, Operation
from benchmarks.crash.places import LOCAL, S3, LocalPlace
from benchmarks.crash.plan import NAMES, schedule
from benchmarks.crash.rounds import Options, measure, passed
from benchmarks.crash.trainer import Notes, Order, read_notes
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import LocalStore
from segue.trainer.attempt import run_attempt

ROOT = Path(__file__).parents[2]
KEYS = {"kills", "commits_lost", "torn_visible", "final_identical", "orphans_left", "stores", "seconds", "problems"}


@pytest.mark.soak
def test_kills_on_both_stores_lose_nothing_and_change_no_bit():
    lines, kills = [], 12
    report = measure(Options(kills=kills, steps=120), say=lines.append)
    assert report.keys() >= KEYS
    assert report["problems"] == []
    assert passed(report)
    assert report["kills"] == kills
    by_name = {name: count for name, count in report.items() if name.startswith("kills_at_")}
    assert len(by_name) == len(NAMES)
    assert sum(by_name.values()) == kills
    assert sum(count > 0 for count in by_name.values()) > len(NAMES) / 2
    assert (report["kills_on_local"], report["kills_on_s3"]) == (kills // 2, kills // 2)
    assert any(f"kill {kills} of {kills}" in text for text in lines)
    assert (report["commits_lost"], report["torn_visible"], report["records_lost"]) == (0, 0, 0)
    assert (report["final_identical"], report["resumes_broken"], report["orphans_left"]) == (True, 0, 0)
    assert json.loads(json.dumps(report)) == report


class Forgetting(LocalPlace):
    """A folder that loses one commit some time after it has acknowledged it."""

    has_lost = False

    def store(self):
        commits = [path for path in sorted(self.root.glob("*/log/*.json")) if b'"kind":"commit"' in path.read_bytes()]
        if commits and not self.has_lost:
            commits[-1].unlink()
            self.has_lost = True
        return super().store()


@pytest.mark.soak
def test_a_store_that_loses_a_commit_makes_the_benchmark_fail(tmp_path):
    places = [Forgetting(tmp_path / "store")]
    report = measure(Options(kills=1, steps=60), say=lambda text: None, places=places)
    assert places[0].has_lost
    assert report["commits_lost"] == 1
    assert not passed(report)


class LosesItsEnd(LocalStore):
    """Loses every append from the second commit on when its machine ends, as if its last minute was never flushed."""

    def __init__(self, root):
        super().__init__(root)
        self._commits, self._not_flushed = 0, []

    def put_if_absent(self, key, data):
        self._commits += b'"kind":"commit"' in data
        if self._commits > 1:
            self._not_flushed.append(key)
        return super().put_if_absent(key, data)

    def lose(self):
        self.delete(self._not_flushed)


def trained(make_spec, open_log, store, notes) -> Checker:
    """A run whose one attempt made its appends through `store`, and its checker."""
    spec = make_spec()
    plan = decide_next(open_log(spec), spec, clock=SystemClock()).plan
    assignment = Assignment(spec=spec, plan=plan)
    board = NoticeBoard(SystemClock())
    order = Order(assignment=assignment, writes_inline=True, notes=str(notes))
    noting = KillingStore(store, at=None, on_append=Notes(order, board))
    run_attempt(
        assignment,
        runlog=RunLog(noting, spec.run_id),
        board=board,
        clock=SystemClock(),
        shards=InlineWriter([noting]),
    )
    return Checker(lambda: RunLog(LocalStore(store.root).create(), spec.run_id), notes)


def test_commits_that_were_acknowledged_and_never_seen_by_anyone_are_counted_as_lost(make_spec, open_log, tmp_path):
    store = LosesItsEnd(tmp_path / "store")
    checker = trained(make_spec, open_log, store, tmp_path / "notes")
    store.lose()
    history = checker.look()
    assert not history.damage  # The log just ends early: only the acknowledged records show that.
    assert [c.manifest.step for c in history.checkpoints] == [10]
    acknowledged = [note for note in read_notes(tmp_path / "notes") if note.kind == "commit"]
    assert len(checker.lost) == len(acknowledged) - 1 > 0
    assert checker.records_lost


def test_a_checkpoint_that_does_not_read_back_is_counted_as_torn_unless_it_was_damaged_on_purpose(
    make_spec, open_log, tmp_path
):
    store = LocalStore(tmp_path / "store").create()
    checker = trained(make_spec, open_log, store, tmp_path / "notes")
    newest = checker.look().newest
    assert checker.is_sound
    checker.damaged.add(leftovers.damage(store, "tiny", newest, chance=random.Random(0)))
    assert [c.ref for c in checker.look().checkpoints if checker.is_damaged(c)] == [newest.ref]
    checker.look()
    assert checker.is_sound
    checker.damaged.clear()
    checker.look()
    assert checker.torn == {newest.ref.slot}
    assert not checker.lost


def test_a_shard_that_a_kept_checkpoint_lost_is_seen_though_it_is_not_the_newest(make_spec, open_log, tmp_path):
    store = LocalStore(tmp_path / "store").create()
    checker = trained(make_spec, open_log, store, tmp_path / "notes")
    oldest = checker.look().usable[0]
    store.delete([f"tiny/{oldest.manifest.shards[0].key}"])
    checker.look()
    assert checker.torn == {oldest.ref.slot}


def test_orphans_are_shards_that_no_record_names(make_spec, open_log, tmp_path):
    store = LocalStore(tmp_path / "store").create()
    checker = trained(make_spec, open_log, store, tmp_path / "notes")
    assert checker.orphans(store) == {}
    leftovers.leave_an_orphan(store, "tiny", read_history(RunLog(store, "tiny")))
    assert len(checker.orphans(store)) == 2


def test_a_schedule_has_every_name_and_place_and_moment_equally_often():
    plan = schedule(kills=6 * len(NAMES), places=(LOCAL, S3), seed=3)
    assert set(Counter(kill.name for kill in plan).values()) == {6}
    assert set(Counter((kill.name, kill.place) for kill in plan).values()) == {3}
    inside = Counter((kill.name, kill.place, kill.moment) for kill in plan if kill.moment != "any")
    assert len(inside) == len(Operation) * 2 * len(Moment)
    assert schedule(kills=30, places=(LOCAL,), seed=3) == schedule(kills=30, places=(LOCAL,), seed=3)


@pytest.mark.parametrize(
    ("moment", "records", "staged"), [(Moment.BEFORE, 1, 0), (Moment.MIDDLE, 1, 1), (Moment.AFTER, 2, 0)]
)
def test_a_killing_store_dies_at_its_operation_with_that_much_of_it_done(tmp_path, moment, records, staged):
    program = f"""
from pathlib import Path
from segue.runlog.entries import PruneEntry
from segue.runlog.log import RunLog
from segue.stores import LocalStore
from benchmarks.crash.killing_store import KillingStore, KillPoint, Moment, Operation, half_a_file
inner = LocalStore(Path({str(tmp_path)!r})).create()
at = KillPoint(operation=Operation.PRUNE_APPEND, moment=Moment({moment.value!r}), number=2)
noted = Path({str(tmp_path / "noted")!r}).open("a", buffering=1)
store = KillingStore(inner, at=at, half=half_a_file(inner), on_append=lambda slot, _: noted.write(f"{{slot}}\\n"))
log = RunLog(store, "r")
while True:
    log.append(lambda stamp: PruneEntry.model_validate(stamp(epoch=1) | {{"slots": [log.next_slot]}}))
"""
    died = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert len(RunLog(LocalStore(tmp_path).create(), "r").reload().slots) == records
    assert len(list(tmp_path.rglob(".staged-*"))) == staged
    # Noted is what the store has taken, also where its caller never heard of it.
    assert (tmp_path / "noted").read_text().split() == [str(slot) for slot in range(records)]


@pytest.mark.soak
def test_ctrl_c_leaves_neither_files_nor_processes(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "crash", "--kills", "30"]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)})
    give_up_at = time.monotonic() + 60
    while len(processes_of(tmp_path)) < 4:  # The benchmark itself, moto's server, the fork_server and a trainer.
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)
    assert run.returncode != 0
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def processes_of(folder: Path) -> list[int]:
    """Those whose temporary folder it is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # It ended while we looked.
    return found
