"""Looks of recovery with a real server: which stores it knows, late starts, what is claimed, and who is told."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate, VariableCreate, VariableUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Pending, Running, Scheduled

from segue.clock import SystemClock
from segue.controller.recovery import ParentHeartbeat, register_start
from segue.controller.steps import open_run
from segue.deployments.local_stack.registration import crash_leftovers, describe_deployments, schedule_recovery
from segue.flows.recover_engine import ended_as_late, seconds_until_due
from segue.prefect.doctor import recovery
from segue.prefect.recovery import known_stores as stores_module
from segue.prefect.recovery.dead_parents import server_id
from segue.prefect.recovery.known_stores import StoreKeeper, known_stores, variable_of
from segue.prefect.recovery.look import Looked, end_never_begun, look_at, look_at_all
from segue.prefect.recovery.recovery_watch import RecoveryWatch
from segue.prefect.recovery.schedule import end_late_starts, interval_seconds, why_silent
from segue.prefect.recovery.segment_states import is_made_by_outage, settle_left, settle_segments
from segue.process import FLOW_RUN_VARIABLE
from segue.runlog.parents import read_parent
from segue.spec import StoreSpec
from segue.stores import LocalStore, open_store
from segue.testing.clock import FakeClock
from tests.flows.conftest import pause_recovery
from tests.flows.test_runs import LONG, ended_segments, final_state, start, until

pytestmark = pytest.mark.prefect
UNATTENDED = "unattended"
"""A queue from which no worker takes anything."""

REPO = Path(__file__).parents[3]


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


def store_at(folder) -> StoreSpec:
    LocalStore(folder).create()
    return StoreSpec(url=str(folder))


def forget_all(client):
    for variable in client.read_variables(limit=200):
        if variable.name.startswith("segue_"):
            client.delete_variable_by_name(variable.name)


def parent_run(client, store, *, state=None):
    """A flow run of a parent that never began to run here."""
    deployment = client.read_deployment_by_name("train/train")
    spec = {"run_id": f"old-{uuid4().hex[:8]}", "recipe": "x:y", "steps": 1, "store": store.model_dump(mode="json")}
    return client.create_flow_run_from_deployment(deployment.id, parameters={"spec": spec}, state=state or Completed())


@pytest.mark.matrix
def test_a_store_is_found_however_many_flow_runs_came_after_it(client, tmp_path, monkeypatch):
    monkeypatch.setattr(stores_module, "_PAGE", 3)
    forget_all(client)
    old, busy = store_at(tmp_path / "old"), store_at(tmp_path / "busy")
    parent_run(client, old, state=Crashed())
    for _ in range(10):
        parent_run(client, busy)
    found = known_stores(client, clock=SystemClock())
    assert old in found
    assert found.count(busy) == 1
    # What was read once is remembered, and only what came since is read again.
    read = []
    monkeypatch.setattr(stores_module, "_flow_runs", lambda *_, since, **__: read.append(since) or [])
    assert old in known_stores(client, clock=SystemClock())
    assert min(read) > SystemClock().now() - timedelta(hours=2)
    # A busy server sends the date of some seconds ago.
    read.clear()
    late = SystemClock().now() - timedelta(seconds=30)
    monkeypatch.setattr(stores_module, "_time_of", lambda _answer: late)
    assert old in known_stores(client, clock=SystemClock())
    assert min(read) > SystemClock().now() - timedelta(hours=2)


def test_a_clock_that_was_ahead_hides_no_flow_run(client, tmp_path):
    forget_all(client)
    ahead = (SystemClock().now() + timedelta(days=3)).isoformat()
    client.create_variable(VariableCreate(name="segue_stores_read_until", value=ahead))
    store = store_at(tmp_path / "store")
    parent_run(client, store)
    assert store in known_stores(client, clock=FakeClock(SystemClock().now() + timedelta(days=9)))


def test_a_server_that_forgot_a_store_learns_it_again_from_a_living_parent(client, make_spec, monkeypatch):
    spec = make_spec(run_id="forgotten", **LONG)
    runlog = open_run(spec, clock=SystemClock())
    parent = ParentHeartbeat(runlog.store, spec, clock=SystemClock(), flow_run_id=str(uuid4()), server_id="lost")
    parent.take_over()
    logger = SimpleNamespace(warning=lambda *_: None, debug=lambda *_: None, log=lambda *_: None)
    watch = RecoveryWatch(spec.store, parent, clock=SystemClock(), logger=logger, flow_run_id=None)
    watch.look(client)
    assert spec.store in known_stores(client, clock=SystemClock())
    forget_all(client)
    monkeypatch.setattr(sys.modules[RecoveryWatch.__module__], "KEEPER", StoreKeeper())  # As half a minute later.
    watch.look(client)
    assert spec.store in known_stores(client, clock=SystemClock())
    parent._beat()
    assert read_parent(runlog.store, spec.run_id).server_id == server_id(client), "this server starts it again, at once"
    parent.close()


def test_stores_of_no_parent_are_forgotten_after_a_month_by_the_time_of_the_server(client, tmp_path, monkeypatch):
    forget_all(client)
    store = store_at(tmp_path / "store")
    StoreKeeper().keep(client, store, clock=SystemClock(), period_seconds=30)
    wrong = FakeClock(SystemClock().now() + timedelta(days=90))
    assert store in known_stores(client, clock=wrong), "the clock of this machine decides nothing"
    monkeypatch.setattr(stores_module, "_KNOWN_FOR", timedelta(seconds=-5))
    assert store not in known_stores(client, clock=SystemClock())
    assert client.read_variable_by_name(variable_of(store)) is None
    # A parent that comes back to it says so again.
    StoreKeeper().keep(client, store, clock=SystemClock(), period_seconds=30)
    client.update_variable(VariableUpdate(name=variable_of(store), value={"of": "a newer version"}))
    assert store not in known_stores(client, clock=SystemClock()), "it is left alone"


def test_nothing_is_claimed_of_what_was_not_looked_at(client, tmp_path):
    assert (
        look_at_all([], look_at).lines[0].startswith("no store was looked at, because this Prefect server knows none")
    )
    gone = StoreSpec(url=str(tmp_path / "gone"))
    one, two = store_at(tmp_path / "one"), store_at(tmp_path / "two")
    (line,) = look_at_all([one, two], look_at).lines
    assert line == "looked at 0 open runs in 2 stores: every open run has a living parent"
    lines = look_at_all([one, gone], look_at).lines
    assert lines[0].startswith("looked at 0 open runs in 1 store")
    assert str(gone.url) in lines[1]


def test_a_store_that_hangs_is_named_and_holds_up_no_other(tmp_path, client):
    hanging, quick = StoreSpec(url="/hangs"), store_at(tmp_path / "quick")
    over = []

    def look(client, store):
        if store is hanging:
            while not over:
                SystemClock().sleep(0.05)
        return look_at(client, store)

    found = look_at_all([hanging, quick], look, limit_seconds=3)
    over.append(True)
    assert (found.stores, found.troubles) == (1, ("/hangs: it was not looked at within 3 s",))


def test_what_is_wrong_with_one_store_keeps_no_other_from_being_looked_at(tmp_path, client):
    broken, sound = store_at(tmp_path / "broken"), store_at(tmp_path / "sound")

    def look(client, store):
        if store == broken:
            raise ArithmeticError("odd")
        return look_at(client, store)

    found = look_at_all([broken, sound], look)
    assert (found.stores, found.troubles) == (1, (f"{broken.url}: ArithmeticError: odd",))
    assert Looked() + found == found


def starts_of_recover(client, *minutes_ago):
    deployment, now = client.read_deployment_by_name("recover/recover"), SystemClock().now()
    states = [Scheduled(scheduled_time=now - timedelta(minutes=ago)) for ago in minutes_ago]
    made = (
        client.create_flow_run_from_deployment(deployment.id, state=state, work_queue_name=UNATTENDED)
        for state in states
    )
    return [each.id for each in made]


def forget_starts_of_recover(client):
    """Delete what the schedule started before it was paused: a later start that was taken makes older ones needless."""
    deployment = client.read_deployment_by_name("recover/recover")
    of_recover = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
    for run in client.read_flow_runs(deployment_filter=of_recover, limit=200):
        if not run.state.is_scheduled():
            until(lambda one=run.id: client.read_flow_run(one).state.is_final(), what="the end of a start of recover")
        client.delete_flow_run(run.id)


def test_starts_that_piled_up_end_at_once_and_the_newest_one_looks(client, stack):
    forget_starts_of_recover(client)
    # A queue that no worker has asked: one that asks a pool at the moment at which it is paused may still take a start.
    queue = client.create_work_queue(UNATTENDED, work_pool_name="parents", is_paused=True)
    try:
        *late, newest = starts_of_recover(client, 60, 30, 3, 2.5)
        environment = stack.environment()

        def ends(one):
            return ended_as_late(environment | {FLOW_RUN_VARIABLE: str(one)})

        assert not any(ends(one) for one in late), "no worker has taken a later one"
        for one in [*late, newest]:
            client.set_flow_run_state(one, Pending(), force=True)
        assert [ends(one) for one in [*late, newest]] == [True, True, True, False]
        state = client.read_flow_run(late[0]).state
        assert (state.type, state.message) == (
            StateType.COMPLETED,
            "this flow run is late; a later flow run makes the check",
        )
        assert client.read_flow_run(newest).state.is_pending()
        (in_time,) = starts_of_recover(client, 1)
        (much_later,) = starts_of_recover(client, 0)
        client.set_flow_run_state(much_later, Running(), force=True)
        assert not ends(in_time)
        # Those that no worker has taken yet.
        left = starts_of_recover(client, 60, 3)
        end_late_starts(client, client.read_deployment_by_name("recover/recover").id, due=SystemClock().now())
        assert all(client.read_flow_run(one).state.is_cancelled() for one in left)
        for one in (newest, in_time, much_later):
            client.set_flow_run_state(one, Cancelled(), force=True)
    finally:
        client.delete_work_queue_by_id(queue.id)


def test_a_start_that_a_worker_whose_clock_is_ahead_takes_too_early_waits_until_it_is_due(client, stack):
    queue = client.create_work_queue(UNATTENDED, work_pool_name="parents", is_paused=True)
    try:
        early, due = starts_of_recover(client, -10, 0.1)
        environments = {one: stack.environment() | {FLOW_RUN_VARIABLE: str(one)} for one in (early, due)}
        for one in (early, due):
            client.set_flow_run_state(one, Pending(), force=True)
        assert 500 < seconds_until_due(environments[early]) < 602
        assert seconds_until_due(environments[due]) == 0
        # Whoever cancels it need not wait.
        client.set_flow_run_state(early, Cancelling(), force=True)
        assert seconds_until_due(environments[early]) == 0
        for one in (early, due):
            client.set_flow_run_state(one, Cancelled(), force=True)
    finally:
        client.delete_work_queue_by_id(queue.id)


@pytest.mark.parametrize("environment", [{}, {"PREFECT_API_URL": "http://127.0.0.1:9/api"}, {"PREFECT_API_URL": "x"}])
def test_a_start_whose_server_cannot_be_asked_looks(environment, capsys):
    known = {FLOW_RUN_VARIABLE: str(uuid4())} | environment
    assert seconds_until_due(known) == 0
    assert not ended_as_late(known)
    said = capsys.readouterr().err
    assert "cannot find out whether this flow run is early" in said
    assert "cannot find out whether this flow run is late" in said


def test_a_flow_run_that_is_cancelled_while_its_process_starts_does_not_keep_its_slot(client, make_spec):
    """As seen with a second start of an attempt: the worker found nothing to end, and the engine died."""
    deployment, cancelling = client.read_deployment_by_name("segment/spot"), Cancelling(message="too late")

    def made(name):
        given = {"spec": make_spec().model_dump(mode="json")}
        return client.create_flow_run_from_deployment(deployment.id, name=name, state=cancelling, parameters=given)

    starting, trains = made("starting"), made("trains")
    for state in (Running(), cancelling):
        client.set_flow_run_state(trains.id, state, force=True)
    now = client.read_flow_run(starting.id).state.timestamp
    assert end_never_begun(client, now=now + timedelta(seconds=100)) == Looked(), "its worker may still end it"
    found = end_never_begun(client, now=now + timedelta(seconds=150))
    assert found.done == ("starting: cancelled before its process began; its state is Cancelled now",)
    state = client.read_flow_run(starting.id).state
    assert (state.type, state.message) == (StateType.CANCELLED, "too late")
    assert client.read_flow_run(trains.id).state.is_cancelling(), "its process reports its end"
    client.set_flow_run_state(trains.id, Cancelled(), force=True)


def test_the_engine_of_a_late_start_loads_no_prefect():
    code = (
        "import sys, segue.flows.recover_engine; print([n for n in ('prefect', 'torch', 'httpx') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.matrix
def test_a_deployment_that_had_a_concurrency_limit_loses_it_with_the_next_deploy(client, stack):
    deployment = client.read_deployment_by_name("recover/recover")
    client.update_deployment(deployment.id, DeploymentUpdate(concurrency_limit=1))
    client.resume_deployment(deployment.id)
    try:
        found = recovery(client, clock=SystemClock())
        assert "has a concurrency limit" in found.reason
        deploy = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--name", "recover"]
        environment = stack.environment() | {"SEGUE_HOME": str(REPO)}
        subprocess.run(deploy, cwd=REPO, env=environment, check=True, capture_output=True)
        deployed = client.read_deployment_by_name("recover/recover")
        assert deployed.global_concurrency_limit is None
        assert interval_seconds(client) == 30
        assert deployed.job_variables["command"] == "python -m segue.flows.recover_engine"
    finally:
        schedule_recovery(client, describe_deployments())
        pause_recovery()


def test_a_local_prefect_looks_for_dead_parents_and_starts_again_without_old_starts(client):
    schedule_recovery(client, describe_deployments())
    try:
        assert interval_seconds(client) == 60
        crash_leftovers(client)  # Nothing else of this server is unfinished now.
        assert interval_seconds(client) is None
    finally:
        schedule_recovery(client, describe_deployments())
        pause_recovery()


@pytest.mark.matrix
def test_the_interval_of_a_schedule_by_the_hour_is_known_from_its_next_starts(client):
    deployment = client.read_deployment_by_name("recover/recover")
    every = CronSchedule(cron="*/10 * * * *")
    client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=True, schedule=every)
    client.resume_deployment(deployment.id)
    try:
        assert until(lambda: interval_seconds(client), what="the server's plan") == 600
    finally:
        schedule_recovery(client, describe_deployments())
        pause_recovery()


def silent_watch(spec, store, said, clock):
    parent = ParentHeartbeat(store, spec, clock=clock, flow_run_id=str(uuid4()))
    logger = SimpleNamespace(
        warning=lambda text, *values: said.append(text % values), debug=lambda *_: None, log=lambda *_: None
    )
    return RecoveryWatch(spec.store, parent, clock=clock, logger=logger, flow_run_id=None, show=said.append)


@pytest.mark.matrix
def test_when_no_look_ends_parents_say_so_once_and_one_event_is_sent(client, make_spec):
    spec = make_spec(run_id="unguarded", **LONG)
    store = open_store(spec.store)
    store.create()
    clock = FakeClock(SystemClock().now() - timedelta(minutes=10))  # The server shows no events of the future.
    said = [], []
    watches = [silent_watch(spec, store, each, clock) for each in said]
    for _ in range(9):
        for watch in watches:
            watch.look(client)
        clock.advance(30)
    for each in said:
        shown = [text for text in each if text is not None]
        assert shown[0].startswith(
            "no check by `recover` has completed for 3.5 min: dead parents are not started again"
        )
        assert "the deployment recover/recover is paused" in shown[0]
        assert shown[0].endswith("Fix: resume it on its page in Prefect's UI")
        assert [text for text in shown if not text.endswith(".")] == shown[:1], "logged once, and shown with each look"

    def sent():
        found = client.read_events(EventFilter(event=EventNameFilter(name=["segue.recovery.silent"])), limit=50).events
        return [event for event in found if event.payload["store"] == spec.store.url]

    assert len(until(sent, what="the event")) == 1, "the server keeps one of each id"
    look_at(client, spec.store)
    watches[0].look(client)
    assert said[0][-2:] == ["checks by `recover` complete again", None]


def test_why_no_look_ends_is_said_with_a_fix(client):
    assert why_silent(client, now=SystemClock().now())[1] == "resume it on its page in Prefect's UI."


@pytest.mark.parametrize(
    ("state", "is_one"),
    [
        (Failed(message="Flow run encountered an exception: ConnectError: All connection attempts failed"), True),
        (Failed(message="Flow run encountered an exception: ReadTimeout: "), True),
        (Failed(message="Flow run encountered an exception: PrefectHTTPStatusError: Server error '503'"), True),
        (Crashed(message="Execution was interrupted by an unexpected exception: RemoteProtocolError: x"), True),
        (Crashed(message="Flow run infrastructure exited with non-zero status code 1."), True),
        (Failed(message="Flow run encountered an exception: ArithmeticError: this recipe raises"), False),
        (Failed(message="failed at step 3 on spot; ConnectError: the recipe's own"), False),
        (Cancelled(message="Flow run encountered an exception: ConnectError: "), False),  # A person's.
        (Crashed(name="Preempted", message="Process exited with status code: 1"), False),
        (Completed(message="ConnectError"), False),
        (Running(), False),
        (None, False),
    ],
)
def test_only_states_that_an_outage_of_the_api_made_are_set_from_the_log(state, is_one):
    assert is_made_by_outage(state) is is_one


@pytest.mark.matrix
def test_a_segment_that_could_not_report_its_end_to_a_silent_api_is_not_failed_for_ever(client, make_spec):
    spec = make_spec(run_id="unreported", **LONG | {"steps": 200})
    runlog, parent = start(client, spec)
    final_state(client, parent)
    (run,) = ended_segments(client, spec.run_id)
    failed = Failed(message="Flow run encountered an exception: ConnectError: All connection attempts failed")
    client.set_flow_run_state(run.id, failed, force=True)
    later = SystemClock().now() + timedelta(minutes=2)
    done, troubles = settle_left(client, runlog.store, spec=spec.store, clock=FakeClock(later))
    assert (done, troubles) == (["unreported: states of its segments were set from its log"], [])
    state = client.read_flow_run(run.id).state
    assert (state.type, state.message) == (run.state.type, run.state.message)
    # Also while the run has a parent.
    register_start(runlog.store, spec, clock=SystemClock())
    client.set_flow_run_state(run.id, Crashed(message="Flow run infrastructure exited with non-zero status code 1."))
    client.set_flow_run_state(run.id, failed, force=True)
    assert settle_left(client, runlog.store, spec=spec.store, clock=FakeClock(later))[0] == done
    # Its process was killed while it ended.
    client.set_flow_run_state(run.id, Cancelling(message="the run was cancelled"), force=True)
    assert settle_segments(client, runlog.reload(), now=later) == 1
    # A person's cancel stays, and so does what is older than some hours.
    client.set_flow_run_state(run.id, Cancelled(message="cancelled by a person"), force=True)
    assert settle_segments(client, runlog.reload(), now=later) == 0
    client.set_flow_run_state(run.id, failed, force=True)
    assert settle_segments(client, runlog, now=later + timedelta(hours=7)) == 0
    assert settle_segments(client, runlog, now=later) == 1


def test_an_api_that_refuses_is_no_reason_to_forget_a_store(tmp_path):
    """The keeper asks again with the next look."""
    store, keeper = store_at(tmp_path / "store"), StoreKeeper()

    class Refusing:
        api_url = "x"

        def request(self, *_, **__):
            raise PrefectHTTPStatusError("busy", request=httpx.Request("GET", "http://x"), response=httpx.Response(503))

    for _ in range(2):
        with pytest.raises(PrefectHTTPStatusError):
            keeper.keep(Refusing(), store, clock=FakeClock(), period_seconds=30)
