"""`segue init`: the files with which a repository of the user's starts to use segue."""

from __future__ import annotations

import difflib
import json
import re
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from segue.cli.options import DEFAULT_SPEC, writing
from segue.reports.console import console

if TYPE_CHECKING:
    from segue.deployments.ecs.ecs_pools import Kind
    from segue.deployments.kubernetes.clouds import CloudName

FILES = {
    "train.py": "train.py",
    "run.toml": "run.toml",
    "retrain.toml": "retrain.toml",
    "prefect.yaml": "prefect.yaml",
    "deployments/process.json": "process.json",
    "deployments/create-pools.sh": "create-pools.sh",
    ".github/workflows/segue.yml": "workflow.yml",
}
"""Path in the user's repository, and the packaged template that is written there, for process pools."""
_OF_PROCESS_POOLS = ("deployments/process.json", "deployments/create-pools.sh")
_JOB_VARIABLES = re.compile(r"^( +)job_variables:.*\n(?:\1 +.*\n)*", re.MULTILINE)
_GRACE = re.compile(r"^( *)(grace_seconds(?: = |: ))[\d.]+$", re.MULTILINE)
"""The line of run specs that says how long a pool gives a segment after SIGTERM."""
_SERVICES = re.compile(r"^# Metadata services .*\n# notices = .*$", re.MULTILINE)
_WATCHED = "# Metadata services to watch for termination notices"
_NO_SERVICE = f"{_WATCHED}: none, because the platform sends SIGTERM ahead of the end."
_WITH_SERVICE = f"{_WATCHED}, because SIGTERM may come late or not at all."
_OF_SLOTS = "# A second less than what the spot pool gives after SIGTERM."
_RECOVER_EVERY = "        interval: 30\n"
_RECOVER_IN_CONTAINERS = """\
        # Each look starts a container: a shorter interval finds dead parents sooner, and costs more.
        interval: 300
"""


class Pools(StrEnum):
    """The platform on which the work pools start segments and parents."""

    PROCESS = "process"
    EKS = "eks"
    GKE = "gke"
    AKS = "aks"
    FARGATE = "fargate"
    ECS = "ecs"


def init(
    pools: Annotated[
        Pools,
        typer.Option(
            help="Kind of the work pools: processes of the worker's own machine; Kubernetes on Amazon EKS with "
            "Karpenter, Google GKE or Azure AKS; Amazon ECS on Fargate, or on EC2 machines with accelerators (ecs).",
        ),
    ] = Pools.PROCESS,
    diff: Annotated[bool, typer.Option("--diff", help="Show what differs from this version; write nothing.")] = False,
) -> None:
    """Write an example recipe, a run spec, a retraining, Prefect deployments and a CI step into this folder.

    Files that exist are kept. Exit code 0.
    """
    texts = texts_of(pools)
    if diff:
        for path, text in texts.items():
            console.print("\n".join(difference(Path(path), text)), markup=False, soft_wrap=True, end="")
        return
    for path, text in texts.items():
        is_new = _write(Path(path), text)
        console.print(f"{'wrote' if is_new else 'kept '} {path}{'' if is_new else ' (it exists)'}", markup=False)
    for step, command in (("Next", "drill"), ("Then", "run")):
        console.print(f"{step}: segue {command} train:build --config {DEFAULT_SPEC}", markup=False)


def texts_of(pools: Pools) -> dict[str, str]:
    """The text of each file that this version writes, by its path."""
    texts = {path: template(Path(path)) for path in FILES}
    if pools is Pools.PROCESS:
        return texts
    if pools in (Pools.FARGATE, Pools.ECS):
        from segue.deployments.ecs.ecs_files import NOTICES, RUN_GRACE_SECONDS, ecs_files

        kind: Kind = "fargate" if pools is Pools.FARGATE else "ec2"
        folder, of_pools, grace_seconds, notices = "ecs", ecs_files(kind), RUN_GRACE_SECONDS, NOTICES[kind]
    else:
        from segue.deployments.kubernetes.clouds import CLOUDS
        from segue.deployments.kubernetes.kubernetes_files import kubernetes_files, run_grace_seconds

        cloud = cast("CloudName", pools.value)
        folder, of_pools = "kubernetes", kubernetes_files(cloud)
        grace_seconds, notices = run_grace_seconds(cloud), CLOUDS[cloud].notices
    texts = {path: text for path, text in texts.items() if path not in _OF_PROCESS_POOLS}
    grace = rf"\1\g<2>{grace_seconds:.1f}"
    named = json.dumps(list(notices))
    lines = f"{_WITH_SERVICE if notices else _NO_SERVICE}\nnotices = {named}"
    of_slots = f"{_OF_SLOTS}\ngrace_seconds = {grace_seconds:.1f}\n{lines}\n"
    changed = {
        "prefect.yaml": _GRACE.sub(rf"{grace}\n\1notices: {named}", _in_containers(texts["prefect.yaml"], folder)),
        "run.toml": _GRACE.sub(grace, _SERVICES.sub(lines, texts["run.toml"])),
        "retrain.toml": texts["retrain.toml"] + of_slots,  # The run spec is its last section.
    }
    return texts | changed | {".dockerignore": _packaged("dockerignore")} | of_pools


def template(path: Path) -> str:
    """The text that this version writes to a path, for process pools."""
    return _packaged(FILES[path.as_posix()])


def _packaged(name: str) -> str:
    return (files("segue.deployments") / "templates" / name).read_text(encoding="utf-8")


def difference(path: Path, text: str) -> list[str]:
    """Lines of a unified diff from the file that is there to this text; none if they are equal."""
    with writing(path):
        there = path.read_text(encoding="utf-8") if path.exists() else ""
    name = str(path) if path.exists() else "/dev/null"
    lines = difflib.unified_diff(there.splitlines(), text.splitlines(), name, str(path), lineterm="")
    found = list(lines)
    return [*found, ""] if found else []


def _in_containers(prefect_yaml: str, folder: str) -> str:
    """The deployments for pools whose jobs have an image: command and folder are those of pool and image."""
    where, _, definitions = prefect_yaml.partition("\n# Where flow runs start.")
    header = where.replace("deployments/create-pools.sh", f"deployments/{folder}/create-pools.sh")
    header = header.replace("SEGUE_HOME=$PWD ", "")
    _, _, definitions = definitions.partition("\ndefinitions:")
    definitions = definitions.replace(_RECOVER_EVERY, _RECOVER_IN_CONTAINERS)
    return f"{header}\ndefinitions:{_JOB_VARIABLES.sub('', definitions)}"


def _write(path: Path, text: str) -> bool:
    """Write a file unless it exists; returns whether it was written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
    return True
