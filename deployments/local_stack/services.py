"""Starts, checks and ends the processes of a local Prefect installation, through a supervisor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from segue.errors import OrchestratorError

_GRACE_SECONDS = 25.0


class Service(NamedTuple):
    """A module that runs as a separate process."""

    module: str
    arguments: tuple[str, ...]
    is_forked: bool = False
    """Whether the module's `main` runs in a fork of the supervisor, so that all forks share the imported modules."""


class Services:
    """The services of this process, which end together with this process, even after a SIGKILL."""

    def __init__(self, *, logs: Path, environment: Mapping[str, str], cwd: Path, kept_open: int) -> None:
        """Each service writes its output to `logs`/NAME.log, and inherits the file descriptor `kept_open`."""
        self.logs = logs
        self.processes: dict[str, psutil.Process] = {}
        self._known: dict[str, Service] = {}
        with (logs / "supervisor.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "segue.deployments.local_stack.supervisor", str(_GRACE_SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=cwd,
                pass_fds=(kept_open,),
                start_new_session=True,
            )

    def start(self, name: str, service: Service) -> psutil.Process:
        """Start a service, and return before it is ready.

        Raises:
            OrchestratorError: the process could not be started.
        """
        assert self._supervisor.stdout is not None
        self._known[name] = service
        try:
            self._order(**service._asdict(), log=str(self.logs / f"{name}.log"))
            self.processes[name] = psutil.Process(int(self._supervisor.stdout.readline()))
        except (OSError, ValueError, psutil.NoSuchProcess):
            raise self.ended_at_start(name) from None
        return self.processes[name]

    def start_again(self, name: str) -> None:
        """Restart an ended service, and return before the service is ready.

        Raises:
            OrchestratorError: the process could not be started.
        """
        self.start(name, self._known[name])

    def import_for_forks(self, module: str) -> None:
        """Let the supervisor import a module for forked services. Return at once. Later orders wait for the import."""
        with suppress(OSError):  # The next order reports an ended supervisor.
            self._order(imported=module)

    def _order(self, **order: object) -> None:
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(json.dumps(order).encode() + b"\n")
        self._supervisor.stdin.flush()

    def refuse_ended(self) -> None:
        """Check that all services are alive.

        Raises:
            OrchestratorError: a service has ended.
        """
        for name, process in self.processes.items():
            if not is_alive(process):
                raise self.ended_at_start(name)

    def end(self) -> None:
        """End all services and the processes that they started. Return after their end."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        with suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        self._supervisor.stdout.close()
        self._supervisor.wait()
        self.processes = {}

    def ended_at_start(self, name: str) -> OrchestratorError:
        """Return the error for a service that ended at its start."""
        what = f"the local Prefect's {name} ended at its start."
        return OrchestratorError(what=what, fix=f"Its output is in {self.logs / name}.log.")


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie does not count as running. Its supervisor has not noticed its end yet."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
