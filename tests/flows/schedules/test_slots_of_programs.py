"""Slots of a program with a loop of its own, examples/chargpt, through a real Prefect server and real workers."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import toml
from prefect.client.orchestration import get_client

import segue
from examples.chargpt.texts import deliver
from segue.prefect.state_words import in_words
from segue.retraining.models import Models, ModelsLog
from segue.retraining.slots import run_id_of
from segue.retraining.spec import RetrainSpec
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.stores import open_store
from segue.stores.local import MARKER
from tests.flows.conftest import REPO
from tests.flows.schedules.test_slots_run import final_state, started, until
from tests.retraining.monthly import slot_of_month

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

SHIPPED = REPO / "examples/chargpt/retrain.toml"


class Texts:
    """The example's retrain.toml in a folder of its own, with its texts and its store."""

    def __init__(self, folder: Path) -> None:
        self.file, self.store_folder, self._lake = folder / "retrain.toml", folder / "store", folder / "texts"
        shutil.copy(SHIPPED.with_name("texts.json"), folder)

    def write_spec(self, **config: Any) -> None:
        fields = toml.loads(SHIPPED.read_text())
        fields["data"]["files"] = f"{self._lake}/texts-*.parquet"
        fields["run"] |= {"steps": 400, "store": {"url": str(self.store_folder)}, "config": config}
        fields["run"]["checkpoints"] = {"every_steps": 100}
        fields["run"]["liveness"] = {"heartbeat_seconds": 0.2, "heartbeat_timeout_seconds": 10}
        self.file.write_text(toml.dumps(fields))

    def deliver(self, *numbers: int) -> None:
        for number in numbers:
            deliver(number, self._lake)

    @property
    def spec(self) -> RetrainSpec:
        return RetrainSpec.from_toml(self.file)

    @property
    def has_store(self) -> bool:
        return (self.store_folder / MARKER).exists()

    @property
    def models(self) -> Models:
        return ModelsLog(open_store(self.store_folder), self.spec.name).read()


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


def trainer_of(client, slot: UUID, texts: Texts) -> int | None:
    """The process of the slot's run, once a step after its newest commit is known."""
    state = client.read_flow_run(slot).state
    assert not state.is_final(), state
    runlog = RunLog(open_store(texts.store_folder), run_id_of(texts.spec, slot_of_month(4)))
    history = read_history(runlog) if texts.has_store else None
    plan = history.open_plan if history is not None else None
    beat = last_heartbeat(runlog, history.attempt_of(plan.segment, plan.attempt)) if plan is not None else None
    is_proven = history is not None and history.newest is not None and bool(history.newest.rows)
    return beat.trainer_pid if beat is not None and is_proven else None


def test_a_slot_of_a_program_is_killed_and_promoted_and_the_next_one_takes_its_place(client, tmp_path):
    texts = Texts(tmp_path)
    texts.write_spec(width=32, layers=2, lr=1e-4)
    texts.deliver(0, 1, 2)
    slot = started(client, texts, 4)
    trainer = until(lambda: trainer_of(client, slot, texts), what="a run that trains")
    os.kill(trainer, signal.SIGKILL)
    ended = final_state(client, slot)
    assert (ended.type.value, in_words(ended)) == ("COMPLETED", "Promoted"), ended
    first = texts.models.version(1)
    assert (texts.models.in_service, first.training.preemptions) == (1, 1)
    # Where the kill came after another commit, no step was known that could be replayed.
    assert first.training.verdicts in ({"exact": 1}, {"unverified": 1})
    run = read_history(RunLog(open_store(texts.store_folder), first.run_id)).spec
    assert [Path(file.path).name for file in run.data.files] == ["texts-01.parquet", "texts-02.parquet"]
    assert run.config == {"width": 32, "layers": 2, "lr": 1e-4}
    state = segue.load_model("chargpt", store=texts.store_folder)

    texts.write_spec(width=32, layers=2, lr=3e-3)
    texts.deliver(3)
    ended = final_state(client, started(client, texts, 5))
    assert (ended.type.value, in_words(ended)) == ("COMPLETED", "Promoted"), ended
    second = texts.models.version(2)
    assert (texts.models.in_service, second.compared_with) == (2, 1)
    assert second.comparisons[0].gain.low > 0
    assert segue.load_model("chargpt", store=texts.store_folder).keys() == state.keys()


def test_a_program_that_cannot_be_published_is_refused_before_anything_is_bought(client, tmp_path):
    texts = Texts(tmp_path)
    texts.write_spec()
    texts.deliver(0, 1, 2)
    text = texts.file.read_text().replace("examples.chargpt.published:scores", "examples.chargpt.published:score")
    texts.file.write_text(text)
    ended = final_state(client, started(client, texts, 6))
    assert ended.type.value == "FAILED", ended
    assert "evaluation.scores: examples.chargpt.published:score: module" in ended.message
    assert not (texts.store_folder / "chargpt-20130601t0600").exists()
