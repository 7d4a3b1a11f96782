"""A local Prefect behind a gate. If the server or a worker ends, it is started again, as by a service manager."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from benchmarks.chaos.gate import Gate
from benchmarks.common.child import ROOT, child_environment
from segue.deployments.local_stack.stack import POOLS, LocalStack
from segue.prefect.api import quick_client

SERVER = "server"
WORKERS = tuple(f"worker-{pool}" for pool in POOLS)
_RESTART_SECONDS = 2.0
"""Time from the end of a service to its next start, like systemd's RestartSec."""
_RECOVER_EVERY_SECONDS = 5.0
"""Pause between two recoveries; the deployment `recover` has 30 seconds."""


class ChaosStack(LocalStack):
    """A local Prefect whose server all other processes reach through a gate."""

    def __init__(self, folder: Path, *, gate: Gate, variables: Mapping[str, str], say: Callable[[str], None]) -> None:
        # A port of its own: while the server is down, another Prefect of this machine must not take its place.
        super().__init__(folder, home=ROOT, say=say, variables=variables, wanted_port=0)
        self._gate = gate

    @property
    def api_url(self) -> str:
        return f"{self._gate.url}/api"

    @contextmanager
    def direct(self) -> Iterator[SyncPrefectClient]:
        """A client that no fault of the gate affects, with short timeouts."""
        with temporary_settings({PREFECT_API_URL: f"{self.url}/api"}), quick_client() as client:
            yield client


class ServiceManager:
    """Starts services that have ended again, except services that a fault keeps down."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self._ended_at: dict[str, float] = {}
        self.restarts = 0

    def tick(self, *, kept_down: set[str]) -> None:
        for name, process in self._stack.services.items():
            if name in kept_down or is_alive(process):
                self._ended_at.pop(name, None)
            elif time.monotonic() - self._ended_at.setdefault(name, time.monotonic()) >= _RESTART_SECONDS:
                del self._ended_at[name]
                self._stack.start_again(name)
                self.restarts += 1


class Recovery:
    """`segue recover` in a loop, as a schedule would run it."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = self._ended_at = time.monotonic()
        self.runs = 0

    @property
    def seconds_running(self) -> float | None:
        """Seconds for which the current recovery has run; None if no recovery runs."""
        return None if self._process is None else time.monotonic() - self._started_at

    def tick(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process, self._ended_at = None, time.monotonic()
        if self._process is None and time.monotonic() - self._ended_at >= _RECOVER_EVERY_SECONDS:
            self._start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        environment = child_environment(**self._stack.environment() | {"COLUMNS": "400", "NO_COLOR": "1"})
        with (self._stack.logs / "recover.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from segue.cli.main import main; main()", "recover"],
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started_at = time.monotonic()
        self.runs += 1


def tree(process: psutil.Process) -> list[psutil.Process]:
    """A process and all its descendants; empty if the process has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
