"""The cluster as a test sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.kube.objects import Object

ROOT = Path(__file__).parents[3]


class KubeCluster:
    """A running cluster; faults begin at once and go on beside the test."""

    def __init__(self, url: str, config: Path, config_of_person: Path) -> None:
        """Give the configuration of the workers' account, and that of a person who may do everything."""
        self.url, self.config, self.config_of_person = url, config, config_of_person

    def evict(self, job: str, *, grace_seconds: float) -> None:
        """Evict the pods of a job, as a drain of their node does."""
        self._fault("evict", job=job, grace_seconds=grace_seconds)

    def lose_node(self, job: str, *, reported_after_seconds: float) -> None:
        """Take the node of a job's pod away; the cluster notices it later."""
        self._fault("lose-node", job=job, reported_after_seconds=reported_after_seconds)

    def delete(self, job: str, *, cascade: str) -> None:
        """Delete a job, as a person does with kubectl and its option --cascade: background (default) or foreground."""
        self._fault("delete", job=job, cascade=cascade)

    def set(self, **mode: bool) -> None:
        """Change what the cluster does: `has_nodes`, `has_image`, `is_api_away`."""
        self._fault("mode", **{name: str(value).lower() for name, value in mode.items()})

    def jobs_of(self, flow_run_id: object) -> list[Object]:
        """Every job that was created for a flow run and is not deleted."""
        jobs: list[Object] = self._get("pods")["jobs"]
        return [job for job in jobs if job["metadata"]["labels"]["prefect.io/flow-run-id"] == str(flow_run_id)]

    def pods_of(self, job: str) -> list[Object]:
        return [pod for pod in self._get("pods")["pods"] if pod["metadata"]["labels"]["job-name"] == job]

    def requests(self) -> dict[str, int]:
        """How often each thing was asked for: verb and resource."""
        return dict(self._get("requests"))

    def _fault(self, what: str, **given: Any) -> None:
        httpx.post(f"{self.url}/faults/{what}", params=given, timeout=30).raise_for_status()

    def _get(self, what: str) -> Any:
        return httpx.get(f"{self.url}/faults/{what}", timeout=30).raise_for_status().json()


@contextmanager
def running_cluster(folder: Path) -> Iterator[KubeCluster]:
    """A cluster in a process of its own, with its logs and the configuration of its clients in `folder`."""
    logs = folder / "pods"
    logs.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.support.kube", str(logs)]
    # The images of the pods: this checkout, with this Python.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    with (folder / "cluster.log").open("wb") as errors:
        server = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        assert port, (folder / "cluster.log").read_text()
        url = f"http://127.0.0.1:{port}"
        person = _config(url, folder / "kubeconfig-person", token="person")
        yield KubeCluster(url, _config(url, folder / "kubeconfig"), person)
    finally:
        server.terminate()
        server.wait(timeout=30)
        server.stdout.close()


def _config(url: str, path: Path, *, token: str = "worker") -> Path:
    context = {"cluster": "local", "user": "worker", "namespace": "segue"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "contexts": [{"name": "local", "context": context}],
        "clusters": [{"name": "local", "cluster": {"server": url}}],
        "users": [{"name": "worker", "user": {"token": token}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path
