"""`segue init`: write the files with which a user's repository starts to use segue."""

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
"""Maps each path in the user's repository to the name of its packaged template, for process pools."""
_OF_PROCESS_POOLS = ("deployments/process.json", "deployments/create-pools.sh")
_JOB_VARIABLES = re.compile(r"^( +)job_variables:.*\n(?:\1 +.*\n)*", re.MULTILINE)
_GRACE = re.compile(r"^( *)(grace_seconds(?: = |: ))[\d.]+$", re.MULTILINE)
"""Pattern of the line in a run spec that sets `grace_seconds`."""
_SERVICES = re.compile(r"^# Metadata services .*\n# notices = .*$", re.MULTILINE)
_WATCHED = "# Metadata services to watch for termination notices"
_NO_SERVICE = f"{_WATCHED}: none, because the platform sends SIGTERM before it stops a machine."
_WITH_SERVICE = f"{_WATCHED}, because SIGTERM may come late or not at all."
_OF_SLOTS = "# One second less than the grace period of the spot pool."
_RECOVER_EVERY = "        interval: 30\n"
_RECOVER_IN_CONTAINERS = """\
        # Each look starts a container. A shorter interval finds dead parents sooner, but costs more.
        interval: 300
"""


class PoolService(StrEnum):
    """The platform of the work pools, which start segments and parents."""

    PROCESS = "process"
    EKS = "eks"
    GKE = "gke"
    AKS = "aks"
    FARGATE = "fargate"
    ECS = "ecs"


def init(
    pools: Annotated[
        PoolService,
        typer.Option(
            help="Platform of the work pools: processes on the worker's machine (process); Kubernetes on Amazon EKS "
            "with Karpenter, Google GKE or Azure AKS; Amazon ECS on Fargate, or on EC2 with accelerators (ecs).",
        ),
    ] = PoolService.PROCESS,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Show how the files in this folder differ from this version's; write nothing."),
    ] = False,
) -> None:
    """Write an example recipe, a run spec, a retraining, Prefect deployments and a CI step into this folder.

    Files that already exist are not changed. Exit code 0.
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


def texts_of(pools: PoolService) -> dict[str, str]:
    """Return the text of each file that this version of segue writes, by path."""
    texts = {path: template(Path(path)) for path in FILES}
    if pools is PoolService.PROCESS:
        return texts
    if pools in (PoolService.FARGATE, PoolService.ECS):
        from segue.deployments.ecs.ecs_pools import NOTICES, RUN_GRACE_SECONDS, ecs_files

        kind: Kind = "fargate" if pools is PoolService.FARGATE else "ec2"
        folder, of_pools, grace_seconds, notices = "ecs", ecs_files(kind), RUN_GRACE_SECONDS, NOTICES[kind]
    else:
        from segue.deployments.kubernetes.clouds import CLOUDS
        from segue.deployments.kubernetes.kubernetes_pools import kubernetes_files, run_grace_seconds

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
    """Return the text that this version of segue writes to this path for process pools."""
    return _packaged(FILES[path.as_posix()])


def _packaged(name: str) -> str:
    return (files("segue.deployments") / "templates" / name).read_text(encoding="utf-8")


def difference(path: Path, text: str) -> list[str]:
    """Return the lines of a unified diff from the file at `path` to `text`. If both are equal, return no lines."""
    with writing(path):
        there = path.read_text(encoding="utf-8") if path.exists() else ""
    name = str(path) if path.exists() else "/dev/null"
    lines = difflib.unified_diff(there.splitlines(), text.splitlines(), name, str(path), lineterm="")
    found = list(lines)
    return [*found, ""] if found else []


def _in_containers(prefect_yaml: str, folder: str) -> str:
    """Return prefect.yaml for pools of containers. The pool sets the command, and the image sets the folder."""
    where, _, definitions = prefect_yaml.partition("\n# Where flow runs start.")
    header = where.replace("deployments/create-pools.sh", f"deployments/{folder}/create-pools.sh")
    header = header.replace("SEGUE_HOME=$PWD ", "")
    _, _, definitions = definitions.partition("\ndefinitions:")
    definitions = definitions.replace(_RECOVER_EVERY, _RECOVER_IN_CONTAINERS)
    return f"{header}\ndefinitions:{_JOB_VARIABLES.sub('', definitions)}"


def _write(path: Path, text: str) -> bool:
    """If the file does not exist yet, write it and return True."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
    return True
