"""A parent that dies is started again without a person: killed, with its worker, cancelled, or started twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling, Completed, Pending, Running, Scheduled

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.recovery import register_start
from segue.controller.steps import decide_next, open_run
from segue.deployments.follow import trigger
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.prefect.recovery import look
from segue.prefect.recovery.dead_parents import parents_of, recover_run, will_start
from segue.prefect.recovery.look import look_at
from segue.prefect.recovery.segment_states import settle_left, settle_segments
from segue.prefect.run_pools import warn_of_idle_schedule
from segue.prefect.state_words import in_words
from segue.process import ProcessRef
from segue.records import ParentRecord, StopReason
from segue.runlog.history import read_history
from segue.runlog.parents import parents, read_parent
from segue.spec import StoreSpec
from segue.testing.clock import FakeClock
from tests.flows.test_runs import LONG, ended_segments, final_state, live_attempt, segment_runs, start, until

pytestmark = pytest.mark.prefect

SEGUE = Path(sys.executable).with_name("segue")
REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("state", "seconds_ago", "waits"),
    [
        (Scheduled(), 3600, True),  # It waits for a worker.
        (Pending(), 44, True),
        (Pending(), 46, False),  # The worker that took it may have died with it.
        (Running(), 46, False),
        (Completed(), 1, False),
    ],
)
def test_a_start_that_was_taken_and_shows_no_heartbeat_is_waited_for_only_so_long(state, seconds_ago, waits):
    now = SystemClock().now()
    state.timestamp = now - timedelta(seconds=seconds_ago)
    run = FlowRun(flow_id=uuid4(), state=state)
    dead = ParentRecord(run_id="r", flow_run_id=str(uuid4()), timeout_seconds=1, beat_at=now)
    assert will_start(run, dead, now=now, limit_seconds=45) is waits


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def recover(stack):
    """Runs `segue recover` on one store; returns what it printed."""

    def run(store: str, *options: str) -> str:
        environment = os.environ | {"PREFECT_API_URL": stack.api_url, "COLUMNS": "200", "NO_COLOR": "1"}
        command = [str(SEGUE), "recover", "--store", store, *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    return run


def kill_parent(runlog):
    record = until(lambda: read_parent(runlog.store, runlog.run_id), what="the parent's record")
    process = psutil.Process(int(record.process.split()[0]))
    process.send_signal(signal.SIGKILL)
    until(lambda: not ProcessRef.parse(record.process).is_alive(), what="the end of the parent's process")
    return record


def the_parents(client, runlog):
    record = ParentRecord(run_id=runlog.run_id, timeout_seconds=1, beat_at=SystemClock().now())
    return parents_of(client, read_history(runlog).spec, record)


@pytest.mark.matrix
def test_a_killed_parent_is_started_again_once_and_the_attempt_trains_on(client, make_spec, recover):
    spec = make_spec(run_id="killed-parent", **LONG | {"steps": 3000})
    runlog, first = start(client, spec)
    claim, _ = until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    assert "every open run has a living parent" in recover(spec.store.url)
    kill_parent(runlog)
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(recover, [spec.store.url] * 2))
    assert any("killed-parent: its parent was started again" in text for text in said)
    second, dead = the_parents(client, runlog)
    assert dead.id == first

    def has_begun():
        parent = read_parent(runlog.store, runlog.run_id)
        return parent is None or parent.flow_run_id == str(second.id)  # None: it has even ended.

    assert "killed-parent: a start of its parent is queued" in recover(spec.store.url) or until(
        has_begun, what="the second parent"
    )
    state = final_state(client, second.id)
    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    assert [attempt.claim for attempt in history.attempts] == [claim]
    assert [entry.action for entry in history.decisions] == ["run", "finished"]
    assert len(segment_runs(client, spec.run_id)) == 1
    assert parents(runlog.store) == []
    assert "every open run has a living parent" in recover(spec.store.url)


class ClientThatSeesNoNewFlowRuns:
    """A client whose list of flow runs was read before any was created."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def read_flow_runs(self, **_):
        return []


@pytest.mark.soak
def test_two_recoveries_at_once_create_one_parent_though_the_attempt_trains_on_between_them(client, make_spec):
    spec = make_spec(run_id="at-once", **LONG | {"steps": 60})
    runlog = open_run(spec, clock=SystemClock())
    register_start(runlog.store, spec, clock=SystemClock())
    dead = read_parent(runlog.store, spec.run_id)
    client.update_work_pool("parents", WorkPoolUpdate(is_paused=True))
    try:
        _, first = recover_run(client, runlog, dead, clock=SystemClock())
        decide_next(runlog, spec, clock=SystemClock())  # The log grows.
        _, second = recover_run(ClientThatSeesNoNewFlowRuns(client), runlog.reload(), dead, clock=SystemClock())
    finally:
        client.update_work_pool("parents", WorkPoolUpdate(is_paused=False))
    assert first is not None
    assert second == first
    assert final_state(client, first).type is StateType.COMPLETED


@pytest.mark.matrix
def test_a_parent_whose_worker_was_killed_with_it_is_not_running_for_ever(stack, client, make_spec, recover):
    spec = make_spec(run_id="lost-worker", **LONG)
    runlog, first = start(client, spec)
    _, beat = until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    worker = stack.services["worker-parents"]
    worker.suspend()  # It cannot tell the server that the parent has ended.
    try:
        kill_parent(runlog)
        os.kill(beat.trainer_pid, signal.SIGKILL)
        assert client.read_flow_run(first).state.type is StateType.RUNNING
        assert "its parent was started again" in recover(spec.store.url)
        assert in_words(client.read_flow_run(first).state) == "Parent lost"
    finally:
        worker.resume()
    second, _ = the_parents(client, runlog)
    assert final_state(client, second.id).type is StateType.COMPLETED
    reports = read_history(runlog.reload()).last_reports()
    assert [report.stop_reason for report in reports] == [StopReason.LOST, StopReason.FINISHED]


@pytest.mark.soak
@pytest.mark.matrix
def test_a_run_that_another_server_started_is_left_to_it(client, make_spec, recover):
    spec = make_spec(run_id="of-another-server", **LONG | {"steps": 100})
    runlog = open_run(spec, clock=SystemClock())
    register_start(runlog.store, spec, clock=SystemClock(), server_id="another")
    assert "of-another-server: its parent ran on another Prefect server" in recover(spec.store.url)
    assert the_parents(client, runlog) == []
    assert "of-another-server: its parent was started again" in recover(spec.store.url, "--take-over")
    (parent,) = the_parents(client, runlog)
    assert final_state(client, parent.id).type is StateType.COMPLETED


@pytest.mark.soak
def test_a_second_parent_of_the_same_run_says_so_and_ends(client, make_spec, recover):
    spec = make_spec(run_id="started-twice", **LONG | {"steps": 3000})
    runlog, first = start(client, spec)
    until(lambda: live_attempt(runlog), what="the segment")
    state = final_state(client, trigger(client, spec))
    assert (state.type, in_words(state)) == (StateType.CANCELLED, "Duplicate")
    assert f"run started-twice already has a parent on {os.uname().nodename} (flow run {first})" in state.message
    kill_parent(runlog)
    assert "started-twice: its parent was started again" in recover(spec.store.url)  # The duplicate was no cancel.
    third = the_parents(client, runlog)[0]
    assert final_state(client, third.id).type is StateType.COMPLETED
    assert len(read_history(runlog.reload()).attempts) == 1


@pytest.mark.soak
@pytest.mark.matrix
def test_the_same_run_id_in_another_store_is_another_run(client, make_spec, tmp_path):
    one = make_spec(run_id="namesake", **LONG)
    other = make_spec(run_id="namesake", store={"url": str(tmp_path / "other")}, **LONG | {"steps": 60})
    runlog, first = start(client, one)
    claim, _ = until(lambda: live_attempt(runlog), what="the segment")
    other_log, second = start(client, other)
    assert final_state(client, second).type is StateType.COMPLETED
    assert final_state(client, first).type is StateType.COMPLETED
    assert [attempt.claim for attempt in read_history(runlog.reload()).attempts] == [claim]
    assert [r.stop_reason for r in read_history(other_log.reload()).last_reports()] == [StopReason.FINISHED]


@pytest.mark.soak
@pytest.mark.matrix
def test_a_run_id_that_is_used_again_after_its_store_was_deleted_is_a_new_run(client, make_spec):
    spec = make_spec(run_id="used-again", **LONG | {"steps": 60})
    for _ in range(2):
        runlog, parent = start(client, spec)
        assert final_state(client, parent).type is StateType.COMPLETED
        (report,) = read_history(runlog.reload()).last_reports()
        assert (report.stop_reason, report.from_step) == (StopReason.FINISHED, 0)
        shutil.rmtree(spec.store.url)
    assert len(ended_segments(client, "used-again")) == 2


def is_cancelled(report):
    return report.stop_reason is StopReason.CANCELLED


@pytest.mark.matrix
def test_a_cancelled_parent_stops_the_run_and_is_not_started_again(client, make_spec, recover):
    spec = make_spec(run_id="cancelled-parent", **LONG | {"steps": 5000})
    runlog = open_run(spec, clock=SystemClock())
    deployment = client.read_deployment_by_name("train/train")
    # As from the UI: no tags.
    first = client.create_flow_run_from_deployment(deployment.id, parameters={"spec": spec.model_dump(mode="json")}).id
    until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    client.set_flow_run_state(first, Cancelling(), force=True)
    # The segment sees it by itself, before the recovery: the run goes on from its last checkpoint when it is wanted.
    (report,) = until(
        lambda: [each for each in read_history(runlog).last_reports() if is_cancelled(each)], what="its end"
    )
    assert report.lost_steps == 0
    (run,) = ended_segments(client, "cancelled-parent")
    assert run.state.type is StateType.CANCELLED
    assert final_state(client, first).type is StateType.CANCELLED
    said = until(lambda: "was cancelled" in (text := recover(spec.store.url)) and text, what="the recovery")
    assert "cancelled-parent: it was stopped, because its parent's flow run was cancelled" in said
    assert the_parents(client, runlog) == []
    history = read_history(runlog.reload())
    assert history.stop is not None
    recover(spec.store.url)
    assert parents(runlog.store) == []
    assert client.read_flow_run(first).state.type is StateType.CANCELLED


@pytest.mark.soak
def test_a_run_that_ended_while_prefect_was_away_gets_its_state_from_the_log(client, make_spec, recover):
    spec = make_spec(run_id="ended-unseen", **LONG | {"steps": 200})
    runlog, first = start(client, spec)
    state = final_state(client, first)
    assert state.type is StateType.COMPLETED
    # As after an outage of the API at the moment of the end: the record is there, the flow run seems to run.
    register_start(runlog.store, spec, clock=SystemClock())
    client.set_flow_run_state(first, Running(), force=True)
    assert "ended-unseen: it had ended; its state was set from its log" in recover(spec.store.url)
    state = client.read_flow_run(first).state
    assert (state.type, state.message) == (StateType.COMPLETED, "step 200 is committed")


@pytest.mark.matrix
def test_a_segment_that_ended_while_prefect_was_away_gets_its_state_from_the_log(client, make_spec, monkeypatch):
    spec = make_spec(run_id="ended-unseen-too", **LONG | {"steps": 200})
    runlog, first = start(client, spec)
    final_state(client, first)
    (run,) = ended_segments(client, "ended-unseen-too")
    client.set_flow_run_state(run.id, Running(), force=True)
    now = SystemClock().now()
    assert settle_segments(client, runlog.reload(), now=now) == 0, "it may still report its state itself"
    assert settle_segments(client, runlog, now=now + timedelta(minutes=2)) == 1
    state = client.read_flow_run(run.id).state
    assert (state.type, state.message) == (run.state.type, run.state.message)
    assert settle_segments(client, runlog, now=now + timedelta(minutes=2)) == 0
    assert parents(runlog.store) == []
    # Also when nothing is left of its parent.
    client.set_flow_run_state(run.id, Running(), force=True)
    assert settle_left(
        client, runlog.store, spec=StoreSpec(url="another"), clock=FakeClock(now + timedelta(hours=1))
    ) == ([], [])
    monkeypatch.setattr(look, "clock_of", lambda client: FakeClock(now + timedelta(minutes=2)))
    done = [f"{spec.run_id}: states of its segments were set from its log"]
    assert look_at(client, spec.store).done == tuple(done)
    assert client.read_flow_run(run.id).state.name == run.state.name
    assert look_at(client, spec.store).lines == ["looked at 0 open runs in 1 store: every open run has a living parent"]


@pytest.mark.matrix
def test_a_segment_that_never_claimed_its_attempt_is_not_pending_for_ever(client, make_spec):
    spec = make_spec(run_id="never-claimed", **LONG)
    runlog = open_run(spec, clock=SystemClock())
    plan = decide_next(runlog, spec, clock=SystemClock()).plan
    client.update_work_pool("spot", WorkPoolUpdate(is_paused=True))
    try:
        orchestrator = PrefectOrchestrator(log_id=runlog.log_id)
        orchestrator.submit(spec, plan)
        orchestrator.close()
        (run,) = segment_runs(client, spec.run_id)
        client.set_flow_run_state(run.id, Pending(), force=True)  # As the worker did that has died.
        later = FakeClock(SystemClock().now() + timedelta(minutes=2))
        assert settle_left(client, runlog.store, spec=spec.store, clock=later) == ([], []), "it may still start"
        declare_lost(runlog, plan, why="its flow run ended as Lost without a report")
        done, troubles = settle_left(client, runlog.store, spec=spec.store, clock=later)
    finally:
        client.update_work_pool("spot", WorkPoolUpdate(is_paused=False))
    assert (len(done), troubles) == (1, [])
    state = client.read_flow_run(run.id).state
    assert (state.type, in_words(state)) == (StateType.CRASHED, "Lost")


@pytest.mark.soak
@pytest.mark.matrix
def test_a_cancelled_run_that_is_started_again_and_waits_for_a_worker_is_not_ended_by_recovery(
    client, make_spec, recover
):
    liveness = {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": 2}
    spec = make_spec(run_id="started-again", **LONG | {"steps": 60, "liveness": liveness})
    runlog = open_run(spec, clock=SystemClock())
    plan = decide_next(runlog, spec, clock=SystemClock()).plan
    declare_lost(runlog, plan, why="its flow run was cancelled", reason=StopReason.CANCELLED)
    assert decide_next(runlog, spec, clock=SystemClock()).action == "cancelled"
    client.update_work_pool("parents", WorkPoolUpdate(is_paused=True))
    try:
        opened = open_run(spec, clock=SystemClock())
        register_start(runlog.store, spec, clock=SystemClock())
        again = trigger(client, spec, requested_at_slot=opened.next_slot)
        assert "started-again: a start of its parent is queued" in recover(spec.store.url)
        assert client.read_flow_run(again).state.type is StateType.SCHEDULED
    finally:
        client.update_work_pool("parents", WorkPoolUpdate(is_paused=False))
    assert final_state(client, again).type is StateType.COMPLETED


@pytest.mark.soak
def test_the_deployed_schedule_starts_a_killed_parent_again_without_a_person(own_stack, make_spec, caplog):
    deploy = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--name", "recover"]
    environment = own_stack.environment() | {"SEGUE_HOME": str(REPO)}
    subprocess.run(deploy, cwd=REPO, env=environment, check=True, capture_output=True)
    with get_client(sync_client=True) as client:
        client.resume_deployment(client.read_deployment_by_name("recover/recover").id)
        now = SystemClock().now()
        # The server looks at new schedules every few seconds.
        until(lambda: client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["recover"]))), what="runs")
        warn_of_idle_schedule(client, now=now + timedelta(minutes=2))
        assert "creates no flow runs" not in caplog.text
        warn_of_idle_schedule(client, now=now + timedelta(days=30))
        assert "creates no flow runs for the schedule of recover/recover" in caplog.text
        spec = make_spec(run_id="scheduled", **LONG | {"steps": 9000})
        runlog, first = start(client, spec)
        claim, _ = until(lambda: live_attempt(runlog, past_step=100), what="the segment")
        dead = kill_parent(runlog)

        def successor():
            found = read_parent(runlog.store, runlog.run_id)
            return found if found is not None and found.parent_id not in ("", dead.parent_id) else None

        second = until(successor, what="the next parent", limit_seconds=90)
        state = final_state(client, UUID(second.flow_run_id), limit_seconds=300)
        assert state.type is StateType.COMPLETED, state.message
        assert client.read_flow_run(first).state.type is StateType.CRASHED
    history = read_history(runlog.reload())
    assert [attempt.claim for attempt in history.attempts] == [claim], "the attempt trained on"
    assert [entry.action for entry in history.decisions] == ["run", "finished"]
