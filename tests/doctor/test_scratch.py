"""What the checks start for a while is gone when they are interrupted, whenever that is."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil
import pytest

from segue.doctor.scratch import Scratch

COMMAND = ["sleep", "611"]
MOMENTS = 40


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.fixture
def alarm():
    """Raises KeyboardInterrupt in the main thread after some seconds, as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def running():
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.cmdline() == COMMAND and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


@pytest.mark.matrix
def test_an_interrupt_at_any_moment_of_a_start_leaves_no_child(alarm):
    interrupted = 0
    for moment in range(MOMENTS):
        scratch = Scratch()
        try:
            alarm((1 + moment) / 4000)
            with scratch.child(COMMAND) as child:
                child.wait()
        except KeyboardInterrupt:
            interrupted += 1
        scratch.clear(None)
        left = running()
        for process in left:
            process.kill()
        assert left == [], f"interrupted after {(1 + moment) / 4} ms"
    assert interrupted == MOMENTS


def test_after_it_was_cleared_nothing_is_started():
    scratch = Scratch()
    scratch.clear(None)
    with pytest.raises(InterruptedError), scratch.child(COMMAND):
        pass
    assert running() == []
