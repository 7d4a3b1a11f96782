"""The live view of a run on a real Prefect server: one version of the page, each event once, and never a wait."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowFilter,
    FlowFilterName,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.events.filters import EventFilter, EventResourceFilter
from prefect.settings import PREFECT_API_URL, temporary_settings

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.steps import decide_next
from segue.flows.notify import notify
from segue.prefect.state_words import in_words
from segue.prefect.ui.announcements import Announcer, resource_id
from segue.prefect.ui.artifacts import artifact_key
from segue.prefect.ui.live_run import LiveRun
from segue.records import StopReason
from segue.reports.run_events import PREEMPTED, RESUME_BROKEN, RunEvent
from tests.flows.test_runs import LONG, ended_segments, final_state, live_attempt, start, until

pytestmark = pytest.mark.prefect

log = logging.getLogger(__name__)
CLOCK = SystemClock()
PERIOD_SECONDS = 0.3
TEMPLATES = Path(__file__).parents[2] / "deployments" / "templates"


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


def live_run(runlog, spec, *, period_seconds: float = PERIOD_SECONDS) -> LiveRun:
    return LiveRun(runlog, spec, clock=CLOCK, logger=log, flow_run_id=None, period_seconds=period_seconds)


def versions(client, key: str):
    return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))


def events(client, run_id: str) -> list[str]:
    """The names of a run's events, which the server stores some seconds after it took them."""
    wanted = EventFilter(resource=EventResourceFilter(id=[resource_id(run_id)]))
    return sorted(event.event for event in client.read_events(wanted, limit=50).events)


def test_a_segment_has_one_version_of_the_page_that_is_updated_in_place(client, make_spec, open_log):
    spec = make_spec(run_id="in-place", deadline=datetime.now(UTC) + timedelta(hours=2))
    runlog = open_log(spec)
    live, key = live_run(runlog, spec), artifact_key("in-place")
    with live.refreshing():
        plan = decide_next(runlog, spec, clock=CLOCK).plan
        (first,) = until(lambda: versions(client, key), what="the first version")
        live.show("waiting for spot capacity (segment/spot): the pool spot is paused")
        shown = until(lambda: changed(client, first), what="an update in place")
        assert "waits for: waiting for spot capacity (segment/spot): the pool spot is paused" in shown.data
        assert shown.data.startswith("**in-place ")
        declare_lost(runlog, plan, why="no capacity", reason=StopReason.NO_CAPACITY, got_capacity=False)
    assert [version.id for version in versions(client, key)] == [first.id]
    (progress,) = versions(client, artifact_key("in-place-progress"))
    assert (progress.type, progress.data) == ("progress", 0.0)
    assert "step 0 of 40" in progress.description


def changed(client, first):
    (now,) = versions(client, first.key)
    return now if "waits for" in now.data else None


@pytest.mark.matrix
def test_an_event_is_sent_once_though_a_second_parent_derives_it_again(client, make_spec, open_log):
    spec = make_spec(run_id="told-once", deadline=datetime.now(UTC) + timedelta(seconds=1))
    runlog = open_log(spec)
    time.sleep(1.1)
    with live_run(runlog, spec).refreshing():
        pass
    until(lambda: events(client, "told-once"), what="the event")
    with live_run(runlog, spec).refreshing():
        time.sleep(4 * PERIOD_SECONDS)
    time.sleep(6)  # The server writes events every five seconds.
    assert events(client, "told-once") == ["segue.late"]


@pytest.mark.matrix
def test_a_parent_that_starts_again_sends_the_events_of_a_run_with_many_preemptions(client):
    happened = [RunEvent(PREEMPTED, f"preempted:{number}:1", CLOCK.now(), "lost") for number in range(120)]
    old = RunEvent(PREEMPTED, "preempted:999:1", CLOCK.now() - timedelta(days=2), "lost")
    announcer = Announcer("many-events", log_id="first-record", flow_run_id=None, logger=log)
    announcer.announce(client, [*happened, old], now=CLOCK.now())
    wanted = EventFilter(resource=EventResourceFilter(id=[resource_id("many-events")]))
    until(lambda: client.read_events(wanted, limit=50).total == 120, what="the events")
    again = Announcer("many-events", log_id="first-record", flow_run_id=None, logger=log)
    again.announce(client, happened, now=CLOCK.now())
    other = Announcer("many-events", log_id="the log of another run", flow_run_id=None, logger=log)
    other.announce(client, happened[:1], now=CLOCK.now())
    until(lambda: client.read_events(wanted, limit=50).total == 121, what="the event of the other run")


@pytest.mark.parametrize("answers", ["nothing", pytest.param("no connection", marks=pytest.mark.matrix)])
def test_a_silent_api_delays_nothing(answers, make_spec, open_log):
    spec = make_spec(run_id="silent", deadline=datetime.now(UTC) + timedelta(seconds=60))
    runlog = open_log(spec)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if answers == "nothing":
            silent.listen()  # It accepts connections, and never answers.
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            live = live_run(runlog, spec)
            began = time.monotonic()
            with live.refreshing():
                for _ in range(20):
                    live.show("waiting")
                    live.nudge()
                assert time.monotonic() - began < 1
                began = time.monotonic()
            assert time.monotonic() - began < 8


@pytest.mark.soak
@pytest.mark.matrix
def test_a_preempted_and_late_run_tells_a_person_and_prints_no_traceback(client, stack, make_spec):
    deploy_notify(stack)
    deadline = datetime.now(UTC) + timedelta(seconds=5)
    spec = make_spec(run_id="late-run", deadline=deadline, **LONG)
    runlog, parent = start(client, spec)
    claim, _ = until(lambda: live_attempt(runlog, past_step=200), what="the segment")
    os.kill(claim.segment_pid, 15)
    state = final_state(client, parent)
    assert in_words(state) == "Late"
    told = until(lambda: notified(client, "late-run"), what="the flow run of the automation")
    assert [(run.name, run.state.name) for run in told] == [("late-run is late", "Completed")]
    assert told[0].state.message.startswith("late-run is late: ")
    until(lambda: "segue.finished" in events(client, "late-run"), what="the events")
    assert events(client, "late-run") == ["segue.finished", "segue.late", "segue.preempted"]
    runs = [parent, *(run.id for run in ended_segments(client, "late-run"))]
    lines = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=runs)))
    assert [line.message for line in lines if line.level >= logging.ERROR or "Traceback" in line.message] == []
    assert versions(client, artifact_key("late-run-progress"))[0].data == 100.0
    broken = RunEvent(RESUME_BROKEN, "broken:x", CLOCK.now(), "optimizer was not restored", {"run": "late-run"})
    Announcer("late-run", log_id="x", flow_run_id=parent, logger=log).announce(client, [broken], now=CLOCK.now())
    told = until(lambda: notified(client, "late-run", at_least=2), what="the flow run of the other automation")
    assert {run.name for run in told} == {"late-run is late", "late-run has a broken resume"}
    assert "late-run has a broken resume: optimizer was not restored" in {run.state.message for run in told}


def test_a_notification_goes_to_the_block_that_is_named(stack):
    said: list[bytes] = []

    class Person(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Person) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        block = CustomWebhookNotificationBlock(name="person", url=url, json_data={"text": "{{subject}}: {{body}}"})
        block.save("person", overwrite=True)
        state = notify("r is late", "late by 5 s", block="custom-webhook/person", return_state=True)
    assert (state.name, said) == ("Completed", [b'{"text":"r is late: late by 5 s"}'])


def test_a_notification_without_its_block_says_what_it_had_to_tell(stack):
    state = notify("r is late", "late by 5 s", block="slack-webhook/none", return_state=True)
    assert state.name == "Failed"
    assert "no block 'slack-webhook/none'" in state.message
    assert state.message.endswith("r is late: late by 5 s")


def notified(client, run_id: str, *, at_least: int = 1):
    """The flow runs that automations have started for a run, once they have ended."""
    runs = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["notify"])))
    runs = [run for run in runs if run.deployment_id is not None and run.name.startswith(f"{run_id} ")]
    return runs if len(runs) >= at_least and all(run.state.is_final() for run in runs) else None


def deploy_notify(stack) -> None:
    """The deployment and its automations, by the command that docs/operations.md has."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--name", "notify"]
    file = ["--prefect-file", str(TEMPLATES / "prefect.yaml")]
    subprocess.run([*command, *file], check=True, env=stack.environment(), cwd=stack.folder, capture_output=True)
