"""A trainer's output: nothing that happens to its reader ends or stops the writer."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from segue.launch.output import Line, Relay, line_of

SPEAKER = """
import sys
from segue.launch.output import survive_broken_output
survive_broken_output()
for number in range({lines}):
    print("x" * 100, flush=True)
open({done!r}, "w").close()
"""


def speaker(tmp_path, *, lines, **options):
    """A process that prints lines to a pipe, and makes a file when it has printed all of them."""
    done = tmp_path / "done"
    code = SPEAKER.format(lines=lines, done=str(done))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, **options), done


def wait_for(path: Path, process: subprocess.Popen) -> None:
    give_up_at = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up_at
        assert process.poll() in (None, 0), "the writer ended"
        time.sleep(0.02)


@pytest.mark.matrix
def test_a_process_whose_reader_is_gone_prints_on(tmp_path):
    process, done = speaker(tmp_path, lines=5_000)  # Eight pipes full.
    process.stdout.close()
    wait_for(done, process)
    assert process.wait(60) == 0


@pytest.mark.matrix
def test_a_process_whose_reader_does_not_read_prints_on(tmp_path):
    process, done = speaker(tmp_path, lines=2_000)
    wait_for(done, process)
    process.stdout.close()
    assert process.wait(60) == 0


@pytest.mark.soak
def test_an_orphan_prints_on(tmp_path):
    """Its parent, which read its output, was killed."""
    done = tmp_path / "done"
    code = SPEAKER.format(lines=20_000, done=str(done))
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {code!r}], stdout=subprocess.PIPE, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.stdout.read(1000)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        give_up_at = time.monotonic() + 60
        while not done.exists():
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
    finally:
        if not done.exists():
            os.kill(child, signal.SIGKILL)


def relayed(data: bytes, on_line=None) -> list[Line]:
    lines: list[Line] = []
    reads, writes = os.pipe()
    relay = Relay(os.fdopen(reads, "rb"), on_line or lines.append)
    with os.fdopen(writes, "wb") as stream:
        stream.write(data)
    relay.close()
    return lines


def test_lines_keep_their_level():
    lines = relayed(b"WARNING r seg0 | slow\nplain\nERROR r seg0 | bad\nERRORS are no level")
    assert [line.level for line in lines] == [logging.WARNING, logging.INFO, logging.ERROR, logging.INFO]
    assert lines[1].text == "plain"


def test_of_a_progress_bar_the_last_state_is_shown():
    bar = b"\r".join(b"%3d%%|####| %d/100" % (n, n) for n in range(101))
    lines = relayed(b"before\n" + bar + b"\nafter\r\n")
    assert [line.text for line in lines] == ["before", "100%|####| 100/100", "after"]


def test_a_progress_bar_that_never_ends_its_line_takes_no_memory():
    bar = b"".join(b"\r%6d/1000000 %s" % (n, b"#" * 60) for n in range(20_000))
    lines = relayed(bar)
    assert [line.text[:14] for line in lines] == [" 19999/1000000"]


def test_many_lines_are_limited_and_counted():
    lines = relayed(b"".join(b"line %d\n" % n for n in range(5_000)))
    shown = [line for line in lines if line.text.startswith("line ")]
    dropped = [line for line in lines if "lines of output not shown" in line.text]
    assert len(shown) < 1_000
    assert shown[-1].text == "line 4999"
    assert sum(int(line.text.split()[1]) for line in dropped) == 5_000 - len(shown)
    assert {line.level for line in dropped} == {logging.WARNING}


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, BrokenPipeError])
def test_a_reader_of_lines_that_fails_stops_nothing(error):
    seen = []

    def fails(line: Line) -> None:
        seen.append(line.text)
        raise error

    relayed(b"one\ntwo\nthree\n", fails)
    assert seen == ["one", "two", "three"]


def test_the_writer_never_waits_for_a_slow_reader_of_lines():
    is_released = threading.Event()
    reads, writes = os.pipe()
    relay = Relay(os.fdopen(reads, "rb"), lambda line: is_released.wait(60))
    with os.fdopen(writes, "wb") as stream:
        for number in range(20_000):
            stream.write(b"line %d of twenty thousand, which is more than a pipe takes\n" % number)
    is_released.set()
    relay.close()


def test_long_lines_are_cut():
    line = line_of("x" * 10_000)
    assert line.text.endswith("... (6000 more characters)")
    assert len(line.text) < 4_100


def test_a_process_that_runs_many_flows_watches_its_output_once():
    code = """
import os, threading
from segue.launch.output import survive_broken_output
for _ in range(3):
    survive_broken_output()
print([thread.name for thread in threading.enumerate()].count("segue-output"))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=60)[0] == "1\n"
