"""Finds the nodes of a Kubernetes cluster on which a pod may run, by the pod's nodeSelector and required nodeAffinity.

The module is pure. The module also defines the grace period that each platform gives to pods on spot nodes. This grace
period overrides the value in the pod's template.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Requirement(NamedTuple):
    """One requirement in the `matchExpressions` of a nodeSelectorTerm."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = f" ({', '.join(self.values)})" if self.values else ""
        return f"{self.key} {self.operator}{values}"

    def is_met(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets the requirement.

        If the operator is unknown, return True.
        """
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
            case _:
                return True


@dataclass(frozen=True)
class NodeNeeds:
    """The labels that a pod requires on its node.

    The source is Kubernetes, "Assigning Pods to Nodes". A node must have the labels of nodeSelector. The node must also
    meet all requirements of at least one term in requiredDuringSchedulingIgnoredDuringExecution.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[tuple[Requirement, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.labels or self.terms)

    def __str__(self) -> str:
        selected = [f"{name}={value}" for name, value in sorted(self.labels.items())]
        terms = " or ".join(" and ".join(map(str, term)) or "other fields" for term in self.terms)
        return ", ".join([*selected, *([terms] if terms else [])])

    def ask_for(self, key: str, value: str) -> bool:
        """Whether the pod requires this label of its node."""
        if self.labels.get(key) == value:
            return True
        asked = Requirement(key, "In", (value,))
        return bool(self.terms) and all(asked in term for term in self.terms)

    def fit(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets the pod's requirements. The method checks only labels."""
        is_affine = not self.terms or any(all(one.is_met(labels) for one in term) for term in self.terms)
        return is_affine and self.labels.items() <= labels.items()


def node_needs(pod: Mapping[str, Any]) -> NodeNeeds:
    """Return the labels that a pod's spec requires. A malformed spec raises an AttributeError or a TypeError."""
    required: Any = pod.get("affinity") or {}
    for name in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        required = required.get(name) or {}
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return NodeNeeds(
        labels={str(name): str(value) for name, value in (pod.get("nodeSelector") or {}).items()},
        terms=tuple(tuple(map(_requirement, term.get("matchExpressions") or ())) for term in terms),
    )


def _requirement(given: Mapping[str, Any]) -> Requirement:
    values = tuple(str(value) for value in given.get("values") or ())
    return Requirement(str(given.get("key")), str(given.get("operator")), values)


class SpotLabel(NamedTuple):
    """A label of spot nodes, and the grace period that the platform gives to pods on these nodes."""

    key: str
    value: str
    platform: str
    most_seconds: float
    """Seconds from SIGTERM to the moment at which the platform stops the machine."""


_SPOT_LABELS = (
    # https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms; more if the kubelet was configured for it.
    SpotLabel("cloud.google.com/gke-spot", "true", "a spot node of GKE", 15),
    SpotLabel("cloud.google.com/gke-preemptible", "true", "a preemptible node of GKE", 15),
    # https://learn.microsoft.com/azure/aks/spot-node-pool
    SpotLabel("kubernetes.azure.com/scalesetpriority", "spot", "a spot node of AKS", 30),
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    SpotLabel("karpenter.sh/capacity-type", "spot", "a spot node of EKS", 120),
    SpotLabel("eks.amazonaws.com/capacityType", "SPOT", "a spot node of EKS", 120),
)


def most_grace_seconds(needs: NodeNeeds) -> tuple[float, str]:
    """Return the longest grace period of the required nodes in seconds, and the type of these nodes.

    If the required nodes are not spot nodes, the grace period is inf.
    """
    for label in _SPOT_LABELS:
        if needs.ask_for(label.key, label.value):
            return label.most_seconds, label.platform
    return math.inf, ""
