"""Scripts of preemption, drawn from a seed and played to a run whose spot capacity is its own."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State

from segue.records import Capacity
from segue.runlog.entries import ClaimEntry
from segue.runlog.history import History, read_history
from segue.spec import RunSpec
from tests.flows.test_runs import live_attempt, segment_runs, start

What = Literal["process", "machine", "notice", "outage", "shortage"]
STRIKES: tuple[What, ...] = ("process", "machine", "notice")

_LAST_SHARE = 0.1
"""So near to the goal nothing is struck any more: it could be over before the blow lands."""
_LONGEST_SECONDS = 180.0
"""Of one run."""


@dataclass(frozen=True)
class Event:
    """What the provider does, so long after what it did before; the first time, after the run was asked for.

    process: the trainer is killed. machine: all that is on its machine is killed. notice: the segment is warned, and
    its machine taken after the grace. For these three only the time counts in which a trainer is at work on spot.
    outage: every machine on spot is taken, whatever it does, and none is given for a while. shortage: none is given
    for a while.
    """

    after_seconds: float
    what: What
    for_seconds: float = 0.0


@dataclass(frozen=True)
class Script:
    """What happens to one run, and how much slack it has for that."""

    seed: int
    policy: str
    is_tight: bool
    slack_seconds: float
    """Beyond what one spot attempt that dies needs."""
    events: tuple[Event, ...]


def drawn(seed: int) -> Script:
    """The script of a seed. One in three is tight: one blow, or two light ones, drive the run to on-demand."""
    chance = random.Random(seed)
    is_tight = seed % 3 == 0
    events = [Event(chance.uniform(0.0, 9.0), chance.choice(STRIKES))]
    if chance.random() < 0.25:
        events.insert(0, Event(0.0, "shortage", for_seconds=chance.uniform(4.0, 14.0)))
    for _ in range(chance.randint(0 if is_tight else 1, 3)):
        what = chance.choice((*STRIKES, "outage", "outage", "shortage"))
        lasts = chance.uniform(2.0, 14.0) if what in ("outage", "shortage") else 0.0
        events.append(Event(chance.uniform(0.5, 9.0), what, for_seconds=lasts))
    return Script(
        seed=seed,
        policy=("plan", "eager_progress", "slack_age", "greedy")[seed % 4],
        is_tight=is_tight,
        slack_seconds=chance.uniform(0.0, 2.0) if is_tight else chance.uniform(15.0, 55.0),
        events=tuple(events),
    )


class Lane:
    """Spot capacity of its own for one run at a time: a queue of the spot pool, and a deployment that goes there."""

    def __init__(self, client: SyncPrefectClient, name: str) -> None:
        self.client = client
        model = client.read_deployment_by_name("segment/spot")
        self._queue = client.create_work_queue(name=name, work_pool_name="spot")
        same = ("path", "entrypoint", "pull_steps", "parameter_openapi_schema", "enforce_parameter_schema", "tags")
        facts = {field: getattr(model, field) for field in same}
        where = {"work_pool_name": "spot", "work_queue_name": name}
        self._deployment_id = client.create_deployment(model.flow_id, name, **where, **facts)
        self.deployment = f"segment/{name}"

    def shut(self, is_shut: bool) -> None:
        self.client.update_work_queue(self._queue.id, is_paused=is_shut)

    def close(self) -> None:
        self.client.delete_deployment(self._deployment_id)
        self.client.delete_work_queue_by_id(self._queue.id)


@dataclass
class Player:
    """Plays a script to a run on a lane, in a thread of its own: Prefect's client sleeps on an API that is busy."""

    lane: Lane
    script: Script
    spec: RunSpec
    strikes: list[tuple[What, ClaimEntry]] = field(default_factory=list)
    """Those that met a trainer at work on spot."""
    state: State | None = None

    def play(self) -> Self:
        """Start the run and look on until it is over."""
        self._left, self._counted_seconds = list(self.script.events), 0.0
        self._at = self._shut_until = self._asked_at = self._took_at = 0.0
        self._is_outage = self._is_shut = False
        self._to_take: list[tuple[float, str]] = []
        self.runlog, parent = start(self.lane.client, self.spec)
        begun = time.monotonic()
        while self.state is None:
            before, self._at = self._at, time.monotonic() - begun
            self._look(parent, self._at - before)
            assert self.state is not None or self._at < _LONGEST_SECONDS, self.spec.run_id
            time.sleep(0.1)
        return self

    def _look(self, parent: UUID, passed_seconds: float) -> None:
        if self._at - self._asked_at > 1.0:
            self._asked_at = self._at
            state = self.lane.client.read_flow_run(parent).state
            self.state = state if state.is_final() else None
        self._mind_the_pool()
        if self._left and self.state is None:
            self._go_on(self._left[0], passed_seconds)
        for due in [due for due in self._to_take if self._at >= due[0]]:
            self._to_take.remove(due)
            take({due[1]})

    @property
    def history(self) -> History:
        return read_history(self.runlog.reload())

    def _go_on(self, event: Event, passed_seconds: float) -> None:
        at_work = self._at_work_on_spot() if event.what in STRIKES else None
        if event.what in STRIKES and at_work is None:
            return
        self._counted_seconds += passed_seconds
        if self._counted_seconds < event.after_seconds:
            return
        if at_work is None:
            self._shut_until = max(self._shut_until, self._at + event.for_seconds)
            self._is_outage |= event.what == "outage"
        else:
            self._strike(event.what, at_work)
        self._left.pop(0)
        self._counted_seconds = 0.0

    def _strike(self, what: What, claim: ClaimEntry) -> None:
        if what == "process":
            os.kill(claim.trainer_pid, signal.SIGKILL)
        elif what == "machine":
            take({claim.flow_run_id})
        else:
            os.kill(claim.segment_pid, signal.SIGTERM)
            self._to_take.append((self._at + self.spec.grace_seconds, claim.flow_run_id))
        self.strikes.append((what, claim))

    def _at_work_on_spot(self) -> ClaimEntry | None:
        claim, beat = live_attempt(self.runlog) or (None, None)
        if claim is None or claim.capacity is not Capacity.SPOT or beat.step > (1 - _LAST_SHARE) * self.spec.steps:
            return None
        # One that is dead may not have been noticed yet.
        return claim if is_alive(claim.segment_pid) and is_alive(claim.trainer_pid) else None

    def _mind_the_pool(self) -> None:
        is_gone = self._at < self._shut_until and self.state is None
        if is_gone is not self._is_shut:
            self._is_shut = is_gone
            self.lane.shut(is_gone)
        self._is_outage &= is_gone
        if self._is_outage and self._at - self._took_at > 0.5:
            self._took_at = self._at
            mine = segment_runs(self.lane.client, self.spec.run_id)
            take({str(run.id) for run in mine if Capacity.SPOT.value in run.tags and not run.state.is_final()})


def take(flow_run_ids: set[str]) -> None:
    """Kill all that is on the machines of these flow runs: the flow's process, its trainer, the trainer's writer."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") in flow_run_ids:
                process.kill()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
