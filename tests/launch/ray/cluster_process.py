"""The process that has a Ray cluster on this machine: `python -m tests.launch.ray.cluster_process`.

Each line of its input is a command with its arguments, as JSON; each line of its output is the answer. When its input
ends, it ends all that it has started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import psutil
from ray.cluster_utils import Cluster

_SHARED = {"node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000}
_QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}


class Server:
    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.cluster = _head()

    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, resources: dict[str, float], cpus: int, env: dict[str, str]) -> str:
        """Start a node; its id."""
        node = self.cluster.add_node(num_cpus=cpus, resources=resources, env_vars=env, **_SHARED)
        self.nodes[node.node_id] = node
        return str(node.node_id)

    def raylet(self, node_id: str) -> int:
        """The process id of a node's raylet."""
        return int(self.nodes[node_id].all_processes["raylet"][0].process.pid)

    def remove(self, node_id: str) -> None:
        """End what is left of a node."""
        node = self.nodes.pop(node_id)
        with suppress(psutil.NoSuchProcess):
            psutil.Process(node.all_processes["raylet"][0].process.pid).send_signal(signal.SIGCONT)
        self.cluster.remove_node(node, allow_graceful=False)

    def restart_head(self) -> None:
        """Kill the head's store and start it anew, with nothing in it: drivers and nodes that knew the old one end."""
        self.cluster.head_node.kill_gcs_server()
        self.cluster.head_node.start_gcs_server()

    def renew(self) -> None:
        """End what is left of the cluster, and start a head at the same address."""
        port = int(self.cluster.address.rpartition(":")[2])
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(60)
        self.nodes = {}
        self.cluster = _head(gcs_server_port=port)


def _head(**more: Any) -> Cluster:
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _QUICK, **_SHARED, **more}
    return Cluster(initialize_head=True, shutdown_at_exit=False, head_node_args=head)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray writes to it.
    server = Server()
    answers.write("{}\n")
    try:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            answers.write(json.dumps(getattr(server, name)(**arguments)) + "\n")
    finally:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()


if __name__ == "__main__":
    main()
