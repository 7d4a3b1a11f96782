"""The local Prefect: it works in any folder, is never shared, and ends with the process that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate

from segue.deployments.follow import require_deployments
from segue.deployments.local_stack.registration import TEMPLATES, describe_deployments, register_deployments
from segue.deployments.local_stack.services import is_alive
from segue.deployments.local_stack.stack import POOLS, free_port
from segue.errors import OrchestratorError
from segue.records import StopReason
from segue.retraining.spec import RetrainSpec
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from tests.flows.test_runs import until
from tests.support.servers.prometheus import running_prometheus

REPO = Path(__file__).parents[3]
SEGUE = Path(sys.executable).with_name("segue")
LONG_RUN = """
steps = 4000
[config]
pause_seconds = 0.01
[checkpoints]
every_steps = 50
[liveness]
heartbeat_seconds = 0.25
[continuity]
rehearsal = "off"
"""

OWNER = """
import sys, time
from pathlib import Path
from segue.deployments.local_stack.stack import LocalStack
stack = LocalStack(Path(sys.argv[1]), home=Path.cwd(), say=lambda text: None)
stack.start()
print(stack.port, flush=True)
time.sleep(600)
"""


def test_a_busy_port_picks_another():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = busy.getsockname()[1]
        assert free_port(taken) not in (taken, 0)


def test_a_service_that_has_ended_is_not_alive_although_nobody_took_note_of_it():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as service:
        process = psutil.Process(service.pid)
        assert is_alive(process)
        service.kill()
        until(lambda: process.status() == psutil.STATUS_ZOMBIE, what="its end")
        assert not is_alive(process)


def test_the_repositorys_deployments_are_those_that_init_writes_with_other_recipes():
    written = yaml.safe_load((TEMPLATES / "prefect.yaml").read_text(encoding="utf-8"))
    own = yaml.safe_load((REPO / "prefect.yaml").read_text())
    sample = own["deployments"].pop()
    assert sample["entrypoint"] == "examples.retraining.deliver.deliver"
    assert sample["parameters"] == own["deployments"][-1]["parameters"]
    for document, folder in ((written, TEMPLATES), (own, REPO)):
        retraining = document["deployments"].pop()
        spec = RetrainSpec.from_toml(Path(str(folder / retraining["parameters"]["file"])))
        schedule = retraining["schedules"][0]
        assert retraining["name"] == spec.name
        assert (schedule["cron"], schedule["timezone"]) == (spec.schedule, spec.timezone)
        for found in document["deployments"]:
            if found["name"] == "verify-resume":
                found["parameters"] = found["description"] = None
    assert own == written


@pytest.mark.prefect
def test_flow_runs_start_in_the_folder_of_the_stack_and_parents_have_a_pool_of_their_own(stack):
    with get_client(sync_client=True) as client:
        for pool in POOLS:
            template = client.read_work_pool(pool).base_job_template
            assert template["variables"]["properties"]["working_dir"]["default"] == str(stack.home)
            assert client.read_work_pool(pool).concurrency_limit is None
        names = ("segment/spot", "segment/on-demand", "train/train", "verify-resume/verify-resume")
        found = [client.read_deployment_by_name(name).work_pool_name for name in names]
    assert found == ["spot", "on-demand", "parents", "parents"]


@pytest.mark.matrix
@pytest.mark.prefect
def test_prefect_deploy_registers_what_the_stack_registers_through_the_api(own_stack):
    # A stack of its own, because the schedules stay. Pull steps are not compared: `prefect deploy` writes some of its
    # own, and entrypoints that are module paths skip them.
    wanted = ("entrypoint", "work_pool_name", "parameter_openapi_schema", "enforce_parameter_schema")
    wanted += ("tags", "description", "parameters", "schedules")
    with get_client(sync_client=True) as client:
        names = ("segment/spot", "segment/on-demand", "train/train", "verify-resume/verify-resume")
        before = {name: client.read_deployment_by_name(name) for name in names}
        deploy = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        subprocess.run(deploy, cwd=REPO, env=own_stack.environment(), check=True, capture_output=True)
        after = {name: client.read_deployment_by_name(name) for name in names}
    verification = after["verify-resume/verify-resume"]
    assert [(found.active, found.schedule.cron) for found in verification.schedules] == [(False, "0 4 * * 0")]
    assert RunSpec.model_validate(verification.parameters["spec"]).run_id == "flights"
    for name in names:
        # Those of its schedule are for the user to fill in; started here, it has the parameters that are given.
        given = ("parameters", "schedules") if name == "verify-resume/verify-resume" else ()
        fields = [field for field in wanted if field not in given]
        assert [getattr(after[name], field) for field in fields] == [getattr(before[name], field) for field in fields]


@pytest.mark.matrix
@pytest.mark.prefect
def test_the_write_ahead_log_of_the_server_stays_while_connections_come_and_go(stack):
    path = stack.folder / "prefect" / "prefect.db-wal"
    file = path.stat().st_ino
    with get_client(sync_client=True) as client:
        for _ in range(50):  # The last connection that closes would remove the file, and the next one make another.
            client.read_work_pools()
            assert path.stat().st_ino == file


@pytest.mark.prefect
def test_deployments_that_the_server_has_are_created_again_only_if_they_differ(stack):
    described = describe_deployments()
    with get_client(sync_client=True) as client:
        assert not register_deployments(client, described)
        before = client.read_deployment_by_name("train/train")
        assert before.version.startswith(f"{version('segue')}-")
        client.update_deployment(before.id, DeploymentUpdate(version="0.0.1-old", description="as it was"))
        assert register_deployments(client, described)
        after = client.read_deployment_by_name("train/train")
        assert (after.id, after.version, after.description) == (before.id, before.version, before.description)
        assert not register_deployments(client, described)


@pytest.mark.soak
@pytest.mark.prefect
def test_a_second_command_in_the_folder_has_a_stack_of_its_own_which_ends_when_that_command_is_killed(stack):
    command = [sys.executable, "-c", OWNER, str(stack.folder)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE) as owner:
        port = int(owner.stdout.readline())
        below = psutil.Process(owner.pid).children(recursive=True)
        owner.kill()
    assert port != stack.port
    assert len(below) >= 5  # The supervisor, a server, three workers.
    assert psutil.wait_procs(below, timeout=30)[1] == []
    with get_client(sync_client=True) as client:
        assert client.api_healthcheck() is None


@pytest.mark.soak
@pytest.mark.matrix
@pytest.mark.prefect
def test_sigterm_ends_a_run_in_a_plain_folder_and_all_it_started_after_a_last_checkpoint(tmp_path):
    (tmp_path / "run.toml").write_text(LONG_RUN)
    command = [str(SEGUE), "run", "segue.testing.recipes:tiny", "--config", "run.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        run_id = next(line for line in run.stderr if line.startswith("run recipes-")).split()[1]
        runlog = RunLog(open_store(tmp_path / ".segue/store"), run_id)
        until(lambda: read_history(runlog.reload()).committed_step, what="a commit")
        below = psutil.Process(run.pid).children(recursive=True)
        run.terminate()
        shown = run.stderr.read()
    assert run.returncode == 143, shown
    assert shown.rstrip().endswith(f"Run the same command with --run-id {run_id} to resume the run.")
    assert psutil.wait_procs(below, timeout=10)[1] == []
    (report,) = read_history(runlog.reload()).last_reports()
    # The signal reached it, or it saw that its parent was cancelled.
    assert report.stop_reason in (StopReason.NOTICE, StopReason.CANCELLED)
    assert report.lost_steps == 0
    assert {path.name for path in tmp_path.iterdir()} == {".segue", "run.toml"}


@pytest.mark.matrix
@pytest.mark.prefect
def test_prometheus_gets_the_run_of_a_parent_with_a_process_of_its_own(tmp_path):
    (tmp_path / "run.toml").write_text(LONG_RUN.replace("4000", "1000000"))
    variables = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(free_port(0))}
    address = f"http://127.0.0.1:{variables['OTEL_EXPORTER_PROMETHEUS_PORT']}/metrics"
    command = [str(SEGUE), "run", "segue.testing.recipes:tiny", "--config", "run.toml", "--run-id", "scraped"]
    with (
        running_prometheus(tmp_path, address) as prometheus,
        subprocess.Popen(command, cwd=tmp_path, env=os.environ | variables, stderr=subprocess.DEVNULL) as run,
    ):
        (state,) = prometheus.wait_for('segue_run_state{state="running"}')
        assert (state["metric"]["run"], state["metric"]["pool"]) == ("scraped", "segment/spot")
        # The parent refreshes the metrics every 30 s.
        assert prometheus.wait_for("segue_reached_steps > 0 and segue_heartbeat_age_seconds < 30")
        assert prometheus.value("segue_step_seconds") > 0
        assert prometheus.value("segue_store_up") == 1
        run.terminate()
        assert run.wait(60) == 143


@pytest.mark.prefect
@pytest.mark.parametrize("name", ["segment/nowhere", pytest.param("segment/poolless", marks=pytest.mark.matrix)])
def test_a_run_that_the_server_cannot_run_is_refused_and_leaves_nothing_in_the_store(stack, make_spec, name):
    spec = make_spec(pools={"spot": name})
    with get_client(sync_client=True) as client:
        flow_id = client.read_deployment_by_name("segment/spot").flow_id
        poolless = client.create_deployment(flow_id, "poolless")
        with pytest.raises(OrchestratorError, match=name):
            require_deployments(client, spec)
        client.delete_deployment(poolless)
    command = [str(SEGUE), "run", spec.recipe, "--run-id", "x", "--steps", "5", "--config", "run.toml"]
    folder = Path(spec.store.url).parent
    (folder / "run.toml").write_text(f'[pools]\nspot = "{name}"\n')
    environment = os.environ | {"PREFECT_API_URL": stack.api_url}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Fix: run `prefect --no-prompt deploy --all`" in ended.stderr
    assert [path.name for path in (folder / ".segue" / "store").iterdir()] == [".segue-store"]


@pytest.mark.matrix
@pytest.mark.prefect
def test_ctrl_c_in_the_demo_ends_every_process_and_leaves_one_folder(tmp_path):
    before = {path.name for path in REPO.iterdir()}
    command = [sys.executable, "-m", "examples.demo", "--folder", str(tmp_path / "left")]
    demo = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seen: list[bytes] = []
    started: set[psutil.Process] = set()
    for line in demo.stdout:
        seen.append(line)
        if b": training, step" in line:
            # Server, workers, parent, engine and trainer of the undisturbed run.
            started = set(psutil.Process(demo.pid).children(recursive=True))
            os.kill(demo.pid, signal.SIGINT)
            break
    out, _ = demo.communicate(timeout=60)
    _, alive = psutil.wait_procs(started, timeout=10)
    assert len(started) >= 7, b"".join([*seen, out]).decode()
    assert alive == []
    assert demo.returncode == 130, b"".join([*seen, out]).decode()
    assert b"Traceback" not in out
    assert {path.name for path in REPO.iterdir()} == before
