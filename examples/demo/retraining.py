"""The demo of scheduled retraining: six monthly slots on real flights, as if the files arrived one after the other."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import chdir
from datetime import datetime
from typing import NamedTuple

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State

from examples.demo.main_job import DemoFailedError
from examples.demo.provider import can_be_verified
from examples.demo.starts import measured, why_late
from examples.retraining.months import write_month_here
from segue.clock import SystemClock
from segue.deployments.follow import open_client
from segue.deployments.local_stack.stack import LocalStack
from segue.deployments.retrain_deployments import deploy, publish_history, start_slot, wait_for
from segue.prefect.state_words import Word, in_words, word_of
from segue.reports.console import console
from segue.reports.tables import rows_table
from segue.retraining.gate.docs import fetch_docs
from segue.retraining.model_record import Training
from segue.retraining.models import ModelsLog
from segue.retraining.slots import run_id_of, slot_at, store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.serving import load_model
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.stores import open_store
from segue.units import money

_EXAMPLE = "examples/retraining"
_READY_WITHIN_HOURS = 0.08
_KILL_AT_STEP = 1000
_FIRST_MONTHS = (1, 2)
_LOOK_SECONDS = 0.2


class Delivery(NamedTuple):
    """A month whose file arrives, and the outcome that its slot has to show."""

    month: int
    says: str
    outcome: Word | None
    """The expected word of the flow run's state; None: any."""
    is_spoiled: bool = False
    is_preempted: bool = False
    corrects: int | None = None
    """Earlier month whose file arrives again, as it should have been."""


DELIVERIES = (
    Delivery(3, "the first model", Word.PROMOTED),
    Delivery(4, "a model that is no better", Word.NOT_PROMOTED),
    Delivery(5, "a better model, whose spot machine fails during training", Word.PROMOTED, is_preempted=True),
    Delivery(6, "a faulty export: missing values and swapped columns", Word.DATA_GATE, is_spoiled=True),
    Delivery(7, "the export of June is corrected, late", Word.PROMOTED, corrects=6),
    Delivery(8, "one more month", None),
)
_NAMES = ("", "January", "February", "March", "April", "May", "June", "July", "August")


def is_shown(training: Training) -> bool:
    """Whether a run was preempted, and every resume of it was exact. A slow machine may preempt and resume it again."""
    return training.preemptions >= 1 and set(training.verdicts) == {"exact"}


class Slot(NamedTuple):
    """A slot that the demo has run."""

    delivery: Delivery
    at: datetime
    state: State
    seconds: float


def run_retrain_demo(stack: LocalStack) -> None:
    """Run everything, from an empty folder to six slots and a rollback, on a stack that is starting; say where to look.

    Raises:
        DemoFailedError: a slot did not end as it should.
        OrchestratorError: the local Prefect did not come up.
    """
    started = time.monotonic()
    with chdir(stack.home):  # Where the example's package can be imported.
        stack.start()
        with stack.settings(), open_client() as client:
            demo = RetrainDemo(client, stack)
            demo.run()
            demo.show(url=stack.url, seconds=time.monotonic() - started)


class RetrainDemo:
    """Six slots of the example on a running Prefect."""

    def __init__(self, client: SyncPrefectClient, stack: LocalStack) -> None:
        folder = stack.folder / "retrain-demo"
        shutil.rmtree(folder, ignore_errors=True)
        self._client, self._folder, self._home, self._logs = client, folder, stack.home, stack.logs
        self._lake, self.file = folder / "lake", folder / "retrain.toml"
        self._write_spec()
        self.spec = RetrainSpec.from_toml(self.file)
        self.store = open_store(store_of(self.spec))
        self.log = ModelsLog(self.store, self.spec.name, spec=store_of(self.spec))
        self.slots: list[Slot] = []

    def run(self) -> None:
        """Deploy the schedule, deliver month after month, run its slot, and roll the last promotion back.

        Raises:
            DemoFailedError: a slot did not end as it should.
        """
        deploy(self._client, self.spec, file=str(self.file), working_dir=self._home, active=True)
        console.print(f"deployed retrain/{self.spec.name}, schedule {self.spec.schedule} ({self.spec.timezone})")
        for month in _FIRST_MONTHS:
            self._deliver(month)
        for delivery in DELIVERIES:
            self.slots.append(self._slot(delivery))
        self._roll_back()

    def show(self, *, url: str, seconds: float) -> None:
        """Print the outcomes of the slots, and where to look."""
        models = self.log.read()
        console.print(rows_table([self._row(slot) for slot in self.slots]))
        docs = fetch_docs(self.store, self._newest_docs(), self._folder / "data-docs")
        weights = load_model(self.spec.name, store=store_of(self.spec))
        rows = {
            "in service": f"version {models.in_service} of {len(models.candidates)}, after a rollback",
            "segue.load_model": f"{len(weights)} tensors",
            "Data Docs": docs,
            "model": f"{url}/artifacts/key/segue-model-{self.spec.name}",
            "deployment": f"{url}/deployments",
            "runs": f"{url}/runs",
            "demo": f"{seconds:.0f} s",
        }
        for name, value in rows.items():
            console.print(f"{name:<18} {value}", markup=False, soft_wrap=True)

    def _slot(self, delivery: Delivery) -> Slot:
        if delivery.corrects is not None:
            self._deliver(delivery.corrects)
        self._deliver(delivery.month, is_spoiled=delivery.is_spoiled)
        console.rule(f"{_NAMES[delivery.month]}: {delivery.says}", align="left")
        started, at = time.monotonic(), slot_at(SystemClock().now())
        flow_run_id = start_slot(self._client, self.spec, at)
        if delivery.is_preempted:
            self._kill_trainer(run_id_of(self.spec, at))
        state = wait_for(self._client, flow_run_id)
        slot = Slot(delivery, at, state, time.monotonic() - started)
        console.print(f"  {state.message}", markup=False, soft_wrap=True)
        self._require(slot)
        return slot

    def _require(self, slot: Slot) -> None:
        wanted = slot.delivery.outcome
        if wanted is not None and word_of(slot.state) is not wanted:
            ended = f"{in_words(slot.state)} ({slot.state.message})"
            raise self._failed(f"the slot of {_NAMES[slot.delivery.month]} ended as {ended}, not as {wanted}.")
        if not slot.delivery.is_preempted:
            return
        version = self.log.read().slots[slot.at].version
        training = self.log.read().version(version or 0).training
        if not is_shown(training):
            verdicts = ", ".join(f"{count} {kind}" for kind, count in training.verdicts.items()) or "none"
            said = f"{training.preemptions} preemptions, verdicts of its resumes: {verdicts}"
            raise self._failed(f"the run of May was not preempted and resumed exactly: {said}.")
        if training.late_seconds is None or training.late_seconds > 0:
            raise self._failed(f"the run of May was late: {self._why_late(slot)}.")
        resumes, early = training.verdicts["exact"], -training.late_seconds
        console.print(
            f"  {training.preemptions} preempted, {resumes} exact resume{'s' if resumes > 1 else ''}, "
            f"{early:.0f} s before its deadline, {money(training.cost, training.currency)}"
        )

    def _failed(self, why: str) -> DemoFailedError:
        return DemoFailedError(why, logs=self._logs)

    def _why_late(self, slot: Slot) -> str:
        """Which waits or steps took longer than in the first slot."""
        usual, late = (read_history(RunLog(self.store, run_id_of(self.spec, at))) for at in (self.slots[0].at, slot.at))
        before = measured(usual, requested_at=usual.decisions[0].written_at)
        return why_late(late, before, logs=self._logs)

    def _kill_trainer(self, run_id: str) -> None:
        runlog = RunLog(self.store, run_id)
        while True:
            history = read_history(runlog)
            plan = history.open_plan
            attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
            beat = last_heartbeat(runlog, attempt)
            is_late_enough = beat is not None and beat.phase == "training" and beat.step >= _KILL_AT_STEP
            if beat is not None and is_late_enough and can_be_verified(history):
                os.kill(beat.trainer_pid, signal.SIGKILL)
                console.print(f"  step {beat.step}: the spot machine fails (SIGKILL to the trainer)")
                return
            if history.is_over:
                raise self._failed("the run of May ended before its machine could fail.")
            time.sleep(_LOOK_SECONDS)

    def _roll_back(self) -> None:
        console.rule("a person rolls the last promotion back", align="left")
        models = self.log.read()
        if models.before is None:
            raise self._failed("no second version was promoted.")
        self.log.choose(models.before, why="complaints from the airport in the demo")
        publish_history(self._client, self.log.read(), zone=self.spec.zone)
        console.print(f"  version {models.in_service} -> version {models.before}")

    def _deliver(self, month: int, *, is_spoiled: bool = False) -> None:
        write_month_here(month, self._lake, is_spoiled)

    def _write_spec(self) -> None:
        """The example's retrain.toml, with the demo's own folders, and a deadline that a person can wait for."""
        example = self._home / _EXAMPLE
        shutil.copytree(example / "expectations", self._folder / "expectations")
        text = (example / "retrain.toml").read_text(encoding="utf-8")
        text = text.replace(".segue/lake/", f"{self._lake}/")
        text = text.replace("ready_within_hours = 4", f"ready_within_hours = {_READY_WITHIN_HOURS}")
        store, liveness = self._folder / "store", "heartbeat_seconds = 0.5\nheartbeat_timeout_seconds = 10"
        text += (
            f'\n[run.store]\nurl = "{store}"\n\n[run.liveness]\n{liveness}\n\n[run.policy]\nchangeover_seconds = 15\n'
        )
        self.file.write_text(text, encoding="utf-8")

    def _newest_docs(self) -> str:
        places = [state.start.docs for state in self.log.read().slots.values() if state.start is not None]
        return [place for place in places if place is not None][-1]

    def _row(self, slot: Slot) -> dict[str, object]:
        state = self.log.read().slots[slot.at]
        return {
            "file": _NAMES[slot.delivery.month],
            "run": run_id_of(self.spec, slot.at),
            "outcome": state.outcome_in_words,
            "version": state.version,
            "seconds": round(slot.seconds),
        }
