"""One run that is killed again and again, checked after each kill, and in the end brought to its goal."""

from __future__ import annotations

import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from benchmarks.crash import leftovers
from benchmarks.crash.checks import Checker
from benchmarks.crash.forked_trainers import ForkServer
from benchmarks.crash.killing_store import KillPoint, Operation
from benchmarks.crash.kills import Striker
from benchmarks.crash.places import Place
from benchmarks.crash.plan import InsideKill, Kill, OutsideKill
from benchmarks.crash.trainer import Order
from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import decide_next, open_run
from segue.launch.assignment import Assignment
from segue.records import SegmentPlan, SegmentReport, StopReason
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore

_ATTEMPT_SECONDS = 120.0
"""Time after which an attempt counts as hung. Even on a busy machine, every attempt of this benchmark is shorter."""
_WRITER_END_SECONDS = 20.0
_EXTRA_COMMITS = 3
"""Number of commits after the kill's point at which an attempt that has missed the point is ended."""
_RESERVE_SHARE = 0.25
"""Share of the steps for attempts without a kill."""
_FINISHING_TRIES = 3


@dataclass
class Tally:
    """The results of all runs together."""

    kills: Counter[str] = field(default_factory=Counter)
    """Number of kills by operation or victim."""
    moments: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    """Keys of unreferenced objects that the last sweep of their run did not delete."""

    def count(self, kill: Kill) -> None:
        """Record a kill that hit its target."""
        self.kills[kill.name] += 1
        self.moments[kill.moment] += 1
        self.places[kill.place] += 1


class StuckRunError(Exception):
    """A run makes no more progress. The reason is in its problems."""


class CrashRun:
    """One run in one place."""

    def __init__(
        self, spec: RunSpec, *, place: Place, fork_server: ForkServer, notes: Path, tally: Tally, chance: random.Random
    ) -> None:
        """`notes` is a file that does not exist yet."""
        self._spec = spec.model_copy(update={"store": place.spec_for_trainer()})
        self._place, self._fork_server, self._notes = place, fork_server, notes
        self._tally, self._chance, self._clock = tally, chance, SystemClock()
        self._log = RunLog(place.store(), spec.run_id, clock=self._clock)
        self.checker = Checker(lambda: RunLog(place.store(), spec.run_id), notes)
        self._is_swept = False
        open_run(self._spec, clock=self._clock)

    @property
    def is_near_its_goal(self) -> bool:
        """Whether the rest of the run is for attempts without a kill."""
        return self._history().committed_step >= self._last_kill_step

    def kill(self, kill: Kill) -> bool:
        """Make an attempt, and kill its trainer or its writer. Return False if the attempt never reached the kill's
        point.

        Raises:
            StuckRunError: the run makes no more progress.
        """
        if isinstance(kill, InsideKill):
            self._prepare_for(kill.point.operation)
            commits = 1 if kill.point.operation is Operation.REPORT_APPEND else kill.point.number + _EXTRA_COMMITS
            is_hit = self._attempt(kill_at=kill.point, most_commits=commits)
        else:
            is_hit = self._attempt(strike=kill)
        if is_hit:
            self._tally.count(kill)
        return is_hit

    def finish(self) -> None:
        """Attempts without a kill until the goal is committed; then the last checks.

        Raises:
            StuckRunError: the goal is not reached.
        """
        for _ in range(_FINISHING_TRIES):
            if self._history().committed_step < self._spec.steps:
                self._attempt(to_the_goal=True)
        history = self.checker.look(thoroughly=True)
        self.checker.check_the_end()
        decision = decide_next(self._log, self._spec, clock=self._clock)
        if decision.action != "finished":
            self._give_up(f"step {history.committed_step} of {self._spec.steps}, then {decision.action}")

    def close(self) -> None:
        """Add the results of the checks to the tally."""
        history, checker, figures = self._history(), self.checker, self._tally.figures
        figures["runs"] += 1
        figures["attempts"] += len(history.attempts)
        figures["commits"] += len(history.checkpoints)
        figures["pruned"] += sum(c.is_pruned for c in history.checkpoints)
        figures["quarantined"] += sum(c.quarantined is not None for c in history.checkpoints)
        figures["commits_lost"] += len(checker.lost)
        figures["records_lost"] += len(checker.records_lost)
        figures["torn_visible"] += len(checker.torn)
        if self._is_swept:  # Else an attempt that was killed committed the goal, and none came to clean up after it.
            orphans, unfinished = self._orphans(), self._place.unfinished(self._spec.run_id)
            figures["runs_swept"] += 1
            figures["orphans_left"] += len(orphans)
            figures["orphan_bytes_left"] += sum(orphans.values())
            figures["unfinished_left"] += sum(name.startswith("attempts/") for name in unfinished)
            figures["unfinished_left_elsewhere"] += sum(not name.startswith("attempts/") for name in unfinished)
            self._tally.leftovers += [f"{self._spec.run_id}/{name}" for name in (*orphans, *unfinished)]
        self._tally.verdicts.update(entry.verdict.kind.value for entry in history.resumes)
        self._tally.problems += [f"{self._spec.run_id}: {problem}" for problem in checker.problems]

    def _orphans(self) -> dict[str, int]:
        found = self.checker.orphans(self._log.store)
        fast_folder = self._spec.checkpoints.fast_folder
        if fast_folder is not None:
            fast = self.checker.orphans(LocalStore(Path(fast_folder)).create())
            found |= {f"{name} (fast folder)": size_bytes for name, size_bytes in fast.items()}
        return found

    @property
    def _last_kill_step(self) -> int:
        return round(self._spec.steps * (1 - _RESERVE_SHARE))

    def _attempt(
        self,
        *,
        kill_at: KillPoint | None = None,
        strike: OutsideKill | None = None,
        most_commits: int | None = None,
        to_the_goal: bool = False,
    ) -> bool:
        """Make one attempt, from its plan to its report and the checks. Return whether the kill hit as planned."""
        plan = self._plan()
        order = Order(
            assignment=Assignment(spec=self._spec, plan=plan),
            kill_at=kill_at,
            writes_inline=strike is None,
            notes=str(self._notes),
            most_commits=most_commits,
            last_step=None if to_the_goal else self._last_kill_step,
        )
        child = self._fork_server.start(order.model_dump_json())
        striker = Striker(child, place=self._place, run_id=self._spec.run_id, notes=self._notes)
        is_struck = strike is not None and striker.strike(strike)
        code = child.wait(_ATTEMPT_SECONDS)
        if code is None:
            child.end()
            self._give_up(f"an attempt does not end: {self._fork_server.last_output()}")
        if left := child.left_behind(_WRITER_END_SECONDS):
            child.end()
            self._complain(f"{len(left)} processes are alive {_WRITER_END_SECONDS:g} s after their trainer")
        if striker.problem:
            self._complain(striker.problem)
        is_killed = code == -signal.SIGKILL
        if is_killed and kill_at is None and not is_struck:
            self._complain("something else killed a trainer, perhaps for its memory")
        self._judge(report_or_lost(self._log, plan, TrainerEnd(code)), is_killed=is_killed)
        self.checker.look()
        return is_killed if strike is None else is_struck

    def _judge(self, report: SegmentReport, *, is_killed: bool) -> None:
        words = f"{report.note or ''} {self._fork_server.last_output()}".strip()
        if report.stop_reason in (StopReason.FAILED, StopReason.FENCED):
            self._give_up(f"an attempt ended as {report.stop_reason}: {words}")
        if report.stop_reason is StopReason.LOST and not is_killed:
            self._complain(f"an attempt was lost although its trainer was not killed: {words}")
        # The first commit of an attempt is followed by its sweep.
        self._is_swept = not is_killed and report.checkpoint is not None

    def _prepare_for(self, operation: Operation) -> None:
        """Prepare the store so that an attempt will make this operation."""
        history, keep = self._history(), self._spec.checkpoints.keep
        store, run_id = self._log.store, self._spec.run_id
        match operation:
            case Operation.RESTORE_READ | Operation.VERDICT_APPEND if not history.usable:
                self._attempt(most_commits=1)
            case Operation.PRUNE_APPEND | Operation.PRUNE_DELETE if len(history.usable) < keep:
                self._attempt(most_commits=keep)
            case Operation.SWEEP_DROP if not any(r.stop_reason is StopReason.LOST for r in history.reports):
                plan = self._plan()
                leftovers.claim_and_vanish(self._log, Assignment(spec=self._spec, plan=plan))
                report_or_lost(self._log, plan, TrainerEnd(None))
            case Operation.SWEEP_DELETE:
                if not history.attempts:
                    self._attempt(most_commits=1)
                leftovers.leave_an_orphan(store, run_id, self._history())
            case Operation.QUARANTINE_APPEND:
                if len(history.usable) < 2:
                    self._attempt(most_commits=2)
                newest = self._history().newest
                if newest is not None and not self.checker.is_damaged(newest):
                    self.checker.damaged.add(leftovers.damage(store, run_id, newest, chance=self._chance))
            case _:
                pass

    def _plan(self) -> SegmentPlan:
        decision = decide_next(self._log, self._spec, clock=self._clock)
        if decision.plan is None:
            self._give_up(f"ended as {decision.action}: {decision.reason}")
        return decision.plan

    def _history(self) -> History:
        return read_history(self._log)

    def _complain(self, problem: str) -> None:
        self.checker.problems.setdefault(problem)

    def _give_up(self, problem: str) -> NoReturn:
        self._complain(problem)
        raise StuckRunError(problem)
