"""Kills for memory: the kernel's counters, and a real kill in a control group where this machine allows one."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd
from segue.launch.memory import (
    MemoryKills,
    RecentKills,
    free_bytes,
    in_words,
    limit_bytes,
    peak_bytes,
    unreclaimable_bytes,
)
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.runlog.open import open_log

LIMIT_BYTES = 1_200 << 20


@pytest.mark.parametrize(
    ("before", "after", "was_killed", "grown"),
    [
        (MemoryKills(0, 0), MemoryKills(1, 1), False, True),
        (MemoryKills(3, 7), MemoryKills(3, 7), True, False),
        (MemoryKills(0, 0), MemoryKills(0, 1), True, True),  # In another group: the trainer may have been moved there.
        (MemoryKills(0, 0, 0), MemoryKills(0, 0, 1), False, True),
        (MemoryKills(0, 0, 2), MemoryKills(0, 0, 2), True, False),
        (
            MemoryKills(0, 0, 2),
            MemoryKills(0, 1, 2),
            True,
            False,
        ),  # Another program's, while it was killed for a notice.
        (MemoryKills(0, 0, 2), MemoryKills(0, 1, None), True, True),  # Its group was removed with it.
        (MemoryKills(0, 0), MemoryKills(0, 1), False, False),
        (MemoryKills(None, 0), MemoryKills(None, 1), True, True),
        (MemoryKills(None, None), MemoryKills(None, None), True, False),
        (MemoryKills(None, 0), MemoryKills(1, 0), True, False),
        (MemoryKills(None, 0), MemoryKills(None, 1), False, False),
    ],
)
def test_a_kill_in_the_group_counts_and_one_elsewhere_only_with_a_killed_process(before, after, was_killed, grown):
    assert (before.evidence(after, was_killed=was_killed) is not None) is grown


def test_the_evidence_is_named():
    group = MemoryKills(0, 0).evidence(MemoryKills(1, 1), was_killed=True)
    assert group == "the kernel counted a kill for lack of memory in its control group"
    machine = MemoryKills(0, 4).evidence(MemoryKills(0, 5), was_killed=True)
    assert "oom_kill in /proc/vmstat grew from 4 to 5), and none in the control group here" in machine
    assert "there is no control group" in MemoryKills(None, 4).evidence(MemoryKills(None, 5), was_killed=True)


class Kernel:
    """Counters of the kernel in a folder of a test."""

    def __init__(self, folder, monkeypatch):
        self.groups = {"self": folder / "own", "7": folder / "first"}
        for group in ("own", "first", "second"):
            (folder / group).mkdir()
            self.count(folder / group, 0)
        monkeypatch.setattr("segue.launch.memory._groups", lambda process="self": self._chains(process))

    def count(self, group, kills):
        (group / "memory.events").write_text(f"oom 0\noom_kill {kills}\n")

    def _chains(self, process):
        return [[self.groups[process]]] if process in self.groups else []


def test_a_kill_in_the_trainers_own_group_counts_also_once_it_has_ended(tmp_path, monkeypatch):
    kernel = Kernel(tmp_path, monkeypatch)
    kills = RecentKills(7)
    kills.look(100.0)
    kernel.count(tmp_path / "first", 1)
    del kernel.groups["7"]
    assert kills.evidence(was_killed=True) == "the kernel counted a kill for lack of memory in its control group"


def test_a_trainer_that_was_moved_to_another_group_is_followed(tmp_path, monkeypatch):
    kernel = Kernel(tmp_path, monkeypatch)
    kernel.count(tmp_path / "second", 5)  # Earlier kills there are not its own.
    kills = RecentKills(7)
    for at in (100.0, 106.0):
        kills.look(at)
    kernel.groups["7"] = tmp_path / "second"
    kills.look(112.0)
    assert kills.evidence(was_killed=True) is None
    kernel.count(tmp_path / "second", 6)
    assert kills.evidence(was_killed=False) is not None
    kernel.count(tmp_path / "second", 5)
    kernel.count(tmp_path / "first", 9)
    assert kills.evidence(was_killed=True) is None


@pytest.fixture
def other_group():
    """A control group with little memory, in which the process that watches is not."""
    root = Path("/sys/fs/cgroup/memory")
    group = root / f"segue-test-elsewhere-{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(48 << 20))
    except OSError:
        pytest.skip("no control group with a memory limit can be made here")
    yield group / "cgroup.procs"
    SystemClock().sleep(0.5)
    group.rmdir()


_FILL = "import sys\nsys.stdin.readline()\nkept = []\nwhile True: kept.append(bytearray(b'x') * (8 << 20))"
_WAIT = "import sys\nsys.stdin.readline()\nimport time\ntime.sleep(60)"


@pytest.mark.parametrize("is_memory", [True, False])
def test_a_real_kill_in_another_group_is_told_from_a_plain_one(other_group, is_memory):
    process = subprocess.Popen([sys.executable, "-c", _FILL if is_memory else _WAIT], stdin=subprocess.PIPE)
    kills = RecentKills(process.pid)
    try:
        other_group.write_text(str(process.pid))
        kills.look(100.0)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        if not is_memory:
            process.kill()
        assert process.wait(60) == -9
    finally:
        process.kill()
        process.stdin.close()
    end = TrainerEnd.of(-9, kills=kills)
    assert end.was_out_of_memory is is_memory
    assert end.reason is (StopReason.OUT_OF_MEMORY if is_memory else StopReason.LOST)
    assert ("because memory ran out (the kernel counted" in end.why) is is_memory


def test_a_real_kill_is_found_although_the_counters_were_read_while_the_process_ended(other_group):
    process = subprocess.Popen([sys.executable, "-c", _FILL], stdin=subprocess.PIPE)
    kills = RecentKills(process.pid)
    try:
        other_group.write_text(str(process.pid))
        kills.look(100.0)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        kills.look(106.0)  # The process is a zombie, and in another group.
        assert process.wait(60) == -9
    finally:
        process.kill()
        process.stdin.close()
    assert TrainerEnd.of(-9, kills=kills).reason is StopReason.OUT_OF_MEMORY


def test_a_real_kill_of_another_program_is_not_blamed_on_a_process_that_was_killed_then(other_group):
    mine = subprocess.Popen([sys.executable, "-c", _WAIT], stdin=subprocess.PIPE)
    others = subprocess.Popen([sys.executable, "-c", _FILL], stdin=subprocess.PIPE)
    before, kills = MemoryKills.now(), RecentKills(mine.pid)
    try:
        other_group.write_text(str(others.pid))
        others.stdin.write(b"go\n")
        others.stdin.flush()
        assert others.wait(60) == -9
        assert MemoryKills.now().machine > before.machine
        mine.kill()
        assert mine.wait(60) == -9
    finally:
        for process in (mine, others):
            process.kill()
            process.stdin.close()
    assert TrainerEnd.of(-9, kills=kills).reason is StopReason.LOST


def test_a_kill_long_before_the_end_does_not_count():
    kills = RecentKills()
    kills._older = kills._newer = MemoryKills(0, 0)
    for at in (100.0, 102.0, 106.0):
        kills.look(at)
    assert kills.before == MemoryKills.now()  # As the counters were at 100 s, not at the start.


def test_mapped_files_do_not_count_as_memory_that_is_used(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(64 << 20))
    before = unreclaimable_bytes()
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[::4096]) == 0
        assert unreclaimable_bytes() - before < 32 << 20
    held = bytearray(b"x") * (64 << 20)
    assert unreclaimable_bytes() - before > 48 << 20
    assert len(held) == 64 << 20


def test_the_words_name_what_is_known():
    assert in_words(3 << 29, 1 << 31) == "peak memory 1.50 GiB, limit 2.00 GiB"
    assert in_words(3 << 29, None) == "peak memory 1.50 GiB"
    assert in_words(None, None) == ""


def test_the_peak_counts_bytes():
    assert 10 << 20 < peak_bytes() < 1 << 40
    limit = limit_bytes()
    assert limit is None or limit > 100 << 20


@pytest.mark.parametrize(
    ("limit", "used", "cache"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_what_a_control_group_leaves_is_free_in_both_versions(tmp_path, monkeypatch, limit, used, cache):
    monkeypatch.setattr("segue.launch.memory._groups", lambda: [[tmp_path]])
    for name, text in {limit: "1000000", used: "600000", "memory.stat": f"anon 5\n{cache} 100000"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert free_bytes() == 500_000
    assert limit_bytes() == 1_000_000
    (tmp_path / limit).write_text({"memory.max": "max"}.get(limit, f"{2**63 - 4096}"))
    assert free_bytes() > 1_000_000


@pytest.fixture
def memory_group():
    """A control group with a memory limit, and the file that takes process ids; removed afterwards."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, f"segue-test-oom-{os.getpid()}")
        try:
            group.mkdir(exist_ok=True)
            (group / limit).write_text(str(LIMIT_BYTES))
        except OSError:
            continue
        yield group / "cgroup.procs"
        SystemClock().sleep(0.5)
        group.rmdir()
        return
    pytest.skip("no control group with a memory limit can be made here")


@pytest.mark.matrix
def test_a_real_kill_for_memory_is_reported_as_out_of_memory(memory_group, make_spec, tmp_path):
    config = {"how": "fill", "at_step": 15, "marker": str(tmp_path / "marker")}
    spec = make_spec(recipe="tests.recipes.stuck:build", config=config)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from segue.clock import SystemClock\n"
        "from segue.controller.local_run import run_here\n"
        "from segue.controller.steps import open_run\n"
        "from segue.spec import RunSpec\n"
        "Path(sys.argv[1]).write_text('0')\n"
        "spec = RunSpec.model_validate_json(sys.argv[2])\n"
        "print(run_here(spec, open_run(spec, clock=SystemClock()), on_line=lambda _: None).action)\n"
    )
    command = [sys.executable, "-c", code, str(memory_group), spec.model_dump_json()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    history = read_history(open_log(spec).reload())
    assert ended.stdout.strip() == "finished", ended.stderr
    first = history.reports[0]
    assert first.stop_reason is StopReason.OUT_OF_MEMORY, first.note
    assert "peak memory " in first.note
    # The kernel may kill once more while it frees the memory of the first.
    *others, last = [report.stop_reason for report in history.reports]
    assert (set(others), last) == ({StopReason.OUT_OF_MEMORY}, StopReason.FINISHED)
