"""One case from its first attempt to the verdict about its resume, in this process."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.continuity.blind.cases import PARENT_STEP, SAVE_EVERY_STEPS, WINDOW_STEPS, Axis, Case
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.blind.world import new_world
from benchmarks.continuity.faults import Fault
from benchmarks.continuity.trial import RUN_ID, Watched, make_attempt, nothing
from segue.continuity.naming import CARRIED
from segue.records import CheckpointRef, Finding, VerdictKind
from segue.runlog.entries import CommitEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore

_GOAL = 1_000_000
_PATIENCE_SECONDS, _LOOK_SECONDS = 30.0, 0.005
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


def workplace() -> Path | None:
    """A folder in memory, if the system has such a folder."""
    return MEMORY if MEMORY.is_dir() else None


def spec_of(case: Case, *, folder: Path, rehearsal: str = "off", seed: int = 0) -> RunSpec:
    return RunSpec.parse(
        {
            "run_id": RUN_ID,
            "recipe": case.recipe,
            "config": dict(case.config),
            "steps": _GOAL,
            "seed": seed,
            "threads": case.threads,
            "device": "cpu",
            "store": {"url": str(folder)},
            "checkpoints": {"every_steps": SAVE_EVERY_STEPS, "keep": 20},
            "liveness": {"heartbeat_seconds": 3600.0},
            "continuity": {"rehearsal": rehearsal},
        }
    )


@dataclass(frozen=True)
class Bench:
    """A folder in which the attempts of one case are made."""

    case: Case
    folder: Path
    seed: int = 0
    rehearsal: str = "off"

    def attempt(
        self,
        store: str,
        *,
        number: int,
        stop_step: int,
        parent: CheckpointRef | None = None,
        is_judged: bool = True,
        at_step: Callable[[int], None] = nothing,
        measures: bool = False,
        fault: Fault | None = None,
    ) -> Watched:
        """Make one attempt in the store of this name, as in a new process on a new machine."""
        folder = self.folder / store

        def settled(step: int) -> None:
            self._wait_for_save(store, step)
            at_step(step)

        spec = self.spec(store)
        with new_world(self.case, self.folder / "scratch", attempt=number):
            return make_attempt(
                folder,
                spec,
                segment=number,
                stop_step=stop_step,
                parent=parent,
                is_judged=is_judged,
                goes_on=False,
                at_step=settled,
                measures=measures,
                fault=fault,
            )

    def spec(self, store: str) -> RunSpec:
        return spec_of(self.case, folder=self.folder / store, rehearsal=self.rehearsal, seed=self.seed)

    def _wait_for_save(self, store: str, step: int) -> None:
        """Before a save, wait until the previous save is committed, because a busy machine may otherwise skip the
        save."""
        before = step + 1 - SAVE_EVERY_STEPS
        if before <= 0 or before % SAVE_EVERY_STEPS:
            return
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until:
            history = self.history(store)
            if not history.attempts or any(ref.step >= before for ref in history.attempts[-1].commits):
                return
            if history.attempts[-1].claim.segment and not history.attempts[-1].commits:
                return  # A resumed attempt saves at other steps.
            time.sleep(_LOOK_SECONDS)

    def copy(self, old: str, new: str) -> None:
        shutil.copytree(self.folder / old, self.folder / new)

    def history(self, store: str) -> History:
        return read_history(self.log(store))

    def log(self, store: str) -> RunLog:
        return RunLog(LocalStore(self.folder / store).create(), RUN_ID)


def run_case(case: Case, *, seed: int = 0) -> BlindOutcome:
    """Make the first attempt, an unjudged resume that shows the effect of the fault, and a judged resume. The first
    attempt continues to train after the parent, so it is also the uninterrupted run.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="segue-blind-", dir=workplace()) as name:
        bench = Bench(case, Path(name), seed)
        end = PARENT_STEP + max(case.window, SAVE_EVERY_STEPS)
        whole = bench.attempt("whole", number=0, stop_step=end, measures=True)
        parent = parent_of(whole.history)
        if parent is None:
            return replace(without_parent(case, whole), seconds=time.monotonic() - started)
        bench.copy("whole", "trial")
        bench.copy("whole", "free")
        free = bench.attempt("free", number=1, stop_step=end, parent=parent, is_judged=False, measures=True)
        judged = bench.attempt("trial", number=1, stop_step=parent.step + WINDOW_STEPS, parent=parent)
        outcome = replace(
            outcome_of(case, judged),
            acts_after=acts_after(case, whole, free, parent=parent.step),
            is_named_at_commit=is_named_at_commit(case, bench.log("whole")),
        )
    return replace(outcome, seconds=time.monotonic() - started)


def run_sound(case: Case, *, rounds: int, seed: int = 0) -> list[BlindOutcome]:
    """Make a run that loses nothing and is resumed repeatedly."""
    outcomes: list[BlindOutcome] = []
    with tempfile.TemporaryDirectory(prefix="segue-blind-", dir=workplace()) as name:
        bench = Bench(case, Path(name), seed)
        first = bench.attempt("store", number=0, stop_step=PARENT_STEP)
        for number in range(1, rounds + 1):
            started = time.monotonic()
            history = bench.history("store")
            if history.newest is None:
                return [*outcomes, without_parent(case, first)]
            parent = history.newest.ref
            stop_step = parent.step + WINDOW_STEPS
            judged = bench.attempt("store", number=number, stop_step=stop_step, parent=parent)
            outcomes.append(replace(outcome_of(case, judged), seconds=time.monotonic() - started))
    return outcomes


def parent_of(history: History) -> CheckpointRef | None:
    """The checkpoint with which faulty resumes begin. On a busy machine, the checkpoint is some steps late."""
    return next((each.ref for each in history.usable if each.ref.step >= PARENT_STEP), None)


def outcome_of(case: Case, watched: Watched) -> BlindOutcome:
    """The verdict on the last attempt."""
    last = watched.history.attempts[-1]
    made = BlindOutcome(case.name, case.axis, "none", is_sound=case.is_sound, window=case.window)
    if last.verdict is not None:
        verdict = last.verdict.kind
        is_carried = any(finding.channel == CARRIED for finding in last.verdict.findings)
        is_found = verdict is VerdictKind.BROKEN or is_carried
        made = replace(made, verdict=verdict.value, is_found=is_found)
        if last.verdict.findings:
            first = last.verdict.findings[0]
            named = case.names_rightly(first.component, first.sentence)
            made = replace(
                made,
                component=first.component,
                sentence=first.sentence,
                fix=first.fix,
                found_at=first.step,
                is_named=is_found and named,
            )
        return made
    failure = watched.report.failure if watched.report is not None else None
    if failure is None:
        return replace(made, problem="no verdict, and no failure")
    verdict_name = "raised" if watched.was_restored else "refused"
    return replace(
        made,
        verdict=verdict_name,
        component=failure.type,
        sentence=failure.message,
        fix=failure.message.partition("Fix:")[2].strip(),
        is_found=verdict_name == "refused",
        is_named=any(word in failure.message for word in case.names),
        problem=failure.traceback[-600:] if verdict_name == "raised" else "",
    )


def with_finding(case: Case, outcome: BlindOutcome, finding: Finding) -> BlindOutcome:
    """The outcome of a detected fault, with its finding."""
    return replace(
        outcome,
        is_found=True,
        is_named=case.names_rightly(finding.component, finding.sentence),
        component=finding.component,
        sentence=finding.sentence,
        fix=finding.fix,
        found_at=finding.step,
    )


def without_parent(case: Case, watched: Watched) -> BlindOutcome:
    """The outcome of a case whose first attempt left nothing to resume. The case was refused, which may be right, or
    the benchmark has a mistake."""
    failure = watched.report.failure if watched.report is not None else None
    text = failure.message if failure is not None else "the first attempt left no checkpoint"
    made = BlindOutcome(case.name, case.axis, "refused at start", is_sound=case.is_sound, sentence=text)
    if not case.is_refused:
        return replace(made, problem=failure.traceback[-600:] if failure is not None else text)
    fix = text.partition("Fix:")[2].strip()
    return replace(made, is_found=True, is_named=True, fix=fix, acts_after=0)


def acts_after(case: Case, whole: Watched, other: Watched, *, parent: int) -> int | None:
    """Number of steps from the resume to the first difference from the uninterrupted run. Differences only in the
    metric or the state are searched at the end of both runs.
    """
    if case.acts_on == "loss":
        return _first_difference(whole.losses, other.losses, after=parent)
    if case.acts_on == "metric":
        return case.first_step if whole.metric != other.metric else None
    before, after = whole.history.newest, other.history.newest
    assert before is not None
    assert after is not None
    return case.first_step if before.manifest.components != after.manifest.components else None


def _first_difference(one: Mapping[int, float], other: Mapping[int, float], *, after: int) -> int | None:
    steps = sorted(step for step in one.keys() & other.keys() if step > after)
    for step in steps:
        is_same = one[step] == other[step] or (math.isnan(one[step]) and math.isnan(other[step]))
        if not is_same:
            return step - after
    return None


def is_named_at_commit(case: Case, log: RunLog) -> bool | None:
    """Whether a commit of the first attempt, no later than the parent, names the state; None for other axes."""
    if case.axis not in (Axis.UNREGISTERED, Axis.LATE, Axis.CARRIED) or not case.names:
        return None
    entries = [slot.entry for slot in log.reload().slots]
    commits = [e for e in entries if isinstance(e, CommitEntry) and e.manifest.step <= PARENT_STEP + WINDOW_STEPS]
    return any(case.names_rightly(found.component, found.sentence) for commit in commits for found in commit.untracked)
