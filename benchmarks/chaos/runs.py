"""The runs of the chaos benchmark. Each lane has one run at a time, and starts the next run when the run has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError

from benchmarks.chaos.judge import RunJudge
from benchmarks.chaos.places import Place
from segue.clock import SystemClock
from segue.controller.recovery import register_start, withdraw_start
from segue.controller.steps import open_run
from segue.deployments.follow import trigger
from segue.errors import SegueError, StoreError
from segue.records import Heartbeat, ParentRecord
from segue.runlog.entries import ClaimEntry
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.runlog.parents import read_parent
from segue.spec import RunSpec

STEPS, EVERY_STEPS, PAUSE_SECONDS = 1500, 50, 0.015
DEADLINE_SECONDS = 600.0
HEARTBEAT_TIMEOUT_SECONDS = 6.0
_JUDGE_SECONDS = 3.0
_RETRY_SECONDS = 2.0
_RESUMED_BY_A_PERSON = ("cancelled", "stopped")
_SAVINGS: tuple[dict[str, Any], ...] = (
    {},
    {"staging": "overlapped", "staging_buffers": 2},
    {"full_every": 3},
)
"""How runs save, in turn."""


def spec_of(number: int, place: Place, *, pause_seconds: float = PAUSE_SECONDS) -> RunSpec:
    """The spec of a run. All runs have the same result, independent of their saves and stores."""
    deadline = SystemClock().now() + timedelta(seconds=DEADLINE_SECONDS)
    return RunSpec.parse(
        {
            "run_id": f"chaos-{number}-{place.name}",
            "recipe": "segue.testing.recipes:tiny",
            "steps": STEPS,
            "config": {"pause_seconds": pause_seconds},
            "threads": 1,
            "device": "cpu",
            "deadline": deadline,
            "grace_seconds": 5,
            "notices": [],
            "store": place.spec.model_dump(mode="json"),
            "checkpoints": {"every_steps": EVERY_STEPS} | _SAVINGS[number % len(_SAVINGS)],
            "liveness": {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": HEARTBEAT_TIMEOUT_SECONDS},
            "continuity": {"rehearsal": "off"},
            # Faults are so dense here that attempts die before their first commit, without a fault of the run.
            "policy": {
                "changeover_seconds": 25,
                "detection_seconds": 8,
                "step_seconds": 0.025,
                "max_lost_in_place": 10_000,
            },
        }
    )


@dataclass
class LiveRun:
    """One run, as the benchmark reads it over a connection to the store that no fault affects."""

    spec: RunSpec
    place: Place
    judge: RunJudge
    log: RunLog
    history: History = field(default_factory=History)
    starts: int = 0
    is_start_due: bool = True
    """Whether a start is due: the first start, or the repetition of a start that was refused."""
    problem: str | None = None
    """The reason why the run ended unfinished although nobody cancelled it."""
    judged_at: float = 0.0

    @property
    def is_finished(self) -> bool:
        return self.history.is_over and self.history.committed_step >= self.spec.steps

    def look(self) -> None:
        """Read the new records of the log.

        Raises:
            StoreError: the log cannot be read at this moment.
        """
        self.history = read_history(self.log)
        if time.monotonic() - self.judged_at > _JUDGE_SECONDS:
            self.judged_at = time.monotonic()
            self.judge.look()

    def claim(self) -> ClaimEntry | None:
        """The claim of the attempt that is in force."""
        plan = self.history.open_plan
        attempt = self.history.attempt_of(plan.segment, plan.attempt) if plan else None
        return attempt.claim if attempt else None

    def beat(self) -> Heartbeat | None:
        plan = self.history.open_plan
        return last_heartbeat(self.log, self.history.attempt_of(plan.segment, plan.attempt)) if plan else None

    def parent(self) -> ParentRecord | None:
        return read_parent(self.log.store, self.spec.run_id)


Ask = Callable[[Callable[[SyncPrefectClient], object]], None]
"""Calls a function with a client of the Prefect server, like the client of a person who starts a run."""


class Lane:
    """One run after the other in one store. A cancelled run is started again."""

    def __init__(self, place: Place, *, ask: Ask, next_number: Callable[[], int], say: Callable[[str], None]) -> None:
        self.place, self._ask, self._next_number, self._say = place, ask, next_number, say
        self.current: LiveRun | None = None
        self.ended: list[LiveRun] = []
        self._tried_at = 0.0

    def tick(self, *, starts_new: bool, can_write: bool) -> None:
        """Read the state of the run. If the run has not started, start it; if it has ended, put it aside."""
        if self.current is None and starts_new:
            self.current = self._new()
        run = self.current
        if run is None:
            return
        with suppress(StoreError):
            run.look()
            last = run.history.decisions[-1] if run.history.decisions else None
            if run.is_finished:
                self._put_aside(run, "finished")
            elif run.history.is_over and last is not None and last.action not in _RESUMED_BY_A_PERSON:
                run.problem = f"{run.spec.run_id} ended as {last.action}: {last.reason}"
                self._put_aside(run, last.action)
            elif can_write and (run.is_start_due or (run.history.is_over and run.parent() is None)):
                self._start(run)

    def _new(self) -> LiveRun:
        spec = spec_of(self._next_number(), self.place)
        judge = RunJudge(spec, lambda: RunLog(self.place.store(), spec.run_id))
        return LiveRun(spec, self.place, judge, RunLog(self.place.store(), spec.run_id))

    def _put_aside(self, run: LiveRun, how: str) -> None:
        self._say(f"{run.spec.run_id}: {how}, {len(run.history.attempts)} attempts, {run.starts} starts")
        self.ended.append(run)
        self.current = None

    def _start(self, run: LiveRun) -> None:
        """Start the run in the same way as `segue run --detach`. If Prefect or the store refuses, try again a little
        later."""
        if time.monotonic() - self._tried_at < _RETRY_SECONDS:
            return
        self._tried_at, run.is_start_due = time.monotonic(), True
        store = self.place.store()
        try:
            log = open_run(run.spec, clock=SystemClock())
            register_start(store, run.spec, clock=SystemClock())
            self._ask(lambda client: trigger(client, run.spec, requested_at_slot=log.next_slot))
        except (SegueError, httpx.HTTPError, PrefectHTTPStatusError) as error:
            with suppress(StoreError):
                withdraw_start(store, run.spec.run_id)
            self._say(f"{run.spec.run_id}: not started ({type(error).__name__})")
            return
        run.starts, run.is_start_due = run.starts + 1, False
        self._say(f"{run.spec.run_id}: start {run.starts}")
