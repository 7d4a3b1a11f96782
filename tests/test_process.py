"""Whether the process that this one works for still runs, and forks beside imports in threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from segue.process import Parent, ProcessRef

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux shows zombies and start times")


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def wait_until(condition):
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_a_running_process_is_alive(sleeper):
    assert ProcessRef.of(sleeper.pid).is_alive()
    assert ProcessRef.this().is_alive()


def test_a_process_that_ended_is_not_alive(sleeper):
    found = ProcessRef.of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert not found.is_alive()
    assert not ProcessRef.of(sleeper.pid).is_alive()


@needs_proc
def test_a_zombie_is_not_alive(sleeper):
    found = ProcessRef.of(sleeper.pid)
    sleeper.kill()  # Not waited for: its entry in the process table stays.
    wait_until(lambda: not found.is_alive())
    os.kill(sleeper.pid, 0)  # A signal would still be accepted.


@needs_proc
def test_a_later_process_with_the_same_id_is_not_mistaken_for_it(sleeper):
    found = ProcessRef.of(sleeper.pid)
    assert not ProcessRef(sleeper.pid, start_ticks=found.start_ticks - 1).is_alive()


def test_a_reference_can_be_passed_to_another_process_as_text(sleeper):
    found = ProcessRef.of(sleeper.pid)
    assert ProcessRef.parse(str(found)) == found
    assert ProcessRef.parse(str(sleeper.pid)) == ProcessRef(sleeper.pid)
    assert ProcessRef(sleeper.pid).is_alive()  # Without its start time only the id counts.


def test_a_process_of_another_user_is_alive():
    assert ProcessRef(1).is_alive()


def test_a_parent_is_alive_until_it_ends_even_unreaped():
    assert Parent().pid == os.getppid()
    assert Parent().is_alive()
    assert not Parent(os.getpid()).is_alive()
    orphan = (
        "import time; from segue.process import Parent; parent = Parent(); print('up', flush=True)\n"
        "while parent.is_alive(): time.sleep(0.01)\n"
        "print('gone', flush=True)"
    )
    starts = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {orphan!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.kill()  # Reaped only at the end of this block.
        assert process.stdout.readline() == "gone\n"


def test_a_variable_of_the_same_length_is_shown_to_others():
    script = """
import os, pathlib
from segue.process import set_shown_variable
set_shown_variable("SHOWN", "after.")
set_shown_variable("LONGER", "after, too")
print(os.environ["SHOWN"], os.environ["LONGER"], flush=True)
print(pathlib.Path("/proc/self/environ").read_bytes().decode().replace("\\0", " "))
"""
    environment = os.environ | {"SHOWN": "before", "LONGER": "before"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    own, shown = ended.stdout.splitlines()
    assert own == "after. after, too"
    assert "SHOWN=after. " in shown
    assert "LONGER=before " in shown


STOPS_ITSELF = """
import os, pathlib, signal, subprocess, sys, time
from segue.process import go_on_without_parent

if sys.argv[1] == "child":
    go_on_without_parent()
    os.kill(os.getpid(), signal.SIGSTOP)
    pathlib.Path(sys.argv[2]).touch()
else:
    child = subprocess.Popen([sys.executable, "-c", os.environ["CODE"], "child", sys.argv[2]], start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(600)
"""


@needs_proc
def test_a_suspended_process_goes_on_when_the_one_that_started_it_is_killed(tmp_path):
    went_on = tmp_path / "went_on"
    command = [sys.executable, "-c", STOPS_ITSELF, "parent", str(went_on)]
    env = os.environ | {"CODE": STOPS_ITSELF}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        child = ProcessRef.of(int(parent.stdout.readline()))
        wait_until(child.is_stopped)
        parent.kill()
    wait_until(went_on.exists)


_FORKS_BESIDE_AN_IMPORT = """
import os, threading
from segue.process import safe_beside_forks
begun, goes_on, done = threading.Event(), threading.Event(), []
def work():
    with safe_beside_forks():
        begun.set()
        goes_on.wait()
        done.append("import")
threading.Thread(target=work, daemon=True).start()
begun.wait()
threading.Timer(0.5, goes_on.set).start()
child = os.fork()
if child == 0:
    with safe_beside_forks():
        os._exit(len(done))
print(done, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_for_an_import_in_another_thread_whose_lock_the_child_would_never_get():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKS_BESIDE_AN_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['import'] 1\n"
