"""Where segments and parents are placed on the Kubernetes services of three clouds: labels, taints, annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from segue.deployments.containers import POOLS, PoolName

CloudName = Literal["eks", "gke", "aks"]


@dataclass(frozen=True)
class Cloud:
    """The facts about one Kubernetes service that pods depend on."""

    title: str
    spot_label: tuple[str, str]
    """Label of spot nodes, and its value."""
    other_label: tuple[str, str] | None
    """Label and value of nodes that are not spot; None: they lack the label of spot nodes."""
    is_spot_tainted: bool
    """Whether spot nodes can also have their label as a taint. On AKS all spot nodes have this taint; on GKE the nodes
    of pools that GKE creates by itself have it, and those of pools for which a person set it."""
    grace_seconds: int
    """Longest time a pod on a spot node has between SIGTERM and SIGKILL when the machine is taken back."""
    accelerator_label: str
    """Label that every node with accelerators has, and no other node."""
    store_extra: str
    """The extra of segue with which images reach the object store of this cloud."""
    notices: tuple[str, ...]
    """Metadata services that segments watch beside SIGTERM."""
    annotations: Mapping[PoolName, Mapping[str, str]]
    """Annotations that keep the cluster's own optimizers from moving a working pod, by pool."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of all pods."""
    accelerator_taints: tuple[Mapping[str, str], ...] = ()
    """Taints of nodes with accelerators that are usual on this cloud, besides `nvidia.com/gpu`."""


_AUTOSCALER = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
_KARPENTER = {"karpenter.sh/do-not-disrupt": "true"}

CLOUDS: Mapping[CloudName, Cloud] = {
    # https://karpenter.sh/docs/concepts/disruption: a spot machine is drained two minutes before it is taken back. The
    # drain leaves out pods with do-not-disrupt, so on spot such a pod would get no SIGTERM before its machine is gone.
    "eks": Cloud(
        title="Amazon EKS with Karpenter",
        spot_label=("karpenter.sh/capacity-type", "spot"),
        other_label=("karpenter.sh/capacity-type", "on-demand"),
        is_spot_tainted=False,
        grace_seconds=110,
        accelerator_label="karpenter.k8s.aws/instance-gpu-count",
        store_extra="s3",
        notices=(),
        annotations={"spot": {}, "on-demand": _KARPENTER, "parents": _KARPENTER},
    ),
    # https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms: pods that are not of the system have 15 s.
    "gke": Cloud(
        title="Google GKE",
        spot_label=("cloud.google.com/gke-spot", "true"),
        other_label=None,
        is_spot_tainted=True,
        grace_seconds=15,
        accelerator_label="cloud.google.com/gke-accelerator",
        store_extra="gcs",
        notices=(),
        annotations=dict.fromkeys(POOLS, _AUTOSCALER),
    ),
    # https://learn.microsoft.com/azure/aks/spot-node-pool: an eviction is announced 30 s before. AKS then cordons and
    # drains the node if it can in time, so SIGTERM comes seconds later or never; the metadata service announces it at
    # once.
    "aks": Cloud(
        title="Azure AKS",
        spot_label=("kubernetes.azure.com/scalesetpriority", "spot"),
        other_label=None,
        is_spot_tainted=True,
        grace_seconds=20,
        accelerator_label="kubernetes.azure.com/accelerator",
        store_extra="azure",
        notices=("azure",),
        annotations=dict.fromkeys(POOLS, _AUTOSCALER),
        # Without this label a pod gets no identity, whatever the annotations of its service account say.
        pod_labels={"azure.workload.identity/use": "true"},
        # https://learn.microsoft.com/azure/aks/use-nvidia-gpu
        accelerator_taints=({"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},),
    ),
}


def placement(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    """The part of a pod's spec that decides on which nodes it runs."""
    # A zone that is taken back takes one run with it, not all. A full zone is no reason to wait.
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {POOL_LABEL: pool}},
    }
    return {"topologySpreadConstraints": [spread], **node_rules(cloud, pool), "tolerations": tolerations(cloud, pool)}


def node_rules(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    """The labels that a node must have for a pod of this pool, and those that it must not have."""
    key, value = cloud.spot_label
    if pool == "spot":
        return {"nodeSelector": {key: value}}
    rules: dict[str, Any] = {}
    unwanted = []
    if cloud.other_label is not None:
        rules["nodeSelector"] = dict([cloud.other_label])
    else:
        unwanted.append(key)
    if pool == "parents":
        # Nodes with accelerators need not have a taint, and a parent must not keep such a node from being removed.
        unwanted.append(cloud.accelerator_label)
    if unwanted:
        without = {"matchExpressions": [{"key": label, "operator": "DoesNotExist"} for label in unwanted]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [without]}}
        rules["affinity"] = {"nodeAffinity": required}
    return rules


def tolerations(cloud: Cloud, pool: PoolName) -> list[dict[str, str]]:
    """The taints that a pod of this pool accepts: those of nodes with accelerators, and those of spot nodes."""
    if pool == "parents":
        return []
    accepted = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    accepted += [dict(taint) for taint in cloud.accelerator_taints]
    if pool == "spot" and cloud.is_spot_tainted:
        key, value = cloud.spot_label
        accepted.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    return accepted


POOL_LABEL = "segue.dev/pool"
"""Label of every pod: the pool whose work it does. The manifests select by it."""
