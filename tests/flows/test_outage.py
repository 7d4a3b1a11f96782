"""The Prefect server is gone for minutes: running work goes on, and every run ends Completed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import httpx
import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from segue.deployments.local_stack.stack import LocalStack
from segue.records import StopReason
from segue.runlog.entries import ReportEntry
from segue.runlog.history import read_history
from tests.flows.test_runs import LONG, live_attempt, start, until
from tests.support.run_processes import processes_of_runs

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

OUTAGE_SECONDS = 80.0
"""Longer than Prefect's own client retries a request."""


class Server:
    """The server of a stack, which can be killed and started again on the same port and database."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self._again: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        found = psutil.net_connections("tcp")
        listening = {c.pid for c in found if c.status == psutil.CONN_LISTEN and c.laddr.port == self._stack.port}
        for pid in listening:
            psutil.Process(pid).kill()
        until(lambda: not answers(self._stack.api_url), what="the end of the server")

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
        with (self._stack.logs / "server-again.log").open("wb") as output:
            self._again = subprocess.Popen(
                [*command, "--port", str(self._stack.port)],
                env=self._stack.environment(),
                stdout=output,
                stderr=output,
            )
        until(lambda: answers(self._stack.api_url), what="the server")

    def close(self) -> None:
        if self._again is not None:
            self._again.terminate()
            self._again.wait(30)


@pytest.fixture
def server(own_stack):
    server = Server(own_stack)
    yield server
    # An engine that reports its last logs to a server that is gone takes a minute more.
    until(lambda: not processes_of_runs(own_stack), what="the ends of all engines")
    server.close()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


@pytest.mark.soak
def test_all_runs_finish_and_are_completed_though_the_server_was_gone_for_minutes(server, make_spec):
    with get_client(sync_client=True) as client:
        # One ends in the outage, one loses its trainer in it, one trains through it.
        specs = {
            "ends": make_spec(run_id="ends", **LONG | {"steps": 1500}),
            "killed": make_spec(run_id="killed", **LONG | {"steps": 2500}),
            "quiet": make_spec(run_id="quiet", **LONG | {"steps": 12000}),
        }
        started = {name: start(client, spec) for name, spec in specs.items()}
        for name, (runlog, _) in started.items():
            until(lambda runlog=runlog: live_attempt(runlog, past_step=60), what=f"the segment of {name}")
        server.kill()
        away_until = time.monotonic() + OUTAGE_SECONDS
        killed_log = started["killed"][0]
        _, beat = until(lambda: live_attempt(killed_log, past_step=100), what="the trainer to kill")
        killed_at = datetime.now(UTC)
        os.kill(beat.trainer_pid, signal.SIGKILL)
        lost = until(lambda: first_report(killed_log), what="its report")
        assert lost.report.stop_reason is StopReason.LOST
        # Half a second on a quiet machine; a minute when the wait asks Prefect with its own retries.
        assert (lost.written_at - killed_at).total_seconds() < 20
        until(lambda: read_history(started["ends"][0]).is_over, what="the end of a run", limit_seconds=OUTAGE_SECONDS)
        while time.monotonic() < away_until:
            time.sleep(1)
        server.start()
        for name, (runlog, parent) in started.items():
            state = until(lambda parent=parent: final(client, parent), what=name, limit_seconds=240)
            assert state.type is StateType.COMPLETED, (name, state)
            assert read_history(runlog.reload()).committed_step == specs[name].steps
        reasons = [report.stop_reason for report in read_history(killed_log).last_reports()]
        assert reasons == [StopReason.LOST, StopReason.FINISHED]


def final(client, flow_run_id):
    state = client.read_flow_run(flow_run_id).state
    return state if state.is_final() else None


def first_report(runlog):
    read_history(runlog)
    return next((slot.entry for slot in runlog.slots if isinstance(slot.entry, ReportEntry)), None)
