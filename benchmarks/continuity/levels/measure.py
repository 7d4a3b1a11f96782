"""The detection of unregistered state at each level: the same scripts as programs and in a framework's trainer. Each
trial is a separate process, with an attempt that reaches its goal, and a resume from the first checkpoint that has a
witness. segue inspects the functions that call a program, so no function of the benchmark may be among them.
"""

from __future__ import annotations

import json
import logging
import multiprocessing as mp
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.continuity.blind.advice import Lines, NoAdviceError, lines_of
from benchmarks.continuity.blind.cases import PARENT_STEP, SAVE_EVERY_STEPS, Axis, Case, case_of, cases
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.blind.trial import outcome_of, workplace
from benchmarks.continuity.blind.world import new_world
from benchmarks.continuity.trial import RUN_ID, Watched
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.errors import SegueError
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.records import Capacity, CheckpointRef, Finding, SegmentPlan, VerdictKind
from segue.runlog.entries import CommitEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore

_SCRIPTS = Path(__file__).parent
_GOAL = PARENT_STEP + SAVE_EVERY_STEPS
_LIMIT_SECONDS = 120.0


class Level(StrEnum):
    """The way in which a script trains, below the level of recipes."""

    PROGRAM = "program"
    FRAMEWORK = "framework"


def names() -> list[str]:
    """The scripts that lose state and have a separate loss function."""
    return [case.name for case in cases(Axis.UNREGISTERED) if case.acts_on == "loss" and not case.is_alone]


def measure(
    chosen: Sequence[str], *, jobs: int, levels: Iterable[Level] = tuple(Level), say: Callable[[str], None]
) -> dict[str, list[BlindOutcome]]:
    """Resume each script at each level; one that cannot train in this way has a problem."""
    found: dict[str, list[BlindOutcome]] = {}
    with ThreadPoolExecutor(jobs) as threads:
        for level in levels:
            made, trials = list[BlindOutcome](), threads.map(partial(_in_process, level=level), chosen)
            for number, outcome in enumerate(trials, start=1):
                say(f"as a {level}: {number} of {len(chosen)}")
                made.append(outcome)
            found[level.value] = made
    return found


def _in_process(name: str, level: Level) -> BlindOutcome:
    context = mp.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_be_trial, args=(name, level, sender), daemon=True)
    process.start()
    sender.close()
    try:
        with suppress(EOFError):
            if receiver.poll(_LIMIT_SECONDS):
                found: BlindOutcome = receiver.recv()
                return found
        return BlindOutcome(name, level, "none", problem="its process came to no end")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _be_trial(name: str, level: Level, sender: Connection) -> None:
    logging.getLogger("segue").setLevel(logging.CRITICAL)
    logging.getLogger("lightning.pytorch").setLevel(logging.CRITICAL)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sender.send(resumed(case_of(name), level))


def resumed(case: Case, level: Level) -> BlindOutcome:
    """Make both attempts of one script in this process. For a program that loses state, make them again with its fix
    applied."""
    outcome, said = _made(case, level)
    if level is not Level.PROGRAM or outcome.problem or outcome.acts_after is None:
        return outcome
    try:
        followed, left = _made(case, level, lines=lines_of(said, is_program=True))
    except NoAdviceError:
        return replace(outcome, is_enough=False)
    is_exact = followed.verdict == VerdictKind.EXACT and followed.acts_after is None
    return replace(outcome, is_enough=is_exact and not left)


def _made(case: Case, level: Level, *, lines: Lines = ()) -> tuple[BlindOutcome, tuple[Finding, ...]]:
    """The results of both attempts, and the findings at the commits of the first attempt."""
    with tempfile.TemporaryDirectory(prefix="segue-level-", dir=workplace()) as name:
        folder = Path(name)
        os.chdir(folder)  # A framework writes its checkpoints there.
        log = RunLog(LocalStore(folder / "store").create(), RUN_ID)
        spec = _spec(case, level, folder / "store", lines)
        first = _attempt(case, spec, log, number=0, parent=None)
        parent = next((each.ref for each in first.history.usable if each.rows), None)
        if parent is None:
            return BlindOutcome(case.name, level, "none", problem="the first attempt left nothing to resume"), ()
        judged = _attempt(case, spec, log, number=1, parent=parent)
        commits = [slot.entry for slot in log.reload().slots if isinstance(slot.entry, CommitEntry)]
        early = (found for commit in commits[:1] for found in commit.untracked)
        is_named_early = any(case.names_rightly(found.component, found.sentence) for found in early)
        acts_after = None if _ends_alike(judged.history) else 1
        made = replace(outcome_of(case, judged), axis=level, acts_after=acts_after)
        said = {finding.fix: finding for commit in commits for finding in commit.untracked}
        return replace(made, is_named_at_commit=is_named_early), tuple(said.values())


def _ends_alike(history: History) -> bool:
    """Whether both attempts have the same state at the goal, so that nothing was lost at this level."""
    ends = [each.manifest.components for each in history.checkpoints if each.ref.step == _GOAL]
    states = [{name: it for name, it in end.items() if not name.startswith("setup.")} for end in ends]
    return len(states) > 1 and states[0] == states[-1]


def _attempt(case: Case, spec: RunSpec, log: RunLog, *, number: int, parent: CheckpointRef | None) -> Watched:
    # Not before: it loads torch's distributed parts.
    from segue.trainer.attempt import run_attempt

    plan = SegmentPlan(
        segment=number, attempt=1, capacity=Capacity.SPOT, deployment="bench", parent=parent, at_most=parent
    )
    clock, watched, arguments = SystemClock(), Watched(was_restored=True), sys.argv
    with new_world(case, Path.cwd() / "scratch", attempt=number), suppress(SegueError):
        watched.report = run_attempt(
            Assignment(spec=spec, plan=plan),
            runlog=log.reload(),
            board=NoticeBoard(clock),
            clock=clock,
            shards=InlineWriter([log.store]),
        )
    sys.argv = arguments
    watched.history = read_history(log.reload())
    return watched


def _spec(case: Case, level: Level, store: Path, lines: Lines) -> RunSpec:
    more = [json.dumps(lines)] if lines else []
    fields: dict[str, Any] = {
        "run_id": RUN_ID,
        "program": {"command": ["python", str(_SCRIPTS / f"{level}.py"), case.recipe, *more]},
        "steps": _GOAL,
        "threads": case.threads,
        "device": "cpu",
        "store": {"url": str(store)},
        "checkpoints": {"every_steps": SAVE_EVERY_STEPS, "keep": 20},
        "liveness": {"heartbeat_seconds": 3600.0},
    }
    return RunSpec.parse(fields)
