"""A cluster, and a real Prefect worker for each of its pools."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.utilities.callables import parameter_schema

from segue.deployments.kubernetes.kubernetes_pools import job_template, kubernetes_files
from segue.deployments.local_stack.stack import LocalStack
from tests.support.kube.client import KubeCluster, running_cluster

POOLS = {"kube-spot": "spot", "kube-on-demand": "on-demand", "kube-parents": "parents"}
FLOWS = {"kube-spot": "segment", "kube-on-demand": "segment", "kube-parents": "train"}
ON_KUBERNETES = {"pools": {"spot": "segment/kube-spot", "on_demand": "segment/kube-on-demand"}}
API_SECRETS = {"PREFECT_API_KEY": "the-key", "PREFECT_API_AUTH_STRING": "name:password"}
"""What the workers have from the secret segue-prefect-api. The server of the tests asks for neither."""


def settings_of_workers() -> dict[str, str]:
    """What workers have from the manifest of the namespace."""
    text = kubernetes_files("eks")["deployments/kubernetes/00-namespace.yaml"]
    (config,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "ConfigMap"]
    return dict(config["data"])


class KubeStack:
    """The cluster with its pools on a Prefect server."""

    def __init__(self, cluster: KubeCluster, stack: LocalStack, folder: Path) -> None:
        self.cluster, self._stack, self._folder = cluster, stack, folder
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def start_worker(self, pool: str) -> None:
        """Start the worker of a pool, as its Deployment does. Returns before it is ready."""
        own = API_SECRETS | self._stack.environment() | {"KUBECONFIG": str(self.cluster.config)}
        environment = settings_of_workers() | own
        command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "kubernetes", "--pool", pool]
        with (self._folder / f"{pool}.log").open("ab") as output:
            self._workers[pool] = subprocess.Popen(
                [*command, "--name", pool], env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def stop_worker(self, pool: str) -> None:
        """End the worker of a pool, as the end of its pod does."""
        worker = self._workers.pop(pool)
        worker.terminate()
        try:
            worker.wait(timeout=20)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()

    def close(self) -> None:
        for pool in list(self._workers):
            self.stop_worker(pool)


@pytest.fixture(scope="session")
def kube(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeStack]:
    pytest.importorskip("prefect_kubernetes", reason="the extra `kubernetes` is not installed")
    folder = tmp_path_factory.mktemp("kube")
    with running_cluster(folder) as cluster, get_client(sync_client=True) as client:
        started = KubeStack(cluster, stack, folder)
        try:
            for pool, kind in POOLS.items():
                template = job_template("eks", kind)
                client.create_work_pool(WorkPoolCreate(name=pool, type="kubernetes", base_job_template=template))
                deploy(client, pool)
                started.start_worker(pool)
            for pool in POOLS:
                wait_for_worker(client, pool)
            yield started
        finally:
            started.close()


def deploy(client: SyncPrefectClient, pool: str) -> None:
    """The deployment of a pool, of the same name."""
    flow = getattr(importlib.import_module(f"segue.flows.{FLOWS[pool]}"), FLOWS[pool])
    client.create_deployment(
        flow_id=client.create_flow(flow),
        name=pool,
        entrypoint=f"segue.flows.{FLOWS[pool]}.{FLOWS[pool]}",
        work_pool_name=pool,
        job_variables={"env": {"OMP_NUM_THREADS": "1"}},
        parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
        enforce_parameter_schema=True,
    )


def wait_for_worker(client: SyncPrefectClient, pool: str) -> None:
    give_up_at = time.monotonic() + 120
    while not any(worker.status == "ONLINE" for worker in client.read_workers_for_work_pool(pool)):
        assert time.monotonic() < give_up_at, f"no worker of {pool}"
        time.sleep(0.25)
