"""Attempts that each need a separate process, because they depend on hash seeds, process ids or a resume rehearsal.
`python -m benchmarks.continuity.blind.alone` is such a process, which makes one attempt of each of some cases.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.continuity.blind.cases import WINDOW_STEPS, Case, case_of
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.blind.trial import Bench, outcome_of, with_finding, without_parent, workplace
from segue.records import VerdictKind
from segue.runlog.entries import DrillEntry

_ROOT = Path(__file__).parents[3]
FIRST_STOP = 40
"""Step that is late enough for a commit, its sealed witness, and the start of the rehearsal."""
_PATIENCE_SECONDS, _LOOK_SECONDS = 120.0, 0.1


@dataclass(frozen=True)
class Stage:
    """The task of one process."""

    folder: str
    names: tuple[str, ...]
    number: int
    """Of the attempt."""


def run_alone(names: Sequence[str], *, rounds: int = 1, jobs: int = 1) -> list[BlindOutcome]:
    """Make attempts of these cases. `jobs` groups of cases run at the same time."""
    groups = [group for number in range(jobs) if (group := tuple(names[number::jobs]))]
    with ThreadPoolExecutor(max(1, len(groups))) as threads:
        return [outcome for found in threads.map(partial(_run_group, rounds), groups) for outcome in found]


def _run_group(rounds: int, names: tuple[str, ...]) -> list[BlindOutcome]:
    """Make the first attempts in one process, with rehearsals, and each round of resumes in another process."""
    with tempfile.TemporaryDirectory(prefix="segue-alone-", dir=workplace()) as folder:
        found = [_in_new_process(Stage(folder, names, number)) for number in range(rounds + 1)]
    return [BlindOutcome.from_json(each) for stage in found for each in stage]


def _in_new_process(stage: Stage) -> list[dict[str, Any]]:
    # Hashes differ from process to process, as they do for everyone who has not set this.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.continuity.blind.alone"],
        input=json.dumps(asdict(stage)),
        capture_output=True,
        text=True,
        env=env,
        cwd=_ROOT,
        check=False,
    )
    if done.returncode:
        problem = done.stderr[-600:]
        return [asdict(BlindOutcome(name, "", "none", problem=problem)) for name in stage.names]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def make(stage: Stage) -> list[BlindOutcome]:
    """The work of this process. A first attempt has an outcome only if it left nothing to resume."""
    made = []
    for name in stage.names:
        started = time.monotonic()
        case = case_of(name)
        bench = Bench(case, Path(stage.folder) / str(list(stage.names).index(name)), rehearsal="warn")
        outcome = _first(case, bench) if stage.number == 0 else _resumed(case, bench, stage.number)
        if outcome is not None:
            made.append(replace(outcome, seconds=time.monotonic() - started))
    return made


def rehearsed(bench: Bench) -> Callable[[int], None]:
    """Waits at the end of the first attempt until its rehearsal has come to a verdict."""

    def wait(step: int) -> None:
        until = time.monotonic() + (_PATIENCE_SECONDS if step >= FIRST_STOP else 0.0)
        while time.monotonic() < until and not bench.history("store").drills:
            time.sleep(_LOOK_SECONDS)

    return wait


def _first(case: Case, bench: Bench) -> BlindOutcome | None:
    watched = bench.attempt("store", number=0, stop_step=FIRST_STOP, at_step=rehearsed(bench))
    return None if watched.history.newest is not None else without_parent(case, watched)


def _resumed(case: Case, bench: Bench, number: int) -> BlindOutcome | None:
    """Return None if the first attempt left nothing to resume, because it has an outcome already."""
    history = bench.history("store")
    if history.newest is None:
        return None
    parent = history.newest.ref
    stop_step = parent.step + WINDOW_STEPS + 1  # After a notice nobody would be asked for an opinion.
    outcome = outcome_of(case, bench.attempt("store", number=number, stop_step=stop_step, parent=parent))
    return with_rehearsal(case, outcome, history.drills, number=number)


def with_rehearsal(case: Case, outcome: BlindOutcome, drills: Sequence[DrillEntry], *, number: int) -> BlindOutcome:
    """The outcome with the verdict of the rehearsal, which comes before any resume. If the rehearsal was broken, a
    value that differs in each process was detected. A recipe that no two processes run alike is `unverified`, with the
    reason, which also counts as detected.
    """
    if not drills:
        return replace(outcome, problem=outcome.problem or "no rehearsal came to a verdict")
    drill = drills[0].verdict
    outcome = replace(outcome, drill=drill.kind.value, acts_after=None if case.is_sound else 1)
    is_unlike = drill.kind is VerdictKind.BROKEN or (drill.kind is VerdictKind.UNVERIFIED and bool(drill.findings))
    if number == 1 and drill.findings and (drill.kind is VerdictKind.BROKEN or (is_unlike and not case.is_sound)):
        return with_finding(case, outcome, drill.findings[0])
    if not case.is_sound and outcome.verdict == VerdictKind.UNVERIFIED and outcome.component is not None:
        named = case.names_rightly(outcome.component, outcome.sentence)
        return replace(outcome, is_found=True, is_named=named)
    return outcome


def main() -> None:
    """Make the stage that standard input describes. The outcomes are the last line of standard output."""
    logging.getLogger("segue").setLevel(logging.CRITICAL)
    fields = json.loads(sys.stdin.read())
    stage = Stage(**{**fields, "names": tuple(fields["names"])})
    print(json.dumps([asdict(outcome) for outcome in make(stage)]))


if __name__ == "__main__":
    main()
