"""Run one quarter of the soak tests: `python -m tests.support.soak [QUARTER]`, from 1 to 4; default: CI's own choice.

With SEGUE_SOAK_UNTIL, in seconds since 1970, no test begins after that time.

Exit code 0: each test passed, at first or when it was run once more alone, or was not run for a reason that is printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.soak.quarters import NUMBER, QUARTERS, chosen
from tests.support.soak.summary import Summary

MOST_SECONDS = 20 * 60
"""After which no test is begun, so that a slow machine does not make CI endless."""
_PYTEST = (sys.executable, "-m", "pytest", "-p", "tests.support.soak.plugin", "-m", "soak")
_IN_TURNS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "20")
_SOME_FAILED = 1
_NOTHING_RAN = 5


def main() -> int:
    commits = int(subprocess.check_output(["git", "rev-list", "--count", "HEAD"], text=True))
    asked = sys.argv[1] if len(sys.argv) > 1 else str(chosen(commits) + 1)
    if asked not in map(str, range(1, NUMBER + 1)):
        say(f"there is no quarter {asked!r} of the soak tests. Fix: give a number from 1 to {NUMBER}.")
        return 2
    quarter = int(asked) - 1
    minutes = sum(QUARTERS[quarter].values()) / 60
    say(f"soak tests, quarter {quarter + 1} of {NUMBER} ({commits} commits): about {minutes:.0f} min one by one")
    code, outcomes = run(quarter, turn=commits // NUMBER)
    if code not in (0, _SOME_FAILED, _NOTHING_RAN):
        return code
    summary = Summary.of(outcomes, passes_alone=alone)
    for line in summary.lines(quarter):
        say(line)
    return summary.exit_code


def run(quarter: int, folder: Path | None = None, *, turn: int = 0) -> tuple[int, dict[str, str]]:
    """Pytest's exit code, and how each test of the quarter ended."""
    with tempfile.TemporaryDirectory() as name:
        file, until = Path(name, "outcomes.json"), min(time.time() + MOST_SECONDS, _time_limit())
        options = ("--quarter", str(quarter), "--turn", str(turn), "--begin-until", str(until), "--outcomes", str(file))
        code = subprocess.run([*_PYTEST, *_IN_TURNS, *options], cwd=folder, check=False).returncode
        return code, json.loads(file.read_text()) if file.exists() else {}


def _time_limit() -> float:
    return float(os.environ.get("SEGUE_SOAK_UNTIL", "inf"))


def alone(test: str, folder: Path | None = None) -> bool:
    """Whether a test passes in a process of its own."""
    say(f"once more alone: {test}")
    return subprocess.run([*_PYTEST, test], cwd=folder, check=False).returncode == 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
