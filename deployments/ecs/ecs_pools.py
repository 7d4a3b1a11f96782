"""Makes the base job templates of the ECS pools, for `prefect work-pool create --base-job-template`.

Pools on Fargate have no accelerators. Pools on EC2 use machines with accelerators from capacity providers. The module
also makes the files that `segue init --pools fargate|ecs` writes below deployments/ecs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

from segue.deployments.containers import POOLS, PoolName, command, environment, image, number, text
from segue.doctor.pools.segment_job import SIGTERM_SECONDS

Kind = Literal["fargate", "ec2"]
CONTAINER = "segue"
STOP_SECONDS = 120
"""Seconds from SIGTERM to SIGKILL: the time from a spot notice to the preemption, and Fargate's maximum.

https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_ContainerDefinition.html (stopTimeout).
"""
_ROLES = "arn:aws:iam::ACCOUNT:role"
_PARENT_UNITS, _PARENT_MIB = 512, 2048
_SEGMENT_UNITS, _SEGMENT_MIB = 4096, 24576
_SHARED_MIB = 8192
_FOLDER = "deployments/ecs"
_AS_THEY_ARE = ("create-pools.sh", "worker-policy.json", "stopped-tasks.json", "queue-policy.json")
_IMAGES = ("images/Dockerfile.cpu", "images/Dockerfile.cuda")
RUN_GRACE_SECONDS = STOP_SECONDS - SIGTERM_SECONDS
"""Value of `grace_seconds` in run specs for these pools."""
NOTICES: Mapping[Kind, tuple[str, ...]] = {"fargate": (), "ec2": ("aws",)}
"""Metadata services that segments watch.

At a preemption, ECS stops only the tasks of services. The tasks of flow runs belong to no service, so on EC2 they read
the notice from the machine's metadata.
"""


def job_template(kind: Kind, pool: PoolName) -> dict[str, Any]:
    """Return the base job template of a pool. The function is pure."""
    return {"job_configuration": _configuration(kind, pool), "variables": _variables(kind, pool)}


def _configuration(kind: Kind, pool: PoolName) -> dict[str, Any]:
    as_they_are = [
        "command",
        "env",
        "labels",
        "name",
        "aws_credentials",
        "cluster",
        "configure_cloudwatch_logs",
        "auto_deregister_task_definition",
        "match_latest_revision_in_family",
        "prefect_api_key_secret_arn",
        "prefect_api_auth_string_secret_arn",
        "execution_role_arn",
    ]
    if _is_fargate(kind, pool):
        as_they_are += ["vpc_id", "network_configuration"]
    return {variable: f"{{{{ {variable} }}}}" for variable in as_they_are} | {
        "container_name": CONTAINER,
        "task_definition": _task_definition(kind, pool),
        "task_run_request": _request(),
    }


def _task_definition(kind: Kind, pool: PoolName) -> dict[str, Any]:
    return {
        "family": f"segue-{pool}",
        "cpu": "{{ cpu }}",
        "memory": "{{ memory }}",
        "executionRoleArn": "{{ execution_role_arn }}",
        "taskRoleArn": "{{ task_role_arn }}",
        "requiresCompatibilities": ["FARGATE" if _is_fargate(kind, pool) else "EC2"],
        # Fargate has no other mode than `awsvpc`. On EC2, Prefect would ask for a public address in this mode, but AWS
        # refuses it. With `bridge`, tasks use the network of their machine, and several tasks fit on one machine.
        "networkMode": "awsvpc" if _is_fargate(kind, pool) else "bridge",
        "containerDefinitions": [_container(kind, pool)],
    }


def _container(kind: Kind, pool: PoolName) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": "{{ image }}",
        "essential": True,
        # The container has the same values as the task. Without these values in the container, ECS refuses the task on
        # EC2.
        "cpu": "{{ cpu }}",
        "memory": "{{ memory }}",
        # ECS's init process passes SIGTERM on and reaps ended processes; segue's images also have an init process.
        "linuxParameters": {"initProcessEnabled": True},
        "stopTimeout": "{{ stop_seconds }}",
    }
    if not _is_fargate(kind, pool):
        container["resourceRequirements"] = [{"type": "GPU", "value": "{{ gpus }}"}]
        container["linuxParameters"]["sharedMemorySize"] = "{{ shared_memory_mib }}"
    return container


def _request() -> dict[str, Any]:
    container = {"name": CONTAINER, "command": "{{ command }}", "environment": "{{ env }}"}
    return {
        "cluster": "{{ cluster }}",
        "capacityProviderStrategy": "{{ capacity_provider_strategy }}",
        "tags": "{{ labels }}",
        "overrides": {"containerOverrides": [container], "taskRoleArn": "{{ task_role_arn }}"},
    }


def _is_fargate(kind: Kind, pool: PoolName) -> bool:
    return kind == "fargate" or pool == "parents"


def _provider(kind: Kind, pool: PoolName) -> str:
    if _is_fargate(kind, pool):
        return "FARGATE_SPOT" if pool == "spot" else "FARGATE"
    return f"segue-{pool}"


def _variables(kind: Kind, pool: PoolName) -> dict[str, Any]:
    is_parent = pool == "parents"
    strategy = [{"capacityProvider": _provider(kind, pool), "weight": 1, "base": 0}]
    properties: dict[str, Any] = {
        "name": text("Name of the task; None means the name of the flow run.", None),
        "command": command(pool),
        "env": environment("interrupted"),
        "labels": {"type": "object", "title": "Labels", "additionalProperties": {"type": "string"}},
        "image": image(has_accelerators=not _is_fargate(kind, pool)),
        "cluster": text("Name or ARN of the cluster of the tasks.", "segue"),
        "capacity_provider_strategy": {
            "type": "array",
            "title": "Capacity Provider Strategy",
            "description": "Capacity provider of the tasks. On EC2, it provides an auto scaling group of "
            + ("spot machines." if pool == "spot" else "on-demand machines."),
            "items": {"$ref": "#/definitions/CapacityProvider"},
            "default": strategy,
        },
        "cpu": number(
            "CPU units of the task; 1024 units are one core.", _PARENT_UNITS if is_parent else _SEGMENT_UNITS
        ),
        "memory": number(
            "Memory of the task in MiB, including staging buffers.", _PARENT_MIB if is_parent else _SEGMENT_MIB
        ),
        "stop_seconds": number(
            "Seconds from SIGTERM to SIGKILL. `grace_seconds` of the run spec must not be longer.",
            STOP_SECONDS,
        ),
        "task_role_arn": text("Role of the tasks, with the rights on the store.", f"{_ROLES}/segue-task"),
        "execution_role_arn": text(
            "Role with which ECS pulls a private image, reads secrets and writes logs.", f"{_ROLES}/segue-execution"
        ),
        "configure_cloudwatch_logs": _switch(
            "If true, the output also goes to CloudWatch, which needs the execution role.", False
        ),
        "auto_deregister_task_definition": _switch("If true, the task definition is removed after the task.", False),
        "match_latest_revision_in_family": _switch("If true, an existing equal task definition is used again.", True),
        "prefect_api_key_secret_arn": text(
            "Secret with the key of the Prefect API, for workers that have PREFECT_API_KEY; None means that the key is "
            "plain text in the tasks.",
            None,
        ),
        "prefect_api_auth_string_secret_arn": text(
            "Secret with PREFECT_API_AUTH_STRING, the user name and password of a Prefect server.", None
        ),
        "aws_credentials": {"title": "AWS Credentials", "allOf": [{"$ref": "#/definitions/AwsCredentials"}]},
    }
    if _is_fargate(kind, pool):
        properties |= {
            "vpc_id": text("VPC of the tasks; None means the default VPC.", None),
            "network_configuration": {
                "type": "object",
                "title": "Network Configuration",
                "description": "Subnets, security groups and assignPublicIp of the tasks, in the VPC `vpc_id`. If "
                "empty, tasks use all subnets of this VPC, with public addresses.",
                "additionalProperties": True,
            },
        }
    else:
        properties |= {
            "gpus": text("Number of accelerators of the task.", "1"),
            "shared_memory_mib": number("Size of /dev/shm in MiB, for data loader workers and NCCL.", _SHARED_MIB),
        }
    return {"type": "object", "properties": properties, "definitions": _DEFINITIONS}


def _switch(description: str, default: bool) -> dict[str, Any]:
    return {"description": description, "default": default, "type": "boolean"}


_DEFINITIONS: dict[str, Any] = {
    "CapacityProvider": {
        "type": "object",
        "title": "CapacityProvider",
        "required": ["capacityProvider", "weight", "base"],
        "properties": {
            "capacityProvider": {"type": "string", "title": "Capacityprovider"},
            "weight": {"type": "integer", "title": "Weight"},
            "base": {"type": "integer", "title": "Base"},
        },
    },
    "AwsCredentials": {
        "type": "object",
        "title": "AwsCredentials",
        "block_type_slug": "aws-credentials",
        "block_schema_references": {},
        "secret_fields": ["aws_secret_access_key"],
        "properties": {},
    },
}


def ecs_files(kind: Kind) -> dict[str, str]:
    """Return the text of each file, by path."""
    home = files("segue.deployments")
    found = {f"{_FOLDER}/{name}": (home / "ecs" / name).read_text(encoding="utf-8") for name in _AS_THEY_ARE}
    for name in _IMAGES:
        text = (home / "kubernetes" / name).read_text(encoding="utf-8")
        found[f"{_FOLDER}/{name}"] = text.replace("deployments/kubernetes", _FOLDER).replace(",kubernetes,", ",ecs,")
    templates = {pool: json.dumps(job_template(kind, pool), indent=2) + "\n" for pool in POOLS}
    return found | {f"{_FOLDER}/pools/{pool}.json": text for pool, text in templates.items()}
