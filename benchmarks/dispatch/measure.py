"""Flow runs in turn on the spot pool of a local Prefect. Each flow run is a process that writes its start time."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate

from segue.deployments.follow import open_client
from segue.deployments.local_stack.stack import LocalStack
from segue.errors import OrchestratorError
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.records import Capacity, SegmentPlan
from segue.spec import RunSpec

_DEPLOYMENT = "segment/spot"
_LONGEST_SECONDS = 180.0
_LOOK_SECONDS = 0.005
_REQUEST = re.compile(r'"([A-Z]+) (\S+) HTTP/[\d.]+" (\d{3})')
"""A line of the server's log of its requests."""
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/)\d+(?=/|$)")


def measure(count: int, *, busy_loops: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of `count` starts, and the number of refused requests to the server, including requests of its workers.

    Raises:
        OrchestratorError: a process did not start within three minutes.
    """
    with tempfile.TemporaryDirectory(prefix="segue-dispatch-") as name:
        folder = Path(name)
        variables = {"PREFECT_SERVER_LOGGING_LEVEL": "INFO", "SEGUE_DISPATCH": str(folder)}
        begun = time.monotonic()
        stack = LocalStack(folder / "prefect", home=folder, say=say, variables=variables, wanted_port=0)
        try:
            stack.start()
            up_seconds = time.monotonic() - begun
            with stack.settings(), open_client() as client, _busy(busy_loops):
                seconds = _starts(client, folder, count, say)
            requests = requests_of((stack.logs / "server.log").read_text(encoding="utf-8", errors="replace"))
        finally:
            stack.stop()
    return report(seconds, requests, busy_loops=busy_loops, up_seconds=up_seconds)


def _starts(client: SyncPrefectClient, folder: Path, count: int, say: Callable[[str], None]) -> list[float]:
    script = folder / "begin.py"
    script.write_text(
        "import os, time\n"
        "begun = time.clock_gettime(time.CLOCK_MONOTONIC)\n"
        "name = os.path.join(os.environ['SEGUE_DISPATCH'], os.environ['PREFECT__FLOW_RUN_ID'])\n"
        "with open(name + '.new', 'w') as file:\n"
        "    file.write(str(begun))\n"
        "os.replace(name + '.new', name)\n",
        encoding="utf-8",
    )
    deployment = client.read_deployment_by_name(_DEPLOYMENT)
    command = f"{sys.executable} -S {script}"
    client.update_deployment(deployment.id, DeploymentUpdate(job_variables={"command": command}))
    spec = RunSpec.parse({"run_id": "dispatch", "recipe": "none:none", "steps": 1, "store": {"url": str(folder)}})
    orchestrator = PrefectOrchestrator(log_id="dispatch")
    seconds = []
    for number in range(count):
        begun = time.clock_gettime(time.CLOCK_MONOTONIC)
        plan = SegmentPlan(segment=number, attempt=1, capacity=Capacity.SPOT, deployment=_DEPLOYMENT)
        handle = orchestrator.submit(spec, plan)
        seconds.append(_began(folder / str(orchestrator.flow_run_id(handle))) - begun)
        if (number + 1) % 10 == 0 or number + 1 == count:
            say(f"{number + 1} of {count} started, the last after {seconds[-1]:.2f} s")
    orchestrator.close()
    return seconds


def _began(file: Path) -> float:
    give_up_at = time.monotonic() + _LONGEST_SECONDS
    while not file.exists():
        if time.monotonic() > give_up_at:
            raise OrchestratorError(
                what=f"a flow run had no process after {_LONGEST_SECONDS:.0f} s.",
                fix="run it on a machine that does less.",
            )
        time.sleep(_LOOK_SECONDS)
    return float(file.read_text(encoding="utf-8"))


@contextmanager
def _busy(loops: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def requests_of(log: str) -> Counter[tuple[str, int]]:
    """Number of answers for each type of request and each status, from the server's log of its requests."""
    found: Counter[tuple[str, int]] = Counter()
    for method, path, status in _REQUEST.findall(log):
        found[f"{method} {_ID.sub('ID', path.split('?')[0])}", int(status)] += 1
    return found


def report(
    seconds: list[float], requests: Counter[tuple[str, int]], *, busy_loops: int, up_seconds: float
) -> dict[str, Any]:
    """The figures of a measurement, as the command prints them."""
    refused = {name: times for (name, status), times in requests.items() if status >= 500}
    ordered = sorted(seconds)
    return {
        "dispatches": len(seconds),
        "busy_loops": busy_loops,
        "stack_up_seconds": round(up_seconds, 2),
        "start_median_seconds": round(statistics.median(ordered), 3),
        "start_p99_seconds": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
        "start_longest_seconds": round(ordered[-1], 3),
        "requests": sum(requests.values()),
        "requests_refused": sum(refused.values()),
        "refused_by_request": refused,
    }
