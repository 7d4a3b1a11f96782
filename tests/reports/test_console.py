"""What a person hears of a command while it works: on a terminal, in a pipe, in a file."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from segue.reports import console as module
from segue.reports.console import Reached, StepLines, progress
from tests.cli.test_errors import TINY, Place

SEGUE = Path(sys.executable).with_name("segue")


def plain() -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=False, width=200), written


def until(holds) -> None:
    give_up_at = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_short_work_says_nothing(monkeypatch):
    monkeypatch.setattr(module, "QUIET_SECONDS", 600.0)
    console, written = plain()
    with progress("looking", console=console) as say:
        say("looking closer")
    assert written.getvalue() == ""


def test_each_step_of_long_work_has_a_line_as_it_begins(monkeypatch):
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)
    console, written = plain()
    with progress("looking", console=console) as say:
        until(lambda: written.getvalue() == "looking\n")
        say("check 1 of 2: store.write")
        assert written.getvalue().endswith("check 1 of 2: store.write\n")
        say("check 2 of 2: [recipe.imports]")
    assert written.getvalue().splitlines() == ["looking", "check 1 of 2: store.write", "check 2 of 2: [recipe.imports]"]


def test_a_step_that_lasts_is_said_again_with_its_time(monkeypatch):
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 1.0)
    console, written = plain()
    with progress("importing torch", console=console):
        until(lambda: "so far" in written.getvalue())
    assert written.getvalue().splitlines()[1].startswith("importing torch (")


@pytest.mark.parametrize(
    ("before", "now", "is_news"),
    [
        (None, ("training", 0), True),
        (("training", 0), ("training", 9), False),
        (("training", 9), ("training", 10), True),
        (("training", 10), ("training", 19), False),
        (("training", 19), ("training", 45), True),
        (("starting", 0), ("training", 0), True),
        (("training", 45), ("training", 40), False),
    ],
)
def test_a_line_comes_with_each_new_thing_and_each_tenth(before, now, is_news):
    last = Reached(*before, 100) if before is not None else None
    assert Reached(*now, 100).is_news_after(last) is is_news


def test_a_training_of_few_steps_has_a_line_for_each_and_none_twice():
    lines: list[str] = []
    show = StepLines(lines.append)
    for step in (0, 0, 1, 2, 2, 3):
        show("reference run", step, 3)
    assert lines == [f"reference run, step {step} of 3" for step in (0, 1, 2, 3)]


@pytest.mark.matrix
def test_a_drill_in_a_pipe_says_how_far_it_is_while_it_works(tmp_path):
    process = Place(tmp_path / "place").start("drill", TINY, "--steps", "40", "--kills", "1")
    with process:
        lines = [(process.poll(), line) for line in process.stderr]
        assert process.wait(timeout=100) == 0
    assert [state for state, line in lines if "reference run, step " in line][:1] == [None], "while it works"
    assert any(line.startswith("disturbed run, step ") for _, line in lines)


def test_on_a_terminal_there_is_one_line_that_is_gone_at_the_end():
    shown, console_end = pty.openpty()
    read: list[bytes] = []

    def collect() -> None:
        try:
            while data := os.read(shown, 4096):
                read.append(data)
        except OSError:
            return

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    text = "from segue.reports.console import progress\nimport time\n"
    text += "with progress('looking') as say:\n    time.sleep(.3)\n    say('check 1 of 2: a')\n    time.sleep(.3)\n"
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", text], stderr=console_end, env=environment, check=True, timeout=60)
    os.close(console_end)
    reader.join(10)
    out = b"".join(read).decode()
    assert "check 1 of 2: a" in out
    assert out.rstrip().endswith("\x1b[2K") or "\x1b[2K" in out.split("check 1 of 2: a")[-1]
