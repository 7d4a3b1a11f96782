"""Messages between a launcher and its ranks through a folder, whenever either of them reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from segue.launch.assignment import Assignment
from segue.launch.rendezvous import LaunchFolder
from segue.launch.torchrun import thaw_orphans
from segue.process import Parent, ProcessRef
from segue.records import Capacity, SegmentPlan

RANK = """
import signal, sys, threading
from pathlib import Path
from segue.launch.rendezvous import LaunchFolder
noticed = threading.Event()
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: noticed.set())
before = LaunchFolder(Path(sys.argv[1])).enter(int(sys.argv[2]))
print("entered", *(number.name for number in before), flush=True)
while not noticed.wait(0.05):
    pass
print("noticed", flush=True)
"""


@pytest.fixture
def folder(make_spec):
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-")
    made = LaunchFolder.make(Assignment(spec=make_spec(), plan=plan))
    yield made
    made.remove()


@pytest.fixture
def enter(folder):
    """Starts a process that enters as a rank and waits for a notice."""
    started = []

    def start(rank):
        command = [sys.executable, "-c", RANK, str(folder.path), str(rank)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().split()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_folder_gives_the_ranks_their_assignment_and_who_started_them(folder, make_spec):
    found = LaunchFolder(folder.path)
    assert found.assignment.spec == make_spec()
    assert found.owner.pid == os.getpid()
    assert found.has_owner()
    assert found.path.stat().st_mode & 0o077 == 0


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_notice_reaches_the_ranks_that_have_entered_and_those_that_come_later(folder, enter, number):
    early, line = enter(0)
    assert line == ["entered"]
    folder.give_notice(number)
    assert early.stdout.readline() == "noticed\n"
    late, line = enter(1)
    assert line == ["entered", number.name]
    assert late.poll() is None


def test_a_rank_that_has_left_is_not_signalled_because_its_pid_may_be_anothers_by_then(folder, enter):
    bystander, _ = enter(0)
    folder.leave(0, 0)
    other, _ = enter(1)
    folder.give_notice()
    folder.signal(signal.SIGKILL)
    assert other.wait(10) == -signal.SIGKILL
    assert bystander.poll() is None
    bystander.terminate()
    assert bystander.wait(10) == 0


def test_a_rank_leaves_also_where_its_folder_was_removed(folder):
    folder.remove()
    folder.leave(1, 0)
    assert folder.exit_code() is None


def test_a_process_that_has_the_pid_of_a_rank_that_crashed_is_not_signalled(folder, enter):
    bystander, _ = enter(0)
    path = folder.path / "pid-0"
    pid, start_ticks = path.read_text().split()
    path.write_text(f"{pid} {int(start_ticks) - 1}")
    folder.signal(signal.SIGKILL)
    bystander.terminate()
    assert bystander.wait(10) == 0


def test_an_owner_that_has_ended_is_gone_even_before_it_is_reaped(folder):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as owner:
        (folder.path / "owner").write_text(str(ProcessRef.of(owner.pid)))
        assert folder.has_owner()
        owner.kill()
        give_up_at = time.monotonic() + 60
        while folder.has_owner():
            assert time.monotonic() < give_up_at
            time.sleep(0.01)


def test_a_kill_ends_every_rank_at_once(folder, enter):
    processes = [enter(rank)[0] for rank in range(2)]
    folder.signal(signal.SIGKILL)
    assert [process.wait(10) for process in processes] == [-signal.SIGKILL] * 2
    folder.signal(signal.SIGKILL)  # No process is left.


@pytest.mark.parametrize(
    ("left", "code"),
    [({}, None), ({0: 11, 1: 0}, 11), ({1: 12, 2: 13}, 12), ({2: 3, 10: 1}, 3), ({0: 0, 1: 12}, 0)],
)
def test_the_exit_code_is_rank_0s_or_that_of_the_first_that_left_one(folder, left, code):
    for rank, number in left.items():
        folder.leave(rank, number)
    assert folder.exit_code() == code


def test_a_file_that_is_half_written_is_not_read(folder):
    (folder.path / ".exit-0").write_text("1")
    assert folder.exit_code() is None


def test_a_folder_that_is_gone_is_no_reason_to_fail(folder):
    folder.remove()
    folder.give_notice()
    folder.signal(signal.SIGKILL)
    folder.remove()
    assert folder.exit_code() is None


def test_suspended_ranks_go_on_when_nobody_is_left_who_could_continue_them(folder, enter):
    rank = ProcessRef.of(enter(0)[0].pid)
    folder.signal(signal.SIGSTOP)
    wait_until(rank.is_stopped)
    thaw_orphans(folder, Parent(pid=os.getpid()))  # This process's own parent is another one: the first one is gone.
    wait_until(lambda: not rank.is_stopped())


def wait_until(condition):
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
