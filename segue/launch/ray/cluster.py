"""Connects to a Ray cluster, and reads its nodes, placement groups and problems for a run. This module imports Ray."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import ray
from ray._private.state import state
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from segue.clock import Clock
from segue.errors import RaySetupError
from segue.launch.problem import Problem, as_pairs
from segue.launch.ray.bundle_actor import facts_here
from segue.launch.ray.placement_group import Node, Resources, mark_of
from segue.launch.ray.problems import (
    NodeFacts,
    is_of_import,
    node_problems,
    not_checked,
    not_importable,
    resource_problems,
    version_refusal,
)
from segue.records import Capacity
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_PROBE_SECONDS = 30.0
"""Longest wait in seconds for the answer of each node. `segue doctor` allows 90 s for the whole check."""


def connect(address: str) -> bool:
    """Connect this process as a driver. Return False if no cluster answers. The call may block for minutes.

    Raises:
        RaySetupError: the cluster refuses this process because of its version of Ray or Python.
    """
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="segue")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        refusal = version_refusal(str(error), address=address)
        if refusal is not None:
            raise RaySetupError(problems=as_pairs([refusal])) from None
        log.warning("the Ray cluster does not answer address=%s reason=%s", address, str(error).strip() or type(error))
        ray.shutdown()
        return False
    return True


def nodes() -> list[Node]:
    """Return the running nodes."""
    known: Any = state  # Ray types few of its calls.
    free, draining = known.available_resources_per_node(), draining_nodes()
    return [
        Node(
            node_id=node["NodeID"],
            total=node["Resources"],
            available=free.get(node["NodeID"], {}),
            is_draining=node["NodeID"] in draining,
        )
        for node in known.node_table()
        if node["Alive"]
    ]


def draining_nodes() -> dict[str, float | None]:
    """Return the draining nodes, each with the wall-clock time of its end in seconds. None means an unknown time.

    Ray 2.60 has no public call for draining nodes outside of Ray Train.
    """
    found: dict[str, int] = state.get_draining_nodes()
    return {node: deadline_ms / 1000 if deadline_ms else None for node, deadline_ms in found.items()}


class Drains:
    """The newest answer of `draining_nodes`. A thread makes the calls, because they block if the head does not
    answer.
    """

    def __init__(self, *, period_seconds: float, clock: Clock) -> None:
        self.found: dict[str, float | None] = {}
        self._period_seconds, self._clock = period_seconds, clock
        threading.Thread(target=self._ask, name="segue-ray-drains", daemon=True).start()

    def _ask(self) -> None:
        while True:
            self.found = draining_nodes()
            self._clock.sleep(self._period_seconds)


def has_autoscaler() -> bool:
    """Whether the cluster has an autoscaler, which may add further nodes."""
    return state.get_cluster_config() is not None


def ask_for(count: int, bundle: Resources, *, avoided: tuple[str, ...]) -> PlacementGroup:
    """Request a placement group on as few nodes as possible, and on no node of `avoided`.

    Ray removes the placement group when this process ends.
    """
    labels = [{"ray.io/node-id": f"!in({','.join(avoided)})"}] * count if avoided else None
    group: PlacementGroup = placement_group([dict(bundle)] * count, strategy="PACK", bundle_label_selector=labels)
    return group


def give_back(group: PlacementGroup) -> None:
    remove_placement_group(group)


def problems_of(spec: RunSpec) -> list[Problem]:
    """Return the cluster's problems for a run, after checks of the resources, the versions and the folder with the
    code.
    """
    here = nodes()
    # If there is an autoscaler and no node has a resource now, the next node may have it.
    found = [] if has_autoscaler() else resource_problems(spec, here)
    marks = {mark_of(spec, capacity) for capacity in (Capacity.SPOT, Capacity.ON_DEMAND)}
    asked = [node.node_id for node in here if marks & set(node.total)]
    folder = str(Path.cwd())
    facts, others = _facts_of(asked, folder)
    return [*found, *node_problems(facts_here(folder), facts, folder=folder), *others]


def _facts_of(node_ids: list[str], folder: str) -> tuple[list[NodeFacts], list[Problem]]:
    """Return the data of each node, and a problem for each node that does not answer or cannot import segue."""
    ask: Any = ray.remote(num_cpus=0, max_retries=0)(facts_here)
    asked = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(folder): node_id
        for node_id in node_ids
    }
    done, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_PROBE_SECONDS) if asked else ([], [])
    facts, found = [], [not_checked(_named(asked[ref]), f"no answer within {_PROBE_SECONDS:g} s") for ref in silent]
    for ref in done:
        try:
            facts.append(ray.get(ref))
        except ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[-1]
            if is_of_import(error):
                found.append(not_importable(_named(asked[ref]), why))
            else:
                found.append(not_checked(_named(asked[ref]), why))
    return facts, found


def _named(node_id: str) -> str:
    return f"the node {node_id[:8]}"
