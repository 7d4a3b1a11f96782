"""Defines the labels, taints and annotations that place segments and parents on the Kubernetes nodes of three
clouds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from segue.deployments.containers import POOLS, PoolName
from segue.doctor.pools.segment_job import AVOIDED_NODES

CloudName = Literal["eks", "gke", "aks"]


@dataclass(frozen=True)
class Cloud:
    """The properties of one cloud's Kubernetes service that the pods need."""

    title: str
    spot_label: tuple[str, str]
    """Label of spot nodes, and the value of the label."""
    other_label: tuple[str, str] | None
    """Label of nodes that are not spot, and the value of the label.

    If the cloud has no such label, the value is None.
    """
    is_spot_tainted: bool
    """Whether spot nodes may also have `spot_label` as a taint.

    On AKS, all spot nodes have this taint. On GKE, a node has this taint only if GKE itself created the pool, or if a
    person set the taint for the pool.
    """
    grace_seconds: int
    """Longest grace period in seconds of a pod on a spot node that the cloud takes back."""
    accelerator_label: str
    """Label that all nodes with accelerators have, and no other nodes."""
    store_extra: str
    """The extra of segue that images need for the object store of this cloud."""
    notices: tuple[str, ...]
    """Metadata services that segments watch in addition to SIGTERM."""
    annotations: Mapping[PoolName, Mapping[str, str]]
    """Annotations of the pods of each pool, which keep the cluster's optimizers from moving a running pod."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Additional labels of all pods."""
    accelerator_taints: tuple[Mapping[str, str], ...] = ()
    """Usual taints of nodes with accelerators on this cloud, in addition to `nvidia.com/gpu`."""


_AUTOSCALER = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
_KARPENTER = {"karpenter.sh/do-not-disrupt": "true"}

CLOUDS: Mapping[CloudName, Cloud] = {
    # https://karpenter.sh/docs/concepts/disruption: a spot machine is drained two minutes before it is taken back. The
    # drain leaves out pods with do-not-disrupt. On a spot machine, a pod with this annotation would therefore get no
    # SIGTERM before the machine is gone.
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
    # https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms: pods that are not system pods have 15 s.
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
    # drains the node if there is enough time, so SIGTERM comes seconds later or never. The metadata service announces
    # the eviction at once.
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
        # Without this label, a pod gets no identity, even if its service account has the annotations.
        pod_labels={"azure.workload.identity/use": "true"},
        # https://learn.microsoft.com/azure/aks/use-nvidia-gpu
        accelerator_taints=({"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},),
    ),
}


def placement(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    """Return the part of a pod's spec that decides on which nodes the pod runs."""
    # Pods are spread over zones, so that the loss of a zone affects few runs. But no pod waits because a zone is full.
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {POOL_LABEL: pool}},
    }
    rules = node_rules(cloud, pool)
    if pool != "parents":
        # This is a preference, because a pod that may run on no other node must not wait for ever.
        others = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": f"{{{{ {AVOIDED_NODES} }}}}"}
        preferred = {"weight": 100, "preference": {"matchExpressions": [others]}}
        affinity = rules.setdefault("affinity", {"nodeAffinity": {}})
        affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [preferred]
    return {"topologySpreadConstraints": [spread], **rules, "tolerations": tolerations(cloud, pool)}


def node_rules(cloud: Cloud, pool: PoolName) -> dict[str, Any]:
    """Return the labels that a node must have, and those that it must not have, for a pod of this pool."""
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
        # Nodes with accelerators may have no taint, but a parent on such a node would prevent its removal.
        unwanted.append(cloud.accelerator_label)
    if unwanted:
        without = {"matchExpressions": [{"key": label, "operator": "DoesNotExist"} for label in unwanted]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [without]}}
        rules["affinity"] = {"nodeAffinity": required}
    return rules


def tolerations(cloud: Cloud, pool: PoolName) -> list[dict[str, str]]:
    """Return the taints that a pod of this pool tolerates: the taints of nodes with accelerators, and of spot nodes."""
    if pool == "parents":
        return []
    accepted = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    accepted += [dict(taint) for taint in cloud.accelerator_taints]
    if pool == "spot" and cloud.is_spot_tainted:
        key, value = cloud.spot_label
        accepted.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    return accepted


POOL_LABEL = "segue.dev/pool"
"""Label of every pod, by which the manifests select pods. Its value is the name of the pool."""
