"""A spot pool without Prefect: machines that come and go by a script, with real trainers and real standbys on them."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.standbys.agent import StandbyAgent, Taken
from segue.controller.steps import decide_next
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.wait import await_report
from segue.launch.assignment import Assignment
from segue.launch.rendezvous import LaunchFolder
from segue.policy.decide import Decision
from segue.policy.queueing import Queues
from segue.records import Capacity, SegmentPlan, StopReason
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore
from tests.support.forked_trainers import ForkServer

_POLL_SECONDS = 0.02


class RandomAvailability:
    """When spot is up, drawn from a seed: spells of a few seconds, as hours are to a real run."""

    def __init__(self, seed: int, *, up_seconds: float = 8.0, down_seconds: float = 6.0) -> None:
        chance = random.Random(seed)
        self._begun = time.monotonic()
        self._turns: list[float] = []
        self._starts_up = chance.random() < 0.5
        at, is_up = 0.0, self._starts_up
        while at < 600:
            at += chance.expovariate(1 / (up_seconds if is_up else down_seconds))
            self._turns.append(at)
            is_up = not is_up

    def is_up(self) -> bool:
        gone = time.monotonic() - self._begun
        return self._starts_up is (sum(turn <= gone for turn in self._turns) % 2 == 0)


class ForkedStandby:
    """`segue.launch.local.StandbyProcess`, forked from the fork_server."""

    def __init__(self, context: mp.context.ForkServerContext, spec: RunSpec) -> None:
        self._folder = LaunchFolder.make_standby(spec)
        self.process = context.Process(target=_be_a_standby, args=(str(self._folder.path),), daemon=True)
        self.process.start()

    def poll(self) -> int | None:
        return self.process.exitcode

    def is_booted(self) -> bool:
        return self._folder.has_booted(1)

    def take(self, assignment: Assignment) -> None:
        self._folder.give(assignment)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        self.process.join(timeout_seconds)
        self._folder.remove()
        return self.process.exitcode


class Machine(threading.Thread):
    """One flow run: it waits for capacity, works, and is killed when spot goes down. Keeps the orchestrator's part."""

    def __init__(self, world: World, *, is_spot: bool, work: Callable[[Machine], None]) -> None:
        super().__init__(daemon=True)
        self._world, self._is_spot, self._work = world, is_spot, work
        self._state: str | None = None
        self.has_vanished = False
        self._cancelled = threading.Event()
        self.start()

    def ended_as(self) -> str | None:
        return self._state

    def cancel(self, why: str) -> None:
        self._cancelled.set()

    def mark_lost(self, why: str) -> None:
        self._cancelled.set()

    @property
    def is_gone(self) -> bool:
        return self._is_spot and not self._world.availability.is_up()

    def run(self) -> None:
        while self.is_gone:
            if self._cancelled.wait(_POLL_SECONDS):
                self._state = "Cancelled"
                return
        try:
            self._work(self)
            self._state = "Completed"
        except VanishedError:
            self._state = "Crashed"

    def why_to_leave(self) -> str | None:
        if self.is_gone and self._world.is_warned():
            return "the standby was taken back"
        if self.is_gone:
            self.has_vanished = True
            raise VanishedError
        return "cancelled" if self._cancelled.is_set() else None

    def watch(self, process: mp.process.BaseProcess) -> None:
        while process.is_alive():
            if self.is_gone or self._cancelled.is_set():
                process.kill()
            time.sleep(_POLL_SECONDS)
        process.join()


class World:
    """Steers one run to its end over machines that come and go; the pool of its standbys, too."""

    def __init__(self, spec: RunSpec, runlog: RunLog, fork_server: ForkServer, *, seed: int) -> None:
        self.spec, self.runlog, self._fork_server = spec, runlog, fork_server
        self.availability = RandomAvailability(seed)
        self._chance = random.Random(seed)
        self._machines: dict[str, Machine] = {}
        self._context = mp.get_context("forkserver")

    def is_warned(self) -> bool:
        """Whether a standby that is taken back is told so."""
        return self._chance.random() < 0.5

    def run(self) -> Decision:
        clock = SystemClock()
        while True:
            decision = decide_next(self.runlog, self.spec, clock=clock)
            plan = decision.plan
            if plan is None:
                return decision
            submitted = Submitted(plan, self, self.submit(self.spec, plan))
            await_report(self.runlog, self.spec, submitted, clock=clock, with_standbys=True)

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        if plan.standby is not None:
            return plan.standby
        handle = f"{plan.segment}.{plan.attempt}"
        self._machines[handle] = self._machine_for(plan)
        return handle

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str:
        if standby not in self._machines:
            self._machines[standby] = Machine(self, is_spot=True, work=lambda machine: self._serve(machine, standby))
        return standby

    def state(self, handle: str) -> str | None:
        return self._machines[handle].ended_as()

    def is_running(self, handle: str) -> bool:
        return False

    def starting_seconds(self, handle: str) -> float | None:
        return None

    def flow_run_id(self, handle: str) -> str | None:
        return None

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str | None:
        return None

    def why_waiting(self, handle: str) -> str | None:
        return None

    def queues(self, spec: RunSpec, handle: str) -> Queues | None:
        return None

    def refusal(self, handle: str) -> str | None:
        return None

    def was_cancelled(self, handle: str) -> bool:
        return False

    def cancel(self, handle: str, why: str, *, reason: StopReason | None = StopReason.CANCELLED) -> None:
        self._machines[handle].cancel(why)

    cancel_standby = cancel

    def mark_lost(self, handle: str, why: str) -> None:
        self._machines[handle].mark_lost(why)

    def _machine_for(self, plan: SegmentPlan) -> Machine:
        def work(machine: Machine) -> None:
            process = self._fork_server.start(self.spec, plan)
            machine.watch(process)
            if not machine.is_gone:
                report_or_lost(self._log(), plan, TrainerEnd(process.exitcode))

        return Machine(self, is_spot=plan.capacity is Capacity.SPOT, work=work)

    def _serve(self, machine: Machine, standby: str) -> None:
        booted: list[ForkedStandby] = []

        def boot() -> ForkedStandby:
            booted.append(ForkedStandby(self._context, self.spec))
            return booted[0]

        log = self._log()
        log.store = FaultyStore(log.store, fails=lambda operation, key: machine.has_vanished)
        agent = StandbyAgent(log, self.spec, standby, boot=boot, clock=SystemClock())
        taken = agent.serve(machine.why_to_leave)
        if isinstance(taken, Taken):
            machine.watch(booted[0].process)
            booted[0].wait()

    def _log(self) -> RunLog:
        return RunLog(open_store(self.spec.store), self.spec.run_id)


class VanishedError(Exception):
    """A machine that is gone without a word."""


def _be_a_standby(folder: str) -> None:
    sys.argv = ["segue.trainer.main", folder]
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - lives as long as the process
    from segue.trainer import main

    os._exit(main.main())
