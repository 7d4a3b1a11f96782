"""A whole Prefect on this machine: server on SQLite, three process pools, a worker each. All of it in one folder."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Self

import httpx
import psutil
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from segue.deployments.process.registration import POOLS, crash_leftovers, create_pools, register_deployments

from segue.errors import OrchestratorError

USUAL_PORT = 4200

_START_SECONDS = 180.0
_GRACE_SECONDS = 25.0
_PORT_TRIES = 3
_SERVER = "segue.deployments.process.server"
_WORKER = "segue.deployments.process.local_worker"

Say = Callable[[str], None]


class LocalStack:
    """Starts in about ten seconds; `stop`, and any end of this process, ends all of it.

    Nothing is written outside `folder`. A folder that another command uses is not shared: this one then has its own
    server, database and logs in it.
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
        """`variables` are added to the environment of every process that the stack starts, or replace the stack's own.

        A server whose port is taken gets another one; with `wanted_port` 0 it never has one that others would want.
        """
        self.folder, self.home, self._say = folder.absolute(), home.absolute(), say
        self._wanted_port = wanted_port
        self._variables = dict(variables or {})
        self.port = 0
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._services: dict[str, psutil.Process] = {}
        self._commands: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._lock, self._suffix = -1, ""
        self._database: sqlite3.Connection | None = None

    @property
    def url(self) -> str:
        """The UI's address; the API is below it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.url}/api"

    @property
    def logs(self) -> Path:
        """One file for each process of the stack."""
        return self.folder / f"logs{self._suffix}"

    @property
    def _home_of_prefect(self) -> Path:
        return self.folder / f"prefect{self._suffix}"

    def start(self) -> Self:
        """Server, pools, workers, deployments. The workers start with the server, and wait for their pools.

        Raises:
            OrchestratorError: one of them did not come up; names its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        self.logs.mkdir(exist_ok=True)
        self._say(f"starting the Prefect server, and a worker for each of its pools {', '.join(POOLS)}")
        self._start_services()
        self._keep_log_of_database()
        with self.settings(), get_client(sync_client=True) as client:
            crash_leftovers(client)
            create_pools(client, working_dir=self.home)
            register_deployments(client)
        for pool in POOLS:
            self._wait_until(lambda pool=pool: _has_worker(self.api_url, pool), name=f"worker-{pool}")  # type: ignore[misc]
        return self

    @property
    def services(self) -> Mapping[str, psutil.Process]:
        """The processes of the server, named `server`, and of the workers, named `worker-` and their pool."""
        return self._services

    def start_again(self, name: str) -> None:
        """Start a service that has ended, as a service manager would. Returns before it is ready.

        Raises:
            OrchestratorError: the process could not be started.
        """
        module, arguments = self._commands[name]
        self._spawn(name, *arguments, module=module)

    def stop(self) -> None:
        """End workers, server and whatever they started; returns when all are gone."""
        self._end_supervisor()
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Prefect's client in this process talks to this server."""
        with temporary_settings({PREFECT_API_URL: self.api_url}):
            yield

    def environment(self) -> dict[str, str]:
        """What every process of the stack runs with."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return (
            own
            | {
                "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
                "PREFECT_HOME": str(self._home_of_prefect),
                "PREFECT_API_URL": self.api_url,
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # The new database has them.
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
        """Find files in the folder that no living stack uses. The kernel frees a lock when its last holder ends.

        The supervisor holds it too: after a SIGKILL of this process it is free once everything has ended.
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

    def _start_services(self) -> None:
        self.port = free_port(0 if self._suffix else self._wanted_port)
        for tries_left in reversed(range(_PORT_TRIES)):
            self._start_supervisor()
            self._spawn("server", str(self.port), module=_SERVER)
            for pool in POOLS:
                self._spawn(f"worker-{pool}", pool, f"{pool}-worker", module=_WORKER)
            importlib.import_module("segue.flows.train")  # What the deployments need, while the server starts.
            try:
                self._wait_until(self._server_answers, name="server")
            except OrchestratorError:
                if not tries_left or not _is_taken(self.port):
                    raise
                # Another process took the port since it was looked at.
                self._end_supervisor()
                self.port = free_port(0)
                continue
            return

    def _keep_log_of_database(self) -> None:
        """Keep one reader of the server's SQLite database open as long as the stack. A server on PostgreSQL has none.

        The last connection that closes removes the write-ahead log, and who opens the database meanwhile may be told
        that it is busy (https://www.sqlite.org/wal.html, "Sometimes Queries Return SQLITE_BUSY In WAL Mode"). The
        server opens a connection for every request: without this reader it refuses many, and an engine whose request is
        refused waits for two seconds.
        """
        database = self._home_of_prefect / "prefect.db"
        if database.exists():
            self._database = sqlite3.connect(database, check_same_thread=False)
            self._database.execute("SELECT count(*) FROM sqlite_master").fetchall()

    def _start_supervisor(self) -> None:
        command = [sys.executable, "-m", "segue.deployments.process.supervisor", str(_GRACE_SECONDS)]
        with (self.logs / "supervisor.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment(),
                cwd=self.home,
                pass_fds=(self._lock,),
                start_new_session=True,
            )

    def _end_supervisor(self) -> None:
        supervisor, self._supervisor, self._services = self._supervisor, None, {}
        if supervisor is None:
            return
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        with suppress(BrokenPipeError):
            supervisor.stdin.close()
        supervisor.stdout.close()
        supervisor.wait()

    def _spawn(self, name: str, *arguments: str, module: str) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._commands[name] = module, arguments
        order = {"argv": [sys.executable, "-m", module, *arguments], "log": str(self.logs / f"{name}.log")}
        try:
            self._supervisor.stdin.write(json.dumps(order).encode() + b"\n")
            self._supervisor.stdin.flush()
            self._services[name] = psutil.Process(int(self._supervisor.stdout.readline()))
        except (OSError, ValueError, psutil.NoSuchProcess):
            raise self._has_ended(name) from None

    def _server_answers(self) -> bool:
        # Another server may answer at this port: ours must be the one that listens.
        return _listens(self._services["server"], self.port) and _answers(f"{self.api_url}/health")

    def _wait_until(self, is_ready: Callable[[], bool], *, name: str) -> None:
        give_up_at = time.monotonic() + _START_SECONDS
        while not is_ready():
            dead = next((service for service, process in self._services.items() if not _is_alive(process)), None)
            if dead is not None:
                raise self._has_ended(dead)
            if time.monotonic() > give_up_at:
                what = f"the local Prefect's {name} did not come up within {_START_SECONDS:.0f} s."
                raise OrchestratorError(what=what, fix=f"Its output is in {self.logs / name}.log.")
            time.sleep(0.1)

    def _has_ended(self, name: str) -> OrchestratorError:
        what = f"the local Prefect's {name} ended at its start."
        return OrchestratorError(what=what, fix=f"Its output is in {self.logs / name}.log.")


def _is_alive(process: psutil.Process) -> bool:
    # The supervisor need not have taken note of its end yet.
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port(wanted: int) -> int:
    """`wanted` if no process listens there, else one the system picks."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OrchestratorError(what="no port is free on 127.0.0.1.", fix="Close something that listens there.")


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
