"""Requests the resources of an attempt from a Ray cluster: makes the bundles, and counts the bundles that fit.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from segue.records import Capacity, SegmentPlan
from segue.spec import RunSpec

Resources = Mapping[str, float]

_MARK = 0.001
"""Amount of the spot or on-demand resource that each bundle takes. The amount is almost nothing."""
_GROW_SECONDS = 180.0
"""Seconds for an autoscaler to start nodes for all permitted ranks. After this time, fewer ranks are enough."""
_UNITS = 10_000
"""Number of units in one whole resource, because Ray counts resources in ten-thousandths."""


@dataclass(frozen=True)
class Node:
    """One running node of a cluster."""

    node_id: str
    total: Resources
    available: Resources = field(default_factory=dict)
    is_draining: bool = False


def mark_of(spec: RunSpec, capacity: Capacity) -> str:
    """Return the name of the resource that marks the nodes of this capacity."""
    assert spec.ray is not None
    return spec.ray.spot if capacity is Capacity.SPOT else spec.ray.on_demand


def bundle_of(spec: RunSpec, capacity: Capacity) -> dict[str, float]:
    """Return the resources of one bundle."""
    assert spec.ray is not None
    each = spec.ray.ranks_per_bundle
    gpus = {"GPU": float(spec.ray.gpus_per_rank * each)} if spec.ray.gpus_per_rank else {}
    return {"CPU": float(spec.ray.cpus_per_rank * each), **gpus, mark_of(spec, capacity): _MARK}


def bundle_counts(spec: RunSpec) -> tuple[int, int]:
    """Return the smallest and the largest number of bundles with which an attempt may start."""
    assert spec.ray is not None
    assert spec.ranks is not None
    return (spec.ray.min_ranks or spec.ranks) // spec.ray.ranks_per_bundle, spec.ranks // spec.ray.ranks_per_bundle


def room(nodes: Iterable[Resources], bundle: Resources) -> int:
    """Return the number of bundles that fit on nodes with these resources."""
    return sum(_fits(node, bundle) for node in nodes)


def _fits(node: Resources, bundle: Resources) -> int:
    shares = (round(node.get(name, 0.0) * _UNITS) // round(amount * _UNITS) for name, amount in bundle.items())
    return min(shares, default=0)


def bundles_now(spec: RunSpec, capacity: Capacity, nodes: Iterable[Node], *, may_grow: bool = False) -> int:
    """Return the number of bundles to request now: the number that fits, within the limits of the run.

    If `may_grow` is True, return the largest permitted number, because an autoscaler starts nodes only for requested
    bundles.
    """
    fewest, most = bundle_counts(spec)
    if may_grow:
        return most
    free = [node.available for node in nodes if not node.is_draining]
    return max(fewest, min(most, room(free, bundle_of(spec, capacity))))


def grow_seconds(plan: SegmentPlan) -> float:
    """Return for how many seconds an attempt waits until an autoscaler has started nodes for all permitted ranks.

    After this time, the attempt accepts fewer ranks.
    """
    patience = plan.start_within_seconds
    return _GROW_SECONDS if patience is None else min(_GROW_SECONDS, patience / 3)


def avoidable(spec: RunSpec, capacity: Capacity, nodes: Iterable[Node], avoided: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes to avoid. Return no nodes if the other nodes could never have room for enough bundles."""
    others = [node.total for node in nodes if node.node_id not in avoided and not node.is_draining]
    return avoided if room(others, bundle_of(spec, capacity)) >= bundle_counts(spec)[0] else ()


def is_to_ask(seen: int, *, seen_before: int, asked: int) -> bool:
    """Whether to request the `seen` bundles that fit now, instead of the `asked` bundles.

    An `asked` of 0 means that no bundle was requested yet. Two checks in a row must find the same number of bundles
    that fit. While Ray creates a placement group, the bundles of this group are no longer free, so the first check sees
    too little room. At the second check the group is complete.
    """
    return asked == 0 or (seen != asked and seen == seen_before)


def in_words(count: int, bundle: Resources) -> str:
    """Return a placement group as text, for example `2 bundles of 1 CPU on nodes with the resource spot`."""
    amounts = [f"{amount:g} {name}" for name, amount in bundle.items() if amount != _MARK]
    marks = [name for name, amount in bundle.items() if amount == _MARK]
    bundles = f"{count} bundle{'s' if count != 1 else ''}"
    return f"{bundles} of {' and '.join(amounts)} on nodes with the resource {', '.join(marks)}"
