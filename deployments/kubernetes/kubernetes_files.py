"""The files that `segue init --pools eks|gke|aks` writes below deployments/kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from segue.deployments.containers import POOLS
from segue.deployments.kubernetes.clouds import CLOUDS, Cloud, CloudName, node_rules
from segue.deployments.kubernetes.kubernetes_pools import job_template
from segue.doctor.pools.segment_job import SIGTERM_SECONDS

_FOLDER = "deployments/kubernetes"
_AS_THEY_ARE = ("00-namespace.yaml", "access.yaml", "disruption.yaml", "create-pools.sh")
_WORKERS = "workers.yaml"
_NODES = "      # The nodes of parents, by cloud, are written here.\n"
"""The line of the packaged workers.yaml that the rules for nodes replace."""
_IMAGES = ("images/Dockerfile.cpu", "images/Dockerfile.cuda")


def kubernetes_files(name: CloudName) -> dict[str, str]:
    """The text of each file, by path. Only manifests are in the top folder, so that `kubectl apply -f` can use the
    folder."""
    cloud, home = CLOUDS[name], files("segue.deployments") / "kubernetes"
    packaged = {name: (home / name).read_text(encoding="utf-8") for name in (*_AS_THEY_ARE, _WORKERS, *_IMAGES)}
    packaged[_WORKERS] = packaged[_WORKERS].replace(_NODES, _nodes_of_parents(cloud))
    for image in _IMAGES:
        packaged[image] = packaged[image].replace(",s3,", f",{cloud.store_extra},")
    templates = {f"pools/{pool}.json": json.dumps(job_template(name, pool), indent=2) + "\n" for pool in POOLS}
    return {f"{_FOLDER}/{path}": text for path, text in (packaged | templates).items()}


def run_grace_seconds(name: CloudName) -> int:
    """Value of `grace_seconds` in run specs for these pools."""
    return CLOUDS[name].grace_seconds - SIGTERM_SECONDS


def _nodes_of_parents(cloud: Cloud) -> str:
    """The rules for nodes as lines of YAML, with the indentation of the line that they replace."""
    indent = " " * (len(_NODES) - len(_NODES.lstrip()))
    return "".join(f"{indent}{line}\n" for line in _yaml(node_rules(cloud, "parents")))


def _yaml(value: Mapping[str, Any]) -> Iterator[str]:
    """YAML lines of a mapping. This function writes the lines itself, because YAML packages are only in the extra
    `prefect`."""
    for name, inner in value.items():
        if isinstance(inner, str):
            yield f"{name}: {json.dumps(inner) if inner in ('true', 'false') else inner}"
            continue
        yield f"{name}:"
        for item in inner if isinstance(inner, list) else [inner]:
            lead = "- " if isinstance(inner, list) else "  "
            for line in _yaml(item):
                yield f"  {lead}{line}" if isinstance(inner, list) else f"{lead}{line}"
                lead = "  "
