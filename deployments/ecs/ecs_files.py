"""The files that `segue init --pools fargate|ecs` writes below deployments/ecs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files

from segue.deployments.containers import POOLS
from segue.deployments.ecs.ecs_pools import STOP_SECONDS, Kind, job_template
from segue.doctor.pools.segment_job import SIGTERM_SECONDS

_FOLDER = "deployments/ecs"
_AS_THEY_ARE = ("create-pools.sh", "worker-policy.json", "stopped-tasks.json", "queue-policy.json")
_IMAGES = ("images/Dockerfile.cpu", "images/Dockerfile.cuda")
RUN_GRACE_SECONDS = STOP_SECONDS - SIGTERM_SECONDS
"""Value of `grace_seconds` in run specs for these pools."""
NOTICES: Mapping[Kind, tuple[str, ...]] = {"fargate": (), "ec2": ("aws",)}
"""Metadata services that segments watch. If a spot machine is taken back, ECS only stops tasks of services. The tasks
of flow runs belong to no service, so on EC2 they read the notice from the machine's metadata.
"""


def ecs_files(kind: Kind) -> dict[str, str]:
    """The text of each file, by path."""
    home = files("segue.deployments")
    found = {f"{_FOLDER}/{name}": (home / "ecs" / name).read_text(encoding="utf-8") for name in _AS_THEY_ARE}
    for name in _IMAGES:
        text = (home / "kubernetes" / name).read_text(encoding="utf-8")
        found[f"{_FOLDER}/{name}"] = text.replace("deployments/kubernetes", _FOLDER).replace(",kubernetes,", ",ecs,")
    templates = {pool: json.dumps(job_template(kind, pool), indent=2) + "\n" for pool in POOLS}
    return found | {f"{_FOLDER}/pools/{pool}.json": text for pool, text in templates.items()}
