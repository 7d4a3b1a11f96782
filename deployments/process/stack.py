"""A whole Prefect on this machine: server on SQLite, two process pools, a worker each. All of it in one folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

import httpx
import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL, temporary_settings

from segue.errors import OrchestratorError

POOLS = ("spot", "on-demand")
USUAL_PORT = 4200

_TEMPLATE = Path(__file__).with_name("base-job-template.json")
_START_SECONDS = 90.0
_STOP_SECONDS = 10.0

Say = Callable[[str], None]


class LocalStack:
    """Starts in about ten seconds; `stop` leaves no process and nothing outside `folder`."""

    def __init__(self, folder: Path, *, home: Path, say: Say) -> None:
        self.folder, self.home, self._say = folder.absolute(), home.absolute(), say
        self.port = free_port(USUAL_PORT)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    @property
    def url(self) -> str:
        """The UI's address; the API is below it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.url}/api"

    def start(self) -> Self:
        """Server, pools, deployments, workers, in that order.

        Raises:
            OrchestratorError: one of them did not come up; names its log.
        """
        if not (self.home / "prefect.yaml").is_file():
            raise OrchestratorError(
                what=f"there is no prefect.yaml in {self.home}.",
                fix="Run this from the folder that holds prefect.yaml and flows/ (a clone of segue has both).",
            )
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self._say("starting the Prefect server")
        self._spawn("server", "server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        self._wait_for_server()
        self._say("creating the pools spot and on-demand")
        self._create_pools()
        self._say("registering the deployments of prefect.yaml")
        self._deploy()
        self._say("starting a worker for each pool")
        for pool in POOLS:
            self._spawn(f"worker-{pool}", "worker", "start", "--pool", pool, "--name", f"{pool}-worker")
        self._wait_for_workers()
        return self

    def stop(self) -> None:
        """End workers and server, and whatever they started."""
        trees = [process for top in reversed(self._processes) for process in _tree(top.pid)]
        for process in trees:
            _signal(process, psutil.Process.terminate)
        _, alive = psutil.wait_procs(trees, timeout=_STOP_SECONDS)
        for process in alive:
            _signal(process, psutil.Process.kill)
        psutil.wait_procs(alive, timeout=_STOP_SECONDS)
        for top in self._processes:
            top.wait(timeout=_STOP_SECONDS)
        for log in self._logs:
            log.close()

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Prefect's client in this process talks to this server."""
        with temporary_settings({PREFECT_API_URL: self.api_url}):
            yield

    def environment(self) -> dict[str, str]:
        """What every process of the stack runs with."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return own | {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "2",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_WORKER_PREFETCH_SECONDS": "1",
            "PREFECT_CLI_PROMPT": "false",
            "SEGUE_HOME": str(self.home),
        }

    def _spawn(self, name: str, *arguments: str) -> None:
        log = (self.folder / "logs" / f"{name}.log").open("ab")
        self._logs.append(log)
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "prefect", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                cwd=self.home,
                start_new_session=True,
            )
        )

    def _wait_for_server(self) -> None:
        self._wait_until(lambda: _answers(f"{self.api_url}/health"), name="server")

    def _wait_for_workers(self) -> None:
        self._wait_until(lambda: all(_has_worker(self.api_url, pool) for pool in POOLS), name=f"worker-{POOLS[0]}")

    def _create_pools(self) -> None:
        template = json.loads(_TEMPLATE.read_text())
        with self.settings(), get_client(sync_client=True) as client:
            for pool in POOLS:
                try:
                    client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
                except ObjectAlreadyExists:
                    continue  # A folder that was used before.

    def _deploy(self) -> None:
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        log = self.folder / "logs" / "deploy.log"
        with log.open("ab") as output:
            code = subprocess.call(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment(), cwd=self.home
            )
        if code != 0:
            raise OrchestratorError(what="`prefect deploy --all` failed.", fix=f"Its output is in {log}.")

    def _wait_until(self, is_ready: Callable[[], bool], *, name: str) -> None:
        log = self.folder / "logs" / f"{name}.log"
        give_up_at = time.monotonic() + _START_SECONDS
        while not is_ready():
            dead = next((p for p in self._processes if p.poll() is not None), None)
            if dead is not None:
                raise OrchestratorError(what="a part of the local Prefect ended at start.", fix=f"See {log.parent}.")
            if time.monotonic() > give_up_at:
                what = f"the local Prefect's {name} did not come up within {_START_SECONDS:.0f} s."
                raise OrchestratorError(what=what, fix=f"Its output is in {log}.")
            time.sleep(0.2)


def free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else one the system picks."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OrchestratorError(what="no port is free on 127.0.0.1.", fix="Close something that listens there.")


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


def _tree(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, send: Callable[[psutil.Process], None]) -> None:
    try:
        send(process)
    except psutil.NoSuchProcess:
        return  # Ended by itself meanwhile.
