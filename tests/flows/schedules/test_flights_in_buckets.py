"""The retraining of the shipped prefect.yaml by its own schedule, with data and models in a bucket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName

from segue.deployments.local_stack.stack import LocalStack
from segue.deployments.retrain_deployments import wait_for
from segue.prefect.state_words import in_words
from segue.records import Heartbeat
from segue.retraining.models import Models, ModelsLog
from segue.retraining.slots import run_id_of, store_of
from segue.retraining.spec import RetrainSpec
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import StoreSpec
from segue.stores import open_store
from tests.flows.conftest import REPO
from tests.stores.conftest import aws_keys, moto_url, place_at, radosgw_config, radosgw_url

__all__ = ["aws_keys", "moto_url", "radosgw_config", "radosgw_url"]

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

LIMIT_SECONDS = 800
SAVED_EVERY_STEPS = 400
EACH_MINUTE = "* * * * *"
FILE = "examples/retraining/retrain.toml"


@pytest.fixture(params=["moto", pytest.param("radosgw", marks=pytest.mark.radosgw)])
def place(request) -> StoreSpec:
    return place_at(request, request.param, prefix="flights")


@pytest.fixture
def stack(place, own_stack_at) -> Iterator[LocalStack]:
    """Begun after the bucket, whose credentials its workers have."""
    yield from own_stack_at()


@pytest.fixture
def project(place, tmp_path) -> Path:
    """The example as it is shipped, but in a bucket, and with a slot in each minute."""
    folder = tmp_path / "project"
    for part in ("flights", "retraining"):
        shutil.copytree(REPO / "examples" / part, folder / "examples" / part)
    (folder / "examples/__init__.py").touch()
    changes = {
        'files = ".segue/lake/': f'endpoint_url = "{place.endpoint_url}"\nfiles = "{place.url}/lake/',
        'schedule = "0 6 2 * *"': f'schedule = "{EACH_MINUTE}"',
        "[run.pools]": (
            f'[run.store]\nurl = "{place.url}/models"\nendpoint_url = "{place.endpoint_url}"\n\n'
            "[run.liveness]\nheartbeat_seconds = 0.5\nheartbeat_timeout_seconds = 10\n\n[run.pools]"
        ),
    }
    rewrite(REPO / FILE, folder / FILE, changes)
    rewrite(REPO / "prefect.yaml", folder / "prefect.yaml", {'cron: "0 6 2 * *"': f'cron: "{EACH_MINUTE}"'})
    return folder


def rewrite(source: Path, target: Path, changes: dict[str, str]) -> None:
    text = source.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    target.write_text(text)


def until(condition: Callable[[], Any], *, what: str) -> Any:
    give_up_at = time.monotonic() + LIMIT_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, f"waited {LIMIT_SECONDS} s for {what}"
        time.sleep(0.25)
    return answer


@pytest.mark.timeout(1800)
def test_a_slot_of_the_schedule_trains_with_a_kill_and_is_promoted_and_the_next_one_waits(stack, project, request):
    def command(program: str, *words: str) -> None:
        environment = stack.environment() | {"SEGUE_HOME": str(project)}
        facts = {"env": environment, "cwd": project, "capture_output": True, "text": True}
        done = subprocess.run([Path(sys.executable).with_name(program), *words], check=False, **facts)
        assert done.returncode == 0, done.stdout + done.stderr

    spec = RetrainSpec.from_toml(project / FILE)
    assert spec.run["checkpoints"]["every_steps"] == SAVED_EVERY_STEPS
    command("prefect", "--no-prompt", "deploy", "--name", "flights", "--name", "flights-data")
    with get_client(sync_client=True) as client:
        deliver = client.read_deployment_by_name("deliver/flights-data")
        delivered = wait_for(client, client.create_flow_run_from_deployment(deliver.id).id)
    assert delivered.message == f"delivered 2013-01 to 2013-03 into {spec.data.files.rpartition('/')[0]}"

    command("segue", "retrain", "deploy", FILE)
    kill_trainer(spec)
    has_second = "radosgw" not in request.node.name  # What waits is no matter of the store.
    if has_second:
        until(lambda: begun_slots() > 1, what="the second slot")
    # A slow machine would get one more in each minute, and be slower still.
    command("segue", "retrain", "deploy", FILE, "--paused")
    until(lambda: models_of(spec).in_service == 1, what="the first version")
    first = models_of(spec).version(1)
    if has_second:
        until(lambda: len(models_of(spec).candidates) > 1, what="the version of the second slot")
        second = models_of(spec).version(2)
        assert first.slot < second.slot
        assert second.compared_with == 1, "it began when the first one had ended"
    assert first.slot.second == 0
    assert first.training.preemptions >= 1
    assert set(first.training.verdicts) == {"exact"}
    end_flow_runs()


def begun_slots() -> int:
    """The flow runs of slots that train, wait for their turn, or have ended."""
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["retrain"])))
    return sum(run.start_time is not None for run in runs)


def models_of(spec: RetrainSpec) -> Models:
    return ModelsLog(open_store(store_of(spec)), spec.name, spec=store_of(spec)).read()


def kill_trainer(spec: RetrainSpec) -> None:
    """SIGKILL to the trainer of the first slot, at a step with which its resume can be compared.

    Steps after the newest commit are known, and the next one is far: a resume from that would have nothing to compare.
    """

    def beat():
        slot = next((each for each, state in models_of(spec).slots.items() if state.start), None)
        if slot is None:
            return None
        runlog = RunLog(open_store(store_of(spec)), run_id_of(spec, slot))
        history = read_history(runlog)
        plan = history.open_plan
        attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
        found = last_heartbeat(runlog, attempt)
        return found if found is not None and found.phase == "training" and is_between_commits(found) else None

    os.kill(until(beat, what="a slot of the schedule that trains").trainer_pid, signal.SIGKILL)


def is_between_commits(beat: Heartbeat) -> bool:
    """Whether steps after its newest commit are recorded, and the next save is not near."""
    return beat.last_commit_step is not None and 20 <= beat.step - beat.last_commit_step < SAVED_EVERY_STEPS / 2


def end_flow_runs() -> None:
    """Wait for slots that began before the schedule was paused."""
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs():
            if run.state is not None and run.state.type.value in ("PENDING", "RUNNING"):
                assert in_words(wait_for(client, run.id))
