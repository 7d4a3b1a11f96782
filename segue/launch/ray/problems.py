"""Derives the problems of a run's `[ray]` table from data about a cluster. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from segue.launch.problem import Problem
from segue.launch.ray.placement_group import Node, bundle_counts, bundle_of, in_words, mark_of, room
from segue.records import Capacity
from segue.spec import RunSpec

REQUIREMENT = "ray>=2.60,<3"
"""Required version of Ray, as in pyproject.toml."""


class NodeFacts(BaseModel):
    """Versions and folder of a process on a node, which must be equal for all ranks of an attempt."""

    model_config = ConfigDict(frozen=True)

    node_id: str
    address: str
    """Address at which other nodes reach the node."""
    python: str
    torch: str | None
    """Version of torch. The value is None if torch is not installed."""
    segue: str
    has_folder: bool
    """Whether the node has the segment's working folder."""

    @property
    def in_words(self) -> str:
        return f"the node {self.address} ({self.node_id[:8]})"


def resource_problems(spec: RunSpec, nodes: Sequence[Node]) -> list[Problem]:
    """Return a problem for each resource that no node has, or that all nodes together cannot provide."""
    assert spec.ray is not None
    found = []
    for name, capacity in {"spot": Capacity.SPOT, "on_demand": Capacity.ON_DEMAND}.items():
        mark, bundle = mark_of(spec, capacity), bundle_of(spec, capacity)
        marked = [node.total for node in nodes if node.total.get(mark)]
        fewest, _ = bundle_counts(spec)
        holds = room(marked, bundle)
        if not marked:
            fix = f"start nodes with --resources='{{\"{mark}\": 1}}', or set ray.{name} to a resource that they have"
            found.append(Problem(what=f"no node of the Ray cluster has the resource {mark!r}", fix=fix))
        elif holds < fewest:
            what = f"{in_words(fewest, bundle)} can never be placed: the nodes of the Ray cluster have room for {holds}"
            fix = f"set ranks, or ray.min_ranks, to {holds * spec.ray.ranks_per_bundle} or less, or start more nodes"
            if not holds:
                fix = "set ray.cpus_per_rank, ray.gpus_per_rank or ray.ranks_per_bundle to values that one node has"
            found.append(Problem(what=what, fix=fix))
    return found


def node_problems(here: NodeFacts, nodes: Iterable[NodeFacts], *, folder: str) -> list[Problem]:
    """Return a problem for each node on which a trainer would differ from a trainer on the segment's machine."""
    found: dict[Problem, None] = {}
    for node in nodes:
        if _minor(node.python) != _minor(here.python):
            what = f"{node.in_words} has Python {node.python}, and this machine {here.python}"
            found[Problem(what=what, fix="install the same Python on both")] = None
        elif _release(node.torch) != _release(here.torch):
            what = f"{node.in_words} has torch {node.torch or 'not'} installed, and this machine {here.torch}"
            found[Problem(what=what, fix="install the same torch on both")] = None
        elif node.segue != here.segue:
            what = f"{node.in_words} has segue {node.segue}, and this machine {here.segue}"
            found[Problem(what=what, fix="install the same segue on both")] = None
        elif not node.has_folder:
            fix = "copy the recipe's code to the same path on all nodes"
            found[Problem(what=f"{node.in_words} has no folder {folder}", fix=fix)] = None
    return list(found)


def is_of_import(error: Exception) -> bool:
    """Whether a process on a node failed because a package is missing."""
    # Not every ImportError counts, because a node that is out of memory also raises an ImportError.
    return any(words in str(error) for words in ("ModuleNotFoundError", "cannot import name"))


def not_importable(where: str, why: str) -> Problem:
    """Return the problem that segue, or a package that segue needs, is not installed on a node."""
    what = f"segue cannot be imported on {where} ({why})"
    return Problem(what=what, fix="install segue with the same packages on all nodes")


def version_refusal(text: str, *, address: str) -> Problem | None:
    """Return the problem of a version mismatch from Ray's error. Return None if the error has another cause."""
    if "Version mismatch" not in text:
        return None
    versions = [
        line.strip().replace(":", "") for line in text.splitlines() if line.strip().startswith(("Ray:", "Python:"))
    ]
    half = len(versions) // 2
    there, here = " and ".join(versions[:half]), " and ".join(versions[half:])
    what = f"the Ray cluster at {address} has {there}, and this machine {here}"
    return Problem(what=what, fix="install the same versions of Ray and Python on both")


def not_checked(where: str, why: str) -> Problem:
    """Return the problem of an unchecked node. Each attempt checks its own nodes before it starts its ranks there."""
    return Problem(
        what=f"the versions of {where} are not checked: {why}",
        fix="`ray status` shows the nodes; each attempt checks its own nodes before its ranks start",
        is_certain=False,
    )


def unreachable(address: str, *, seconds: float | None = None) -> Problem:
    """Return the problem that no cluster answers within `seconds`. If `seconds` is None, Ray itself has given up."""
    where = "this machine is in no Ray cluster that answers" if address == "auto" else f"{address} does not answer"
    fix = "join a cluster with `ray start --address=HEAD:PORT --num-cpus=0`, and set ray.address if there are several"
    return Problem(what=where if seconds is None else f"{where} within {seconds:g} s", fix=fix)


def failed_check(code: int, output: str) -> Problem:
    """Return the problem that the checking process has failed, from its exit code and its output."""
    if code < 0:  # The last lines are a stack.
        fix = "try again: Ray aborts its processes while the cluster's head restarts"
        return Problem(what=f"the check of the Ray cluster was killed by signal {-code}", fix=fix)
    last = ([line.strip() for line in output.splitlines() if line.strip()] or ["it wrote nothing"])[-1]
    fix = f"pip install '{REQUIREMENT}' on this machine and on all nodes"
    return Problem(what=f"the check of the Ray cluster exited with code {code} ({last})", fix=fix)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _release(version: str | None) -> str | None:
    """Return the release part of a version, without the build, such as `+cpu` or `+cu130`."""
    return None if version is None else version.partition("+")[0]
