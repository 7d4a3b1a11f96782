"""`segue run`, from the command to the first step: with a Prefect that the command starts, and with a running one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

from segue.clock import SystemClock
from segue.errors import OrchestratorError
from segue.runlog.open import find_run

_STEPS = 20


@dataclass(frozen=True)
class RunStart:
    """The parts of one start, in seconds."""

    command_to_decision: float
    """Seconds until the parent has written its first decision: Python, the checks, and Prefect's server, pools and
    workers if the command starts them."""
    decision_to_claim: float
    """Seconds until the trainer has claimed the run: the flow run, Python, torch."""
    claim_to_first_step: float

    @property
    def total(self) -> float:
        return self.command_to_decision + self.decision_to_claim + self.claim_to_first_step


def cold_start(folder: Path) -> RunStart:
    """Start a run in an empty folder, as on a machine on which segue has never run. No Prefect is configured.

    Raises:
        OrchestratorError: `segue run` failed.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return _start(folder, own | {"XDG_CACHE_HOME": str(folder / "cache")})


def warm_start(folder: Path, environment: Mapping[str, str]) -> RunStart:
    """Start a run in an empty folder, with the Prefect of this environment, whose workers run.

    Raises:
        OrchestratorError: `segue run` failed.
    """
    return _start(folder, environment)


def starts(
    count: int, start: Callable[[Path], RunStart], folder: Path, *, say: Callable[[str], None]
) -> list[RunStart]:
    """Make this number of starts, each in a folder of its own within `folder`."""
    folder.mkdir()
    found = []
    for number in range(count):
        found.append(start(folder / f"{folder.name}-{number + 1}"))
        say(f"{folder.name} {number + 1} of {count}: first step {found[-1].total:.1f} s after the command")
    return found


def medians(starts: list[RunStart], *, name: str) -> dict[str, float]:
    """Return the figures of these starts, in seconds, under names that begin with `name`."""
    parts = {part.name: [getattr(each, part.name) for each in starts] for part in fields(RunStart)}
    figures = {f"{name}_to_first_step": [each.total for each in starts]}
    figures |= {f"{name}_{part}": values for part, values in parts.items()}
    return {f"{what}_seconds": round(statistics.median(values), 2) for what, values in figures.items()}


def _start(folder: Path, environment: Mapping[str, str]) -> RunStart:
    folder.mkdir()
    command = [str(Path(sys.executable).with_name("segue")), "run", "segue.testing.recipes:tiny"]
    options = ["--steps", str(_STEPS), "--run-id", folder.name, "--store", str(folder / "store")]
    began_at = SystemClock().now()
    ended = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        what = f"`segue run` ended with exit code {ended.returncode}: {ended.stderr[-500:] or ended.stdout[-500:]}"
        raise OrchestratorError(what=what, fix="run the same command in an empty folder, and follow its message.")
    _, history = find_run(folder.name, folder / "store")
    attempt = history.attempts[0]
    decision = history.decision_of(attempt.claim.segment, attempt.claim.attempt)
    assert decision is not None
    assert attempt.report is not None
    return RunStart(
        command_to_decision=seconds_between(began_at, decision.written_at),
        decision_to_claim=seconds_between(decision.written_at, attempt.claim.written_at),
        claim_to_first_step=attempt.report.startup_seconds,
    )


def seconds_between(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()
