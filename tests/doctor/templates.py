"""Job configurations as the workers of Prefect fill them in: those of their default templates, and sound ones."""

from __future__ import annotations

import copy
from typing import Any

Fields = dict[str, Any]

ENGINE = "python -m segue.flows.prefect_engine"

KUBERNETES: dict[str, Any] = {
    "command": None,
    "env": {},
    "job_manifest": {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": None,
            "template": {
                "spec": {
                    "parallelism": 1,
                    "completions": 1,
                    "restartPolicy": "Never",
                    "containers": [{"name": "prefect-job", "env": {}, "image": "train:1", "args": None}],
                }
            },
        },
    },
}
"""The default template of prefect-kubernetes 0.8, filled in."""

ECS: dict[str, Any] = {
    "command": None,
    "env": {},
    "container_name": None,
    "task_definition": {"containerDefinitions": [{"image": "train:1", "name": None}], "cpu": None, "memory": None},
    "task_run_request": {
        "launchType": "FARGATE_SPOT",
        "overrides": {"containerOverrides": [{"name": None, "command": None, "environment": {}, "memory": None}]},
    },
}
"""The default template of prefect-aws 0.7, filled in."""


def kubernetes(
    *, pod: dict[str, Any] | None = None, job: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A sound job of Kubernetes, changed."""
    made = copy.deepcopy(KUBERNETES) | {"command": ENGINE} | fields
    spec = made["job_manifest"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    container["args"] = made["command"]  # As `{{ command }}` in the template.
    container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}]
    spec["template"]["spec"] |= {"volumes": volumes, "terminationGracePeriodSeconds": 60} | (pod or {})
    spec |= {"ttlSecondsAfterFinished": 3600, "podReplacementPolicy": "Failed"} | (job or {})
    return made


def ecs(*, container: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A sound job of ECS, changed."""
    made = copy.deepcopy(ECS) | {"command": ENGINE} | fields
    made["task_definition"]["containerDefinitions"][0] |= {"stopTimeout": 120, "memory": 4096} | (container or {})
    return made
