"""Makes the base job templates of the Kubernetes pools, for `prefect work-pool create --base-job-template`.

The module also makes the files that `segue init --pools eks|gke|aks` writes below deployments/kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from segue.deployments.containers import POOLS, PoolName, command, environment, image, number, text
from segue.deployments.kubernetes.clouds import CLOUDS, POOL_LABEL, Cloud, CloudName, node_rules, placement
from segue.doctor.pools.segment_job import AVOIDED_NODES, SIGTERM_SECONDS
from segue.launch.rendezvous import KUBERNETES_NODE

NAMESPACE = "segue"

_PARENT_GRACE_SECONDS = 30
_IMAGE_USER = 1000
"""The user id in images/Dockerfile.*."""
_RUN_ACCOUNT = "segue-run"
_KEPT_SECONDS = 3600
"""Seconds for which an ended job is kept for inspection."""
_NO_NODE = "no-node"
"""A name that no node has, because Kubernetes refuses a rule without names."""
_FOLDER = "deployments/kubernetes"
_AS_THEY_ARE = ("00-namespace.yaml", "access.yaml", "disruption.yaml", "create-pools.sh")
_WORKERS = "workers.yaml"
_NODES = "      # The nodes of parents, by cloud, are written here.\n"
"""The line of the packaged workers.yaml that is replaced by the rules for nodes."""
_IMAGES = ("images/Dockerfile.cpu", "images/Dockerfile.cuda")


def job_template(name: CloudName, pool: PoolName) -> dict[str, Any]:
    """Return the base job template of a pool on a cloud's Kubernetes service. The function is pure."""
    cloud = CLOUDS[name]
    return {"job_configuration": _configuration(cloud, pool), "variables": _variables(cloud, pool)}


def _configuration(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    of_worker = ("command", "env", "labels", "name", "namespace", "annotations", "cluster_config", "stream_output")
    return {variable: f"{{{{ {variable} }}}}" for variable in of_worker} | {"job_manifest": _manifest(cloud, pool)}


def _manifest(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": "{{ name }}-",
            "namespace": "{{ namespace }}",
            "labels": "{{ labels }}",
            "annotations": "{{ annotations }}",
        },
        "spec": {
            # A job never starts its pod again, because only the policy decides about further attempts and their
            # capacity. With any other number, Prefect also ignores the SIGTERM behaviour below.
            "backoffLimit": 0,
            # Without this policy, a pod counts as failed as soon as it gets SIGTERM. Prefect would then end the flow
            # run as Crashed while the last checkpoint is being written, and refuse the state that the segment ends
            # with.
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": "{{ finished_job_ttl }}",
            "template": {
                "metadata": {
                    "labels": {POOL_LABEL: pool, **cloud.pod_labels},
                    "annotations": dict(cloud.annotations[pool]),
                },
                "spec": _pod(cloud, pool),
            },
        },
    }


def _pod(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    return {
        "parallelism": 1,  # Prefect's worker requires these two keys here; Kubernetes ignores them.
        "completions": 1,
        "restartPolicy": "Never",
        "serviceAccountName": "{{ service_account_name }}",
        "automountServiceAccountToken": False,  # Training needs no access to the cluster.
        "terminationGracePeriodSeconds": "{{ grace_seconds }}",
        "priorityClassName": "{{ priority_class_name }}",
        # The user of segue's own images. The group may write to the volumes.
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _IMAGE_USER,
            "fsGroup": _IMAGE_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(pool)],
        **({"volumes": _volumes()} if pool != "parents" else {}),
        **placement(cloud, pool),
    }


def _container(pool: PoolName) -> dict[str, Any]:
    needed = {"cpu": "{{ cpu }}", "memory": "{{ memory }}"}
    container: dict[str, Any] = {
        "name": "prefect-job",
        "image": "{{ image }}",
        "imagePullPolicy": "{{ image_pull_policy }}",
        # The command is passed as arguments, so that the image's entrypoint remains the first process and passes
        # SIGTERM on.
        "args": "{{ command }}",
        "env": "{{ env }}",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # Limits are equal to requests, so the pod has the class Guaranteed, which is evicted last.
        "resources": {"requests": needed, "limits": needed},
    }
    if pool != "parents":
        with_gpus = needed | {"nvidia.com/gpu": "{{ gpus }}"}
        # The worker adds the variables of `env` to this list.
        container["env"] = [{"name": KUBERNETES_NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
        container["resources"] = {"requests": with_gpus, "limits": with_gpus}
        container["volumeMounts"] = [
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - its place in every container
            {"name": "fast", "mountPath": "/fast"},
        ]
    return container


def _volumes() -> list[dict[str, Any]]:
    return [
        # The default of containers is 64 MiB, which is too little for data loader workers and NCCL. The volume counts
        # as memory of the container.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "{{ shared_memory }}"}},
        {"name": "fast", "emptyDir": {"sizeLimit": "{{ fast_folder }}"}},
    ]


def _variables(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    grace_seconds = cloud.grace_seconds if pool == "spot" else _PARENT_GRACE_SECONDS if pool == "parents" else 120
    properties = {
        "name": text("Name of the job; None means the name of the flow run.", None),
        "namespace": text("Namespace of the jobs.", NAMESPACE),
        "command": command(pool),
        "env": environment("evicted"),
        "labels": _table("Further labels of the jobs and pods."),
        "annotations": _table("Further annotations of the jobs and pods."),
        "image": image(has_accelerators=pool != "parents"),
        "image_pull_policy": text("Pull policy of the image: IfNotPresent, Always or Never.", "IfNotPresent"),
        "service_account_name": text("Service account of the pods, with the rights on the store.", _RUN_ACCOUNT),
        "priority_class_name": text("Priority class of the pods; None means the cluster's default.", None),
        "grace_seconds": number(
            "Seconds from SIGTERM to SIGKILL. `grace_seconds` of the run spec must not be longer.", grace_seconds
        ),
        "finished_job_ttl": number("Seconds for which an ended job is kept.", _KEPT_SECONDS),
        "cpu": text("Cores of the pod.", "1" if pool == "parents" else "4"),
        "memory": text("Memory of the pod; for a segment, it includes staging buffers and /dev/shm.", _memory(pool)),
        "stream_output": {"type": "boolean", "title": "Stream Output", "default": False},
        "cluster_config": {
            "title": "Cluster Config",
            "description": "Prefect block with the credentials of the cluster; None: the credentials of the worker's "
            "own pod.",
            "default": None,
            "anyOf": [{"$ref": "#/definitions/KubernetesClusterConfig"}, {"type": "null"}],
        },
    }
    if pool != "parents":
        properties |= {
            "gpus": number("Number of accelerators of the pod; may be 0.", 1),
            "shared_memory": text("Size of /dev/shm, for data loader workers and NCCL.", "8Gi"),
            AVOIDED_NODES: {
                "description": "Nodes that a pod avoids if another node fits. segue sets them for each attempt.",
                "type": "array",
                "items": {"type": "string"},
                "default": [_NO_NODE],
            },
            "fast_folder": text("Size of /fast, for `checkpoints.fast_folder`.", "20Gi"),
        }
    return {"type": "object", "properties": properties, "definitions": {"KubernetesClusterConfig": _CLUSTER_CONFIG}}


def _memory(pool: PoolName) -> str:
    return "2Gi" if pool == "parents" else "24Gi"


def _table(description: str) -> dict[str, Any]:
    return {"description": description, "type": "object", "additionalProperties": {"type": "string"}}


_CLUSTER_CONFIG = {
    "title": "KubernetesClusterConfig",
    "type": "object",
    "block_type_slug": "kubernetes-cluster-config",
    "block_schema_references": {},
    "secret_fields": [],
    "required": ["config", "context_name"],
    "properties": {
        "config": {"type": "object", "title": "Config", "additionalProperties": True},
        "context_name": {"type": "string", "title": "Context Name"},
    },
}


def kubernetes_files(name: CloudName) -> dict[str, str]:
    """Return the text of each file, by path.

    The top folder contains only manifests, so that `kubectl apply -f` can use this folder.
    """
    cloud, home = CLOUDS[name], files("segue.deployments") / "kubernetes"
    packaged = {name: (home / name).read_text(encoding="utf-8") for name in (*_AS_THEY_ARE, _WORKERS, *_IMAGES)}
    packaged[_WORKERS] = packaged[_WORKERS].replace(_NODES, _nodes_of_parents(cloud))
    for path in _IMAGES:
        packaged[path] = packaged[path].replace(",s3,", f",{cloud.store_extra},")
    templates = {f"pools/{pool}.json": json.dumps(job_template(name, pool), indent=2) + "\n" for pool in POOLS}
    return {f"{_FOLDER}/{path}": text for path, text in (packaged | templates).items()}


def run_grace_seconds(name: CloudName) -> int:
    """Value of `grace_seconds` in run specs for these pools."""
    return CLOUDS[name].grace_seconds - SIGTERM_SECONDS


def _nodes_of_parents(cloud: Cloud) -> str:
    """Return the rules for nodes as lines of YAML, with the indentation of the line that they replace."""
    indent = " " * (len(_NODES) - len(_NODES.lstrip()))
    return "".join(f"{indent}{line}\n" for line in _yaml(node_rules(cloud, "parents")))


def _yaml(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the YAML lines of a mapping, without a YAML package, because only the extra `prefect` installs one."""
    for name, inner in value.items():
        if isinstance(inner, str):
            yield f"{name}: {json.dumps(inner) if inner in ('true', 'false') else inner}"
            continue
        yield f"{name}:"
        for item in inner if isinstance(inner, list) else [inner]:
            lead = "- " if isinstance(inner, list) else "  "
            for line in _yaml(item):
                yield f"  {lead}{line}" if isinstance(inner, list) else f"{lead}{line}"
                lead = "  "
