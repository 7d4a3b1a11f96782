"""A real Ray cluster on this machine, and attempts that run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from segue.launch.ray.ray_problems import has_ray
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from tests.launch.ray.local_cluster import ENVIRONMENT, RayCluster
from tests.launch.slurm.conftest import Attempt, starting_attempts

LONG = {"steps": 100_000, "config": {"pause_seconds": 0.05}}


@pytest.fixture(scope="session")
def started() -> Iterator[RayCluster]:
    if not has_ray():
        pytest.skip("not installed: ray; pip install 'segue[ray]'")
    made = RayCluster()
    yield made
    made.close()


@pytest.fixture
def cluster(started: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """A cluster without nodes but its head, which has no CPUs."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield started
    for node in list(started.nodes):
        started.remove(node)


@pytest.fixture
def make_ray_spec(make_spec: Callable[..., RunSpec]) -> Callable[..., RunSpec]:
    def make(cluster: RayCluster | None = None, ray: dict[str, Any] | None = None, **fields: Any) -> RunSpec:
        table = {"address": cluster.address if cluster is not None else "127.0.0.1:1"} | (ray or {})
        # Many processes start on few cores: the heartbeat must not be what a busy machine fails.
        common = {"recipe": "tests.recipes.ranked:even", "ranks": 2, "grace_seconds": 20.0, "ray": table}
        return make_spec(**common | {"liveness": {"heartbeat_seconds": 0.2}} | fields)

    return make


@pytest.fixture
def start(cluster: RayCluster, open_log: Callable[[RunSpec], RunLog]) -> Iterator[Callable[..., Attempt]]:
    """Starts the next attempt of a run; it is given a notice and waited for when the test ends."""
    yield from starting_attempts(open_log)
