"""Runs a complete Prefect installation in one folder: a server on SQLite, and three process pools with a worker
each."""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self

import httpx
import psutil

from segue.deployments.local_stack.database import keep_template, template_file
from segue.deployments.local_stack.services import Service, Services
from segue.errors import OrchestratorError

USUAL_PORT = 4200
POOLS = ("spot", "on-demand", "parents")

_START_SECONDS = 180.0
_PORT_TRIES = 3
_SERVER = "segue.deployments.local_stack.stack_server"
_WORKER = "segue.deployments.local_stack.local_worker"

Say = Callable[[str], None]


class _Beginning(NamedTuple):
    """The time of a stack's start, and whether the stack is new."""

    at: float
    is_new: bool
    """Whether the server had no database before this start."""


class LocalStack:
    """A local Prefect installation that starts in about eight seconds, and ends with `stop` or with this process.

    Call `begin` before you import Prefect, because the import takes two seconds. This module does not import Prefect,
    and writes nothing outside `folder`. If another command uses the folder, this stack has its own server, database and
    logs in the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        home: Path,
        say: Say,
        variables: Mapping[str, str] | None = None,
        wanted_port: int = USUAL_PORT,
    ) -> None:
        """`variables` override the stack's environment variables in every process of the stack.

        If the wanted port is in use, the server gets another port. If `wanted_port` is 0, the system chooses the port.
        """
        self.folder, self.home, self._say = folder.absolute(), home.absolute(), say
        self._wanted_port = wanted_port
        self._variables = dict(variables or {})
        self.port = 0
        self._services: Services | None = None
        self._beginning = _Beginning(0.0, False)
        self._lock, self._suffix = -1, ""
        self._database: sqlite3.Connection | None = None

    @property
    def url(self) -> str:
        """URL of the UI, and the beginning of the API's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.url}/api"

    @property
    def logs(self) -> Path:
        """The folder that contains a log file for each process of the stack."""
        return self.folder / f"logs{self._suffix}"

    @property
    def _home_of_prefect(self) -> Path:
        return self.folder / f"prefect{self._suffix}"

    @property
    def _database_file(self) -> Path:
        return self._home_of_prefect / "prefect.db"

    def begin(self) -> None:
        """Start the server, and return before it is ready. The method `start` waits for it."""
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        self.logs.mkdir(exist_ok=True)
        self._beginning = _Beginning(began, is_new=not self._database_file.exists())
        self._say(f"starting the Prefect server, and a worker for each of its pools {', '.join(POOLS)}")
        self.port = free_port(0 if self._suffix else self._wanted_port)
        self._start_server()

    def start(self) -> Self:
        """Start the server, pools, deployments and workers.

        Raises:
            OrchestratorError: a process did not start. The error names its log file.
        """
        if self._services is None:
            self.begin()
        # These imports take three seconds, so they run while the server starts.
        from prefect.client.orchestration import get_client

        from segue.deployments.local_stack import registration

        described = registration.describe_deployments()
        self._await_server()
        self._keep_log_of_database()
        with self.settings(), get_client(sync_client=True) as client:
            registration.crash_leftovers(client)
            registration.create_pools(client, POOLS, working_dir=self.home)
            if registration.register_deployments(client, described) and self._beginning.is_new:
                keep_template(self._database_file, template=template_file())
            for pool in POOLS:
                self._started.start(f"worker-{pool}", Service(_WORKER, (pool, f"{pool}-worker"), is_forked=True))
            registration.schedule_recovery(client, described)
        for pool in POOLS:
            self._wait_until(lambda pool=pool: _has_worker(self.api_url, pool), name=f"worker-{pool}")  # type: ignore[misc]
        self._say(f"Prefect started in {time.monotonic() - self._beginning.at:.0f} s; Prefect UI: {self.url}")
        return self

    @property
    def services(self) -> Mapping[str, psutil.Process]:
        """The processes of the stack by name: `server`, and `worker-POOL` for each pool."""
        return self._started.processes

    def start_again(self, name: str) -> None:
        """Restart an ended service, and return before the service is ready.

        Raises:
            OrchestratorError: the process could not be started.
        """
        self._started.start_again(name)

    @property
    def _started(self) -> Services:
        assert self._services is not None, "the stack has not been started"
        return self._services

    def stop(self) -> None:
        """End the workers, the server and the processes that they started. Return after their end."""
        self._end_services()
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def settings(self) -> Iterator[None]:
        """While the block runs, let Prefect's client in this process use this server."""
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self.api_url}):
            yield

    def environment(self) -> dict[str, str]:
        """Return the environment variables of every process of the stack."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return (
            own
            | {
                "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
                "PREFECT_HOME": str(self._home_of_prefect),
                "PREFECT_API_URL": self.api_url,
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                # The new database already has the block types. To compare them, the server would import all
                # collections.
                "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
                "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
                "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
                "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "2",
                "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
                "PREFECT_WORKER_QUERY_SECONDS": "0.5",
                "PREFECT_WORKER_PREFETCH_SECONDS": "1",
                "PREFECT_CLI_PROMPT": "false",
                "SEGUE_HOME": str(self.home),
            }
            | self._variables
        )

    def _take_lock(self) -> None:
        """Choose file names in the folder, and lock them, so that no other running stack uses them.

        The supervisor also holds the lock, and the kernel frees it after the end of its last holder. Therefore, if this
        process gets a SIGKILL, the lock is free after all processes of the stack have ended.
        """
        for number in count(1):
            self._suffix = "" if number == 1 else f"-{number}"
            lock = os.open(self.folder / f"stack{self._suffix}.lock", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._lock = lock
            return

    def _start_server(self) -> None:
        """Start a supervisor and the server, and let the supervisor import the modules of the workers."""
        self._services = Services(logs=self.logs, environment=self.environment(), cwd=self.home, kept_open=self._lock)
        self._services.start("server", Service(_SERVER, (str(self.port),)))
        self._services.import_for_forks(_WORKER)

    def _await_server(self) -> None:
        """Wait until the server answers.

        If another process has taken the port, restart the server with another port.
        """
        for tries_left in reversed(range(_PORT_TRIES)):
            try:
                self._wait_until(self._server_answers, name="server")
            except OrchestratorError:
                if not tries_left or not _is_taken(self.port):
                    raise
                self._end_services()
                self.port = free_port(0)
                self._start_server()
                continue
            return

    def _end_services(self) -> None:
        services, self._services = self._services, None
        if services is not None:
            services.end()

    def _keep_log_of_database(self) -> None:
        """Keep one connection to the server's SQLite database open while the stack runs.

        When the last connection closes, SQLite removes the write-ahead log. If a process opens the database during this
        removal, it may get SQLITE_BUSY (https://www.sqlite.org/wal.html, "Sometimes Queries Return SQLITE_BUSY In WAL
        Mode"). The server opens a connection for every request. Without the connection of this method, the server
        would refuse many requests, and an engine waits for two seconds after a refused request. PostgreSQL needs no
        such connection.
        """
        if self._database_file.exists():
            self._database = sqlite3.connect(self._database_file, check_same_thread=False)
            self._database.execute("SELECT count(*) FROM sqlite_master").fetchall()

    def _server_answers(self) -> bool:
        # Another server may answer at this port, so check that the server of this stack listens there.
        return _listens(self.services["server"], self.port) and _answers(f"{self.api_url}/health")

    def _wait_until(self, is_ready: Callable[[], bool], *, name: str) -> None:
        give_up_at = time.monotonic() + _START_SECONDS
        while not is_ready():
            self._started.refuse_ended()
            if time.monotonic() > give_up_at:
                what = f"the local Prefect's {name} did not come up within {_START_SECONDS:.0f} s."
                raise OrchestratorError(what=what, fix=f"Its output is in {self.logs / name}.log.")
            time.sleep(0.1)


def free_port(wanted: int) -> int:
    """Return the port `wanted`. If a process already uses this port, return a free port that the system chooses."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OrchestratorError(what="no port is free on 127.0.0.1.", fix="Close a program that listens there.")


def _is_taken(port: int) -> bool:
    return free_port(port) != port


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        tree = [process, *process.children(recursive=True)]
        sockets = [found for one in tree for found in one.net_connections(kind="tcp")]
    except psutil.Error:
        return False
    return any(found.status == psutil.CONN_LISTEN and found.laddr.port == port for found in sockets)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _has_worker(api_url: str, pool: str) -> bool:
    try:
        answer = httpx.post(f"{api_url}/work_pools/{pool}/workers/filter", json={}, timeout=5)
        return any(worker.get("status") == "ONLINE" for worker in answer.raise_for_status().json())
    except httpx.HTTPError:
        return False
