"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import settings

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.testing.metadata import NO_SERVICE
from tests.support.forked_ranks import RanksForkServer
from tests.support.forked_trainers import ForkServer

TOGETHER = {"stores": "s3"}
"""Folders whose tests share servers that start slowly: a parallel run keeps each folder in one process.

The tests of the flows run alone, because they measure times of a whole Prefect.
"""
APART = ("gpu",)
"""Folders whose tests share nothing: most of their time is the start of processes on a device."""


# The tests may run on a machine of a cloud, whose notices are not for them.
os.environ.update(NO_SERVICE)

# A shell starts what runs beside it with SIGINT ignored, and the processes of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a test is not slow because the machine is busy.
settings.register_profile("segue", deadline=None)
settings.load_profile("segue")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests with shared fixtures together: these folders as a whole, all others by file, or each alone."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = PurePosixPath(nodeid.partition("::")[0])
            if path.parent.name in APART:
                return nodeid
            return TOGETHER.get(path.parent.name, str(path))

    return ByServer(config, log)


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """Trainer processes that start quickly: forked from a process that has imported torch."""
    return ForkServer()


@pytest.fixture(scope="session")
def ranks_fork_server(fork_server: ForkServer) -> RanksForkServer:
    """Attempts of several ranks, forked from a process that has imported torch."""
    return RanksForkServer(fork_server)


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., RunSpec]:
    """A small run of the tiny recipe in the test's own store."""

    def make(**fields: Any) -> RunSpec:
        common = {
            "run_id": "tiny",
            "recipe": "segue.testing.recipes:tiny",
            "steps": 40,
            "threads": 1,
            "store": {"url": str(tmp_path / "store")},
            "checkpoints": {"every_steps": 10, "staging_buffers": 2},  # With one, a save waits on a busy machine.
            "liveness": {"heartbeat_seconds": 0.05},
            "continuity": {"rehearsal": "off"},  # A fresh process takes longer than most of these runs.
        }
        return RunSpec.parse(common | fields)

    return make


@pytest.fixture
def open_log() -> Callable[[RunSpec], RunLog]:
    return lambda spec: open_run(spec, clock=SystemClock())
