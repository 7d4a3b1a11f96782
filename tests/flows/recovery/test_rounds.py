"""Parents that die at random moments, together with the server or with the machine of all parents, are started again.

`SEGUE_RECOVERY_ROUNDS` and `SEGUE_RECOVERY_SEED` ask for more rounds, or others.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType

from segue.controller.steps import request_stop
from segue.process import ProcessRef
from segue.runlog.history import read_history
from segue.runlog.parents import read_parent
from tests.flows.test_outage import answers
from tests.flows.test_runs import LONG, live_attempt, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

REPO = Path(__file__).parents[3]
ROUNDS = int(os.environ.get("SEGUE_RECOVERY_ROUNDS", "3"))
SEED = int(os.environ.get("SEGUE_RECOVERY_SEED", "7"))
WITHIN_SECONDS = 120.0
"""From when the server and the worker are back, on which nobody waits for a person."""
FIRST = (("server", StateType.PENDING), ("worker-parents", StateType.RUNNING), ("server", StateType.SCHEDULED))


def disturbances():
    """What dies with the parent, and in which state a start of `recover` is then; the first three cover each."""
    chance = random.Random(SEED)
    every = list(product(("server", "worker-parents"), (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)))
    for number in range(ROUNDS):
        yield *(FIRST[number] if number < len(FIRST) else chance.choice(every)), chance.uniform(0, 4)


def deploy_recover(stack, client):
    """As a person deploys it: every 30 s."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--name", "recover"]
    environment = stack.environment() | {"SEGUE_HOME": str(REPO)}
    subprocess.run(command, cwd=REPO, env=environment, check=True, capture_output=True)
    client.resume_deployment(client.read_deployment_by_name("recover/recover").id)  # The fixture paused it.


def looks_in(client, state):
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state])))
    named = FlowFilter(name=FlowFilterName(any_=["recover"]))
    with suppress(Exception):  # The server was killed a moment ago.
        return client.read_flow_runs(flow_filter=named, flow_run_filter=wanted, limit=1)
    return []


def await_look(client, state):
    """Wait, without a pause worth naming, for a start of `recover` in this state."""
    give_up_at = time.monotonic() + 90
    while not looks_in(client, state):
        assert time.monotonic() < give_up_at, f"no start of recover is {state} within 90 s"
        time.sleep(0.02)


def kill_tree(process):
    """SIGKILL for a service and all that it started: flow runs of `recover`, and parents."""
    tree = [process]
    with suppress(psutil.NoSuchProcess):
        tree += process.children(recursive=True)
    for one in tree:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)


def living_parent(runlog, *, other_than=""):
    found = read_parent(runlog.store, runlog.run_id)
    is_new = found is not None and found.parent_id not in ("", other_than)
    return found if is_new and ProcessRef.parse(found.process).is_alive() else None


def test_a_parent_that_dies_with_the_server_or_the_worker_is_started_again_within_two_minutes(own_stack, make_spec):
    took = []
    with get_client(sync_client=True) as client:
        deploy_recover(own_stack, client)
        spec = make_spec(run_id="rounds", **LONG | {"steps": 1_000_000, "config": {"pause_seconds": 0.02}})
        runlog, _ = start(client, spec)
        until(lambda: live_attempt(runlog, past_step=20), what="the segment")
        for what, state, after_seconds in disturbances():
            parent = until(lambda: living_parent(runlog), what="the parent")
            time.sleep(after_seconds)
            await_look(client, state)
            kill_tree(own_stack.services[what])
            with suppress(ProcessLookupError):
                os.kill(int(parent.process.split()[0]), signal.SIGKILL)
            time.sleep(after_seconds)
            own_stack.start_again(what)
            until(lambda: answers(own_stack.api_url), what="the server")
            back_at = time.monotonic()
            until(
                lambda dead=parent: living_parent(runlog, other_than=dead.parent_id),
                what=f"another parent after {what} was killed with a look that was {state}",
                limit_seconds=WITHIN_SECONDS,
            )
            took.append(round(time.monotonic() - back_at, 1))
            print(f"{what} killed, look {state}: a parent after {took[-1]} s", flush=True)  # noqa: T201 - with -s
        assert len(read_history(runlog.reload()).attempts) == 1, "the attempt trained on through all of it"
        request_stop(runlog, reason="the rounds are over")
        until(lambda: read_parent(runlog.store, runlog.run_id) is None, what="the end of the run")
    print(f"{len(took)} rounds, seconds until the next parent: {sorted(took)}", flush=True)  # noqa: T201 - with -s
