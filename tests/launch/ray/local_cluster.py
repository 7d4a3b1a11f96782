"""A Ray cluster of several nodes on this machine, in processes of its own, on free ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Otherwise no node may have the address 127.0.0.1.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}
BOTH = {"spot": 1, "on_demand": 1}


class RayCluster:
    """A head without CPUs, to which drivers connect, and nodes on which ranks run."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.launch.ray.cluster_process"]
        env = {**os.environ, **ENVIRONMENT}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True
        )
        self._answer()
        self.address: str = self._ask("address")
        self.nodes: list[str] = []

    def add(self, *, cpus: int = 1, resources: dict[str, float] | None = None, **env: str) -> str:
        """Start a node; its id."""
        made: str = self._ask("add", resources=BOTH if resources is None else resources, cpus=cpus, env=env)
        self.nodes.append(made)
        return made

    def remove(self, node_id: str) -> None:
        self.nodes.remove(node_id)
        self._ask("remove", node_id=node_id)

    def raylet(self, node_id: str) -> psutil.Process:
        return psutil.Process(self._ask("raylet", node_id=node_id))

    def kill(self, node_id: str) -> None:
        """Let a node vanish with all processes on it."""
        raylet = self.raylet(node_id)
        for process in [raylet, *raylet.children(recursive=True)]:
            process.kill()
        self.remove(node_id)

    def drain(self, node_id: str, *, seconds: int) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test"]
        limit = ["--deadline-remaining-seconds", str(seconds)]
        done = subprocess.run(
            [*command, "--node-id", node_id, *why, *limit],
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def restart_head(self) -> None:
        self._ask("restart_head")

    def renew(self) -> None:
        """Start a cluster without nodes in the place of this one."""
        self._ask("renew")
        self.nodes = []
        assert self._ask("address") == self.address

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, name: str, **arguments: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Ray cluster has ended"
        return json.loads(line)


def until(holds: Callable[[], Any], *, seconds: float = 120.0) -> Any:
    """Wait for a state."""
    give_up_at = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < give_up_at
        time.sleep(0.1)
    return found
