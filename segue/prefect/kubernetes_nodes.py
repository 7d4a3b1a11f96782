"""Reads the nodes of a Kubernetes cluster, with the rights of the doctor's user or of a run's parent."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from segue.doctor.pools.pool_state import PoolState

_ANSWER_SECONDS = 10.0
_PACKAGE = "kubernetes_asyncio"
_USUAL_FILE = "~/.kube/config"


class Nodes(NamedTuple):
    """The labels of each node. If the labels cannot be read, `labels` is None and `why` contains the reason."""

    labels: tuple[Mapping[str, str], ...] | None
    why: str = ""


def with_nodes(states: Sequence[PoolState]) -> list[PoolState]:
    """Return the same pools, with the cluster's nodes for each pool that needs certain labels. Make at most one
    request.
    """
    if not any(_asks_for_nodes(state) for state in states):
        return list(states)
    found = read_nodes()
    return [
        replace(state, nodes=found.labels, why_no_nodes=found.why) if _asks_for_nodes(state) else state
        for state in states
    ]


def _asks_for_nodes(state: PoolState) -> bool:
    return state.job is not None and bool(state.job.node_needs)


def read_nodes(*, limit_seconds: float = _ANSWER_SECONDS) -> Nodes:
    """Read the nodes of the cluster of KUBECONFIG, or of the cluster of this pod. The function raises no exception.

    The function returns within `limit_seconds`, even if a plugin for credentials hangs. If the request takes longer,
    its thread continues to run.
    """
    found: list[Nodes] = []
    asking = threading.Thread(target=lambda: found.append(_asked()), name="segue-nodes", daemon=True)
    asking.start()
    asking.join(limit_seconds)
    return found[0] if found else Nodes(None, f"no answer within {limit_seconds:g} s")


def _asked() -> Nodes:
    try:
        return Nodes(asyncio.run(_read()))
    except Exception as error:
        # Catch any exception, because the client, its configuration and its plugins may raise any type, and nodes are
        # only a hint.
        return Nodes(None, _in_words(error))


async def _read() -> tuple[Mapping[str, str], ...]:
    from kubernetes_asyncio import client, config

    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        _require_file(paths := os.environ.get("KUBECONFIG", _USUAL_FILE))
        await config.load_kube_config(config_file=paths)
    async with client.ApiClient() as api:
        nodes = await client.CoreV1Api(api).list_node()
    return tuple(node.metadata.labels or {} for node in nodes.items)


def _require_file(paths: str) -> None:
    """Raise FileNotFoundError if no file exists. This check prevents a line that the client would print."""
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), paths)


def _in_words(error: Exception) -> str:
    """Return why the nodes cannot be read, without the messages of other programs, which may contain credentials."""
    if isinstance(error, ImportError):
        return f"the package {_PACKAGE} is not installed"
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    status = getattr(error, "status", None)
    if status is not None:
        return f"the cluster's API answered the request for nodes with HTTP {status}"
    return f"the configuration of the cluster cannot be used (KUBECONFIG; {type(error).__name__})"
