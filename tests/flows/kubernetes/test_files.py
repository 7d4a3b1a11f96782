"""The files for Kubernetes: jobs as Prefect's own worker renders them, manifests as a client of the API reads them."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun

from segue.deployments.containers import POOLS, SIGTERM_VARIABLE
from segue.deployments.kubernetes.clouds import CLOUDS, POOL_LABEL
from segue.deployments.kubernetes.kubernetes_pools import kubernetes_files
from tests.support.kube.rights import Request, may

REPO = Path(__file__).parents[3]
FOLDER = REPO / "deployments/kubernetes"
ALL = [(cloud, pool) for cloud in CLOUDS for pool in POOLS]
client = pytest.importorskip("kubernetes_asyncio.client", reason="the extra `kubernetes` is not installed")
KINDS = {
    "Namespace": client.V1Namespace,
    "ConfigMap": client.V1ConfigMap,
    "ServiceAccount": client.V1ServiceAccount,
    "Role": client.V1Role,
    "RoleBinding": client.V1RoleBinding,
    "PodDisruptionBudget": client.V1PodDisruptionBudget,
    "Deployment": client.V1Deployment,
    "Job": client.V1Job,
}


def rendered(cloud, pool, **variables) -> dict[str, Any]:
    """The job that Prefect's worker creates for a flow run of the pool."""
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    template = json.loads(kubernetes_files(cloud)[f"deployments/kubernetes/pools/{pool}.json"])
    run = FlowRun(id=uuid4(), name="run-seg0-a1", flow_id=uuid4())

    async def render():
        # No server is asked, because nothing refers to one of its blocks.
        async with PrefectClient("http://127.0.0.1:1/api") as nobody:
            return await KubernetesWorkerJobConfiguration.from_template_and_values(template, variables, client=nobody)

    configuration = asyncio.run(render())
    configuration.prepare_for_flow_run(run)
    return configuration.job_manifest


def pod_of(job):
    return job["spec"]["template"]["spec"]


def understood(document: dict[str, Any]) -> dict[str, Any]:
    """What a client of the API keeps of a document: a field with a wrong name or in a wrong place is lost."""

    async def read_and_write():
        async with client.ApiClient() as api:
            found = api.deserialize(SimpleNamespace(data=json.dumps(document)), KINDS[document["kind"]].__name__)
            return api.sanitize_for_serialization(found)

    return asyncio.run(read_and_write())


def without_none(value):
    if isinstance(value, dict):
        return {name: without_none(inner) for name, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("cloud", "pool"), ALL)
def test_a_job_has_no_field_that_kubernetes_does_not_know(cloud, pool):
    job = without_none(rendered(cloud, pool, gpus="1"))  # The client writes every quantity as text.
    for quirk in ("parallelism", "completions"):  # Prefect's worker wants them in the pod.
        del pod_of(job)[quirk]
    assert understood(job) == job


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_manifest_has_no_field_that_kubernetes_does_not_know(cloud):
    texts = {path: text for path, text in kubernetes_files(cloud).items() if path.endswith(".yaml")}
    assert len(texts) == len(list(FOLDER.glob("*.yaml")))
    for text in texts.values():
        for document in yaml.safe_load_all(text):
            assert understood(document) == document


@pytest.mark.parametrize(("cloud", "pool"), ALL)
def test_no_pod_is_started_again_behind_the_policy(cloud, pool):
    job = rendered(cloud, pool, env={"MINE": "1"})
    assert job["spec"]["backoffLimit"] == 0
    assert pod_of(job)["restartPolicy"] == "Never"
    variables = {one["name"]: one.get("value") for one in pod_of(job)["containers"][0]["env"]}
    assert (variables[SIGTERM_VARIABLE], variables["MINE"]) == ("crash", "1")
    assert job["spec"]["ttlSecondsAfterFinished"] > 0


@pytest.mark.parametrize(("cloud", "pool"), ALL)
def test_the_engine_is_started_directly_by_the_entrypoint_of_the_image(cloud, pool):
    (container,) = pod_of(rendered(cloud, pool))["containers"]
    module = "prefect.engine" if pool == "parents" else "segue.flows.prefect_engine"
    assert container["args"] == ["python", "-m", module]
    assert "command" not in container


@pytest.mark.parametrize("cloud", CLOUDS)
def test_segments_have_shared_memory_a_fast_folder_and_accelerators_and_parents_have_none(cloud):
    for pool in ("spot", "on-demand"):
        pod = pod_of(rendered(cloud, pool, gpus=2, shared_memory="16Gi"))
        (container,) = pod["containers"]
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert places == {"shared-memory": "/dev/shm", "fast": "/fast"}
        assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
        assert container["resources"]["requests"] == container["resources"]["limits"]
    parent = pod_of(rendered(cloud, "parents"))
    assert "volumes" not in parent
    assert "nvidia.com/gpu" not in parent["containers"][0]["resources"]["limits"]


SPOT_NODES = {
    "eks": ("karpenter.sh/capacity-type", "spot"),
    "gke": ("cloud.google.com/gke-spot", "true"),
    "aks": ("kubernetes.azure.com/scalesetpriority", "spot"),
}
ACCELERATORS = {
    "eks": "karpenter.k8s.aws/instance-gpu-count",
    "gke": "cloud.google.com/gke-accelerator",
    "aks": "kubernetes.azure.com/accelerator",
}


@pytest.mark.parametrize("cloud", SPOT_NODES)
def test_spot_runs_on_spot_nodes(cloud):
    spot = pod_of(rendered(cloud, "spot"))
    assert spot["nodeSelector"] == dict([SPOT_NODES[cloud]])
    assert unwanted_labels(spot) == []


@pytest.mark.parametrize("pool", ["spot", "on-demand"])
@pytest.mark.parametrize("cloud", SPOT_NODES)
def test_a_segment_prefers_other_nodes_than_those_that_it_is_to_avoid_and_knows_its_own(cloud, pool):
    pod = pod_of(rendered(cloud, pool, avoided_nodes=["node-3"]))
    (preferred,) = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-3"]}
    assert preferred["preference"]["matchExpressions"] == [rule]
    node = {"name": "SEGUE_KUBERNETES_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert node in pod["containers"][0]["env"]


@pytest.mark.parametrize("pool", ["on-demand", "parents"])
@pytest.mark.parametrize("cloud", SPOT_NODES)
def test_on_demand_and_parents_run_on_other_nodes_and_parents_on_none_with_accelerators(cloud, pool):
    pod = pod_of(rendered(cloud, pool))
    unwanted = [] if cloud == "eks" else [SPOT_NODES[cloud][0]]
    unwanted += [ACCELERATORS[cloud]] if pool == "parents" else []
    assert pod.get("nodeSelector") == ({"karpenter.sh/capacity-type": "on-demand"} if cloud == "eks" else None)
    assert unwanted_labels(pod) == unwanted


def unwanted_labels(pod):
    """Labels that a node must not have for a pod."""
    required = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    expressions = [one for term in required.get("nodeSelectorTerms", ()) for one in term["matchExpressions"]]
    assert len(required.get("nodeSelectorTerms", ())) <= 1, "a node need only fit one term"
    assert {one["operator"] for one in expressions} <= {"DoesNotExist"}
    return [one["key"] for one in expressions]


NVIDIA = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SKU = {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
GKE_SPOT = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
AKS_SPOT = {
    "key": "kubernetes.azure.com/scalesetpriority",
    "operator": "Equal",
    "value": "spot",
    "effect": "NoSchedule",
}


@pytest.mark.parametrize(
    ("cloud", "spot", "on_demand"),
    [
        ("eks", [NVIDIA], [NVIDIA]),
        ("gke", [NVIDIA, GKE_SPOT], [NVIDIA]),
        ("aks", [NVIDIA, SKU, AKS_SPOT], [NVIDIA, SKU]),
    ],
)
def test_segments_tolerate_the_taints_of_accelerators_and_of_spot_and_parents_none(cloud, spot, on_demand):
    assert pod_of(rendered(cloud, "spot"))["tolerations"] == spot
    assert pod_of(rendered(cloud, "on-demand"))["tolerations"] == on_demand
    assert pod_of(rendered(cloud, "parents"))["tolerations"] == []


@pytest.mark.parametrize(("cloud", "seconds"), [("eks", 110), ("gke", 15), ("aks", 20)])
def test_a_spot_pod_has_the_time_that_the_machine_has(cloud, seconds):
    graces = [pod_of(rendered(cloud, pool))["terminationGracePeriodSeconds"] for pool in POOLS]
    assert graces == [seconds, 120, 30]
    assert pod_of(rendered(cloud, "spot", grace_seconds=60))["terminationGracePeriodSeconds"] == 60


DO_NOT_DISRUPT = {"karpenter.sh/do-not-disrupt": "true"}
NOT_SAFE_TO_EVICT = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


@pytest.mark.parametrize(
    ("cloud", "spot", "others"),
    [
        # Karpenter would not evict such a pod from a machine that is taken back: it would get no SIGTERM.
        ("eks", {}, DO_NOT_DISRUPT),
        ("gke", NOT_SAFE_TO_EVICT, NOT_SAFE_TO_EVICT),
        ("aks", NOT_SAFE_TO_EVICT, NOT_SAFE_TO_EVICT),
    ],
)
def test_optimizers_move_no_pod_that_works_and_karpenter_evicts_spot(cloud, spot, others):
    expected = {"spot": spot, "on-demand": others, "parents": others}
    for pool in POOLS:
        assert rendered(cloud, pool)["spec"]["template"]["metadata"]["annotations"] == expected[pool]


@pytest.mark.parametrize("pool", POOLS)
def test_pods_on_aks_get_the_identity_of_their_service_account(pool):
    def labels(cloud):
        return rendered(cloud, pool)["spec"]["template"]["metadata"]["labels"]

    assert labels("aks")["azure.workload.identity/use"] == "true"
    assert "azure.workload.identity/use" not in labels("eks") | labels("gke")


@pytest.mark.parametrize(("cloud", "pool"), ALL)
def test_a_pod_counts_as_failed_when_it_has_ended_and_not_when_it_is_told_to(cloud, pool):
    assert rendered(cloud, pool)["spec"]["podReplacementPolicy"] == "Failed"


def test_the_namespace_is_the_first_thing_that_kubectl_applies():
    first = min(path for path in kubernetes_files("eks") if path.endswith(".yaml"))
    assert next(yaml.safe_load_all(kubernetes_files("eks")[first]))["kind"] == "Namespace"


def workers_of(cloud):
    return list(yaml.safe_load_all(kubernetes_files(cloud)["deployments/kubernetes/workers.yaml"]))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_workers_run_on_the_nodes_of_parents(cloud):
    parent = pod_of(rendered(cloud, "parents"))
    workers = workers_of(cloud)
    assert len(workers) == len(POOLS)
    for worker in workers:
        assert pod_of(worker).get("nodeSelector") == parent.get("nodeSelector")
        assert pod_of(worker)["affinity"] == parent["affinity"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_no_pod_runs_as_root_or_with_privileges(cloud):
    pods = [pod_of(rendered(cloud, pool)) for pool in POOLS] + [pod_of(worker) for worker in workers_of(cloud)]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        dropped = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == dropped


@pytest.mark.parametrize("image", sorted((FOLDER / "images").iterdir()), ids=lambda path: path.name)
def test_images_end_with_a_user_that_has_a_number_and_may_write_to_the_volumes(image):
    users = [line.split()[1] for line in image.read_text().splitlines() if line.startswith("USER")]
    # Without a number Kubernetes could not know that the user is not root.
    assert users[-1].isdigit()
    assert pod_of(rendered("eks", "spot"))["securityContext"]["fsGroup"] == int(users[-1]) != 0


def test_drains_wait_for_on_demand_and_parents_and_never_for_spot():
    budgets = list(yaml.safe_load_all((FOLDER / "disruption.yaml").read_text()))
    protected = [budget["spec"]["selector"]["matchLabels"][POOL_LABEL] for budget in budgets]
    assert sorted(protected) == ["on-demand", "parents"]
    for pool in POOLS:
        labels = rendered("eks", pool)["spec"]["template"]["metadata"]["labels"]
        assert labels[POOL_LABEL] == pool
        assert "prefect.io/flow-run-id" in labels, "the observer finds pods by it"


def test_workers_may_handle_jobs_and_nothing_else():
    assert may(Request("batch", "jobs", "create", "segue"))
    assert not may(Request("", "secrets", "get", "segue"))
    assert not may(Request("batch", "jobs", "create", "default"))


def test_the_images_install_extras_that_exist():
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in (FOLDER / "images").iterdir():
        (named,) = [line for line in path.read_text().splitlines() if "segue-*.whl)[" in line]
        wanted = named.split("segue-*.whl)[")[1].split("]")[0].split(",")
        assert set(wanted) <= set(extras)
