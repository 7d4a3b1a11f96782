"""MLflow with a real server: one MLflow run for a run, each step once whatever is killed, and a model that loads."""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier

import httpx
import pytest
import torch

import segue
from segue.controller.local_run import run_here
from segue.errors import TrackerError
from segue.integrations.mirror import Mirror, tracked_run
from segue.integrations.mlflow import MlflowTracker
from segue.integrations.tracker import CommittedRow, TrackedEnd, TrackedRun
from segue.integrations.tracking import open_trackers, send, tracking
from segue.spec import StoreSpec
from tests.support.resumed_run import read_resumed

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")]
ODD = (math.nan, math.inf, -math.inf, 1e308)
METRICS = {"loss", "lr", "grad_norm", "param_norm", "step_seconds"}


class Server:
    """An MLflow server on a free port, with its database in a folder."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        places = ["--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"]
        places += ["--artifacts-destination", str(self._folder / "artifacts")]
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), *places]
        with (self._folder / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--workers", "1"], stdout=output, stderr=output, start_new_session=True
            )
        while True:
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            try:
                if httpx.get(f"{self.uri}/health", timeout=2).is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def select(self, query: str) -> list[tuple]:
        with sqlite3.connect(self._folder / "mlflow.db") as database:
            return database.execute(query).fetchall()

    def rows(self, run: str) -> dict[str, list[tuple[int, float]]]:
        """Step and value of everything that is stored of a run's metrics, in the order of the steps."""
        found: dict[str, list[tuple[int, float]]] = {}
        query = "SELECT m.key, m.step, m.value FROM metrics m JOIN runs r USING (run_uuid) "
        for name, step, value in self.select(query + f"WHERE r.name = '{run}' ORDER BY m.step"):
            found.setdefault(name, []).append((step, value))
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("mlflow"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """A server that is away is given up soon."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")


class InSmallBatches(MlflowTracker):
    def log(self, rows):
        for start in range(0, len(rows), 3):
            super().log(rows[start : start + 3])


def send_slowly(store: str, uri: str, experiment: str) -> None:
    tracker = InSmallBatches(tracking_uri=uri, experiment=experiment, model=False)
    Mirror(read_resumed(Path(store)).log, tracker).update()


@pytest.mark.soak
def test_each_step_is_there_once_though_the_sender_is_killed_in_the_middle_again_and_again(resumed, server):
    context, chosen = mp.get_context("forkserver"), random.Random(7)
    kills, before = 0, 0
    while True:
        sender = context.Process(target=send_slowly, args=(str(resumed.store), server.uri, "killed"))
        sender.start()
        wanted = before + chosen.randint(8, 14)
        while sender.is_alive() and len(server.rows("nightly").get("loss", ())) < wanted:
            time.sleep(0.002)
        if sender.is_alive():
            assert sender.pid is not None
            os.kill(sender.pid, signal.SIGKILL)
            kills += 1
        sender.join()
        if sender.exitcode == 0:
            break
        before = len(server.rows("nightly").get("loss", ()))
    assert kills >= 3
    rows = server.rows("nightly")
    assert rows.keys() == METRICS
    frame = segue.curve(resumed.log)
    for name in METRICS:
        measured = frame[frame[name].notna()]
        assert rows[name] == list(zip(measured["step"], measured[name], strict=True)), name
        assert len(measured) >= 6
    assert server.select("SELECT count(*) FROM runs WHERE name = 'nightly'") == [(1,)]


def begin_at(moment: float, store: str, uri: str, queue) -> None:
    found = read_resumed(Path(store))
    tracker = MlflowTracker(tracking_uri=uri, experiment="raced")
    time.sleep(max(moment - time.time(), 0))
    tracker.begin(tracked_run(found.log, found.history.spec, found.history))
    queue.put(tracker.run_id)


@pytest.mark.soak
def test_two_that_begin_at_once_go_on_with_one_run(resumed, server):
    context = mp.get_context("forkserver")
    queue, moment = context.Queue(), time.time() + 8
    both = [context.Process(target=begin_at, args=(moment, str(resumed.store), server.uri, queue)) for _ in range(2)]
    for process in both:
        process.start()
    ids = {queue.get(timeout=120) for _ in both}
    for process in both:
        process.join()
    query = "SELECT run_uuid FROM runs JOIN experiments e USING (experiment_id) WHERE e.name = 'raced' AND "
    alive = {run_id for (run_id,) in server.select(query + "runs.lifecycle_stage = 'active'")}
    assert len(alive) == 1
    # One of them may have begun before the other had created its run: it finds the older one when it begins again.
    last = MlflowTracker(tracking_uri=server.uri, experiment="raced")
    last.begin(tracked_run(resumed.log, resumed.history.spec, resumed.history))
    assert {last.run_id} == alive
    assert alive <= ids


@pytest.mark.soak
def test_processes_that_log_the_same_parameters_at_once_all_go_on(resumed, server):
    run = tracked_run(resumed.log, resumed.history.spec, resumed.history)
    first = MlflowTracker(tracking_uri=server.uri, experiment="at once")
    first.begin(run)
    names = [f"parameter {number}" for number in range(10)]
    for name in names:
        trackers = [MlflowTracker(tracking_uri=server.uri, experiment="at once") for _ in range(4)]
        begun = Barrier(len(trackers))

        def begin(tracker: MlflowTracker, name: str = name, begun: Barrier = begun) -> int:
            begun.wait()
            return tracker.begin(replace(run, params={**run.params, name: "1"}))

        with ThreadPoolExecutor(len(trackers)) as threads:
            assert list(threads.map(begin, trackers)) == [0] * len(trackers)
    logged = {key for (key,) in server.select(f"SELECT key FROM params WHERE run_uuid = '{first.run_id}'")}
    assert logged == {*run.params, *names}


def test_a_finished_run_has_its_parameters_its_end_its_files_and_a_model_that_loads_without_the_recipe(
    make_spec, open_log, server, tmp_path
):
    import mlflow.pytorch

    trackers = {"mlflow": {"tracking_uri": server.uri, "experiment": "whole"}}
    spec = make_spec(run_id="whole", steps=30, config={"lr": 0.1}, trackers=trackers)
    runlog = open_log(spec)
    with tracking(spec, open_trackers(spec), every_seconds=0.2, end_seconds=300):
        assert run_here(spec, runlog, on_line=lambda _: None).action == "finished"
    tracker = MlflowTracker(tracking_uri=server.uri, experiment="whole")
    before = server.select("SELECT count(*) FROM metrics"), server.select("SELECT count(*) FROM runs")
    assert send(runlog, tracker) == 30
    assert (server.select("SELECT count(*) FROM metrics"), server.select("SELECT count(*) FROM runs")) == before

    client = mlflow.MlflowClient(tracking_uri=server.uri)
    run = client.get_run(tracker.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "whole")
    assert (run.data.params["config.lr"], run.data.params["steps"], run.data.params["seed"]) == ("0.1", "30", "0")
    assert (run.data.tags["segue.step"], run.data.tags["segue.preemptions"]) == ("30", "0")
    assert run.data.tags["segue.model"] == "MLflow model (step 30)"
    assert {file.path for file in client.list_artifacts(tracker.run_id, "segue")} == {
        "segue/run.png",
        "segue/segments.json",
    }
    mlflow.set_tracking_uri(server.uri)
    model = mlflow.pytorch.load_model(f"runs:/{tracker.run_id}/model", dst_path=str(tmp_path))
    weights = segue.load_checkpoint("whole", store=spec.store)["model"]
    loaded = model.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert mlflow.models.get_model_info(f"runs:/{tracker.run_id}/model").signature.inputs is not None


def test_a_server_that_is_away_costs_nothing_but_time(resumed, server):
    server.stop()
    with pytest.raises(TrackerError, match="The tracker failed after step 0"):
        send(resumed.log, MlflowTracker(tracking_uri=server.uri, experiment="away"))
    server.start()
    assert send(resumed.log, MlflowTracker(tracking_uri=server.uri, experiment="away")) == 60


NOW = datetime(2026, 1, 2, tzinfo=UTC)


def tracked(name: str, **params: str) -> TrackedRun:
    return TrackedRun(run_id=name, key=f"{name}@1", params=params, tags={}, store=StoreSpec(url="/nowhere"))


def test_a_name_that_mlflow_refuses_arrives_under_another_one_beside_all_other_metrics(server, caplog):
    names = ("acc@5", "timing(s)/gen", "iou,0.5", "a//b", "x" * 300, "ok")
    rows = [CommittedRow(step, NOW, {"loss": 0.5, **dict.fromkeys(names, float(step))}) for step in (1, 2)]
    for part in (rows[:1], rows[1:]):  # By two processes.
        tracker = MlflowTracker(tracking_uri=server.uri, experiment="names", model=False)
        assert tracker.begin(tracked("renamed")) == part[0].step - 1
        tracker.log(part)
    tracker.end(TrackedEnd(status="finished", reason="done", at=NOW))
    found = server.rows("renamed")
    assert {name for name in found if len(name) < 200} == {"loss", "acc_at_5", "timing_s_/gen", "iou_0.5", "a/b", "ok"}
    assert all([step for step, _ in values] == [1, 2] for values in found.values())
    assert len(found) == 7
    ((status,),) = server.select("SELECT status FROM runs WHERE name = 'renamed'")
    assert status == "FINISHED"
    assert (
        caplog.text.count("MLflow refuses the name of a metric, sending another name name=acc@5 sent_as=acc_at_5") == 1
    )


def test_values_that_are_not_finite_arrive_or_cost_themselves_alone(server):
    rows = [CommittedRow(step, NOW, {"loss": 0.5, "ppl": value}) for step, value in enumerate(ODD, start=1)]
    tracker = MlflowTracker(tracking_uri=server.uri, experiment="values", model=False)
    tracker.begin(tracked("odd"))
    tracker.log(rows)
    assert [step for step, _ in server.rows("odd")["loss"]] == [1, 2, 3, 4]
    assert [step for step, _ in server.rows("odd")["ppl"]] == [1, 2, 3, 4]


def test_a_value_that_the_server_refuses_costs_itself_alone_and_is_named_once(server, caplog):
    far = [CommittedRow(step, datetime(1960 + 50 * step, 1, 1, tzinfo=UTC), {"loss": 0.5}) for step in (0, 1)]
    tracker = MlflowTracker(tracking_uri=server.uri, experiment="refused", model=False)
    tracker.begin(tracked("refused"))
    tracker.log([CommittedRow(1, NOW, {"acc": 0.25}), *(replace(row, step=row.step + 2) for row in far)])
    tracker.log([replace(far[0], step=9)])  # A time before 1970.
    tracker.end(TrackedEnd(status="finished", reason="done", at=NOW))
    assert server.rows("refused") == {"acc": [(1, 0.25)], "loss": [(3, 0.5)]}
    assert caplog.text.count("entry left out, because MLflow refused it name=loss reason=") == 1
    tags = "SELECT t.value FROM tags t JOIN runs r USING (run_uuid) WHERE r.name = 'refused'"
    assert "loss" in server.select(f"{tags} AND t.key = 'segue.left_out'")[0][0]


def test_a_long_parameter_an_odd_name_and_a_long_tag_cost_nothing_else(server, caplog):
    tracker = MlflowTracker(tracking_uri=server.uri, experiment="params", model=False)
    tracker.begin(tracked("long", **{"config.prompt": "x" * 9000, "data.s3://lake/a.parquet": "abc", "lr": "0.1"}))
    tracker.end(TrackedEnd(status="failed", reason="y" * 20_000, at=NOW, tags={"segue.a@b": "1"}))
    query = "SELECT t.key, t.value FROM {} t JOIN runs r USING (run_uuid) WHERE r.name = 'long'"
    params, tags = (dict(server.select(query.format(table))) for table in ("params", "tags"))
    assert params == {"config.prompt": "x" * 500, "data.s3_/lake/a.parquet": "abc", "lr": "0.1"}
    assert (len(tags["segue.reason"]), tags["segue.a_at_b"]) == (5000, "1")
    assert caplog.text.count("parameter cut off for MLflow name=config.prompt characters=9000") == 1


def test_a_deleted_run_refuses_everything_and_nothing_is_left_out(server):
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    tracker = MlflowTracker(tracking_uri=server.uri, experiment="deleted", model=False)
    tracker.begin(tracked("deleted"))
    MlflowClient(tracking_uri=server.uri).delete_run(tracker.run_id)
    with pytest.raises(MlflowException):
        tracker.log([CommittedRow(1, NOW, {"loss": 0.5})])
