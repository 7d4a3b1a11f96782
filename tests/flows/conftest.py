"""One real Prefect for the whole session: server, three process pools, a worker each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client

from segue.deployments.local_stack.stack import LocalStack
from tests.support.run_processes import wait_for_processes_of_runs

REPO = Path(__file__).parents[2]
SELDOM = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
"""A server that its three workers ask twice a second is busy for a quarter of a core, with nothing to do."""


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    said: list[str] = []
    # Of five minutes: only after this time does a worker delete a container that was cancelled before it ran.
    patience = SELDOM | {"PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_CANCELLING_TIMEOUT_SECONDS": "30"}
    folder = tmp_path_factory.mktemp("prefect")
    stack = LocalStack(folder, home=REPO, say=said.append, variables=patience, wanted_port=0)
    before = prefect_environment()
    try:
        stack.start()
        with stack.settings():
            pause_recovery()
            yield stack
    finally:
        stack.stop()
        assert prefect_environment() == before


def pause_recovery() -> None:
    """Stop the schedule that starts dead parents again: a test that kills one looks by itself."""
    with get_client(sync_client=True) as client:
        client.pause_deployment(client.read_deployment_by_name("recover/recover").id)


@pytest.fixture
def own_stack_at(tmp_path: Path) -> Callable[[], Iterator[LocalStack]]:
    """What starts `own_stack`, for tests that change the environment before."""

    def started() -> Iterator[LocalStack]:
        stack = LocalStack(tmp_path / "prefect", home=REPO, say=lambda text: None, variables=SELDOM, wanted_port=0)
        try:
            stack.start()
            with stack.settings():
                pause_recovery()
                yield stack
        finally:
            stack.stop()

    return started


@pytest.fixture
def own_stack(own_stack_at: Callable[[], Iterator[LocalStack]]) -> Iterator[LocalStack]:
    """A Prefect of the test's own, whose server and workers it may kill."""
    yield from own_stack_at()


@pytest.fixture(autouse=True)
def no_process_outlives_its_run(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test that ran flows: none of their processes is left."""
    stacks = [request.getfixturevalue(name) for name in ("stack", "own_stack") if name in request.fixturenames]
    yield
    for stack in stacks:
        wait_for_processes_of_runs(stack)


def prefect_environment() -> dict[str, str]:
    """What the stack may set and must put back; torch and pytest have variables of their own."""
    return {name: text for name, text in os.environ.items() if name.startswith(("PREFECT_", "SEGUE_"))}
