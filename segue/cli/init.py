"""`segue init`: the files with which a repository of the user's starts to use segue."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.options import writing
from segue.reports.console import console

FILES = {
    "train.py": "train.py",
    "run.toml": "run.toml",
    "retrain.toml": "retrain.toml",
    "prefect.yaml": "prefect.yaml",
    "deployments/process.json": "process.json",
    "deployments/create-pools.sh": "create-pools.sh",
    ".github/workflows/segue.yml": "workflow.yml",
}
"""Path in the user's repository, and the packaged template that is written there."""


def init(
    diff: Annotated[bool, typer.Option("--diff", help="Show what differs from this version; write nothing.")] = False,
) -> None:
    """Write an example recipe, a run spec, a retraining, Prefect deployments and a CI step into this folder.

    Files that exist are kept. Exit code 0.
    """
    if diff:
        for path in FILES:
            console.print("\n".join(difference(Path(path))), markup=False, soft_wrap=True, end="")
        return
    for path in FILES:
        is_new = _write(Path(path))
        console.print(f"{'wrote' if is_new else 'kept '} {path}{'' if is_new else ' (it exists)'}", markup=False)
    console.print("Next: segue drill train:build, then segue run train:build --steps 300", markup=False)


def template(path: Path) -> str:
    """The text that this version writes to a path."""
    return (files("segue.deployments") / "templates" / FILES[path.as_posix()]).read_text(encoding="utf-8")


def difference(path: Path) -> list[str]:
    """Lines of a unified diff from the file that is there to what this version writes; none where they are equal."""
    with writing(path):
        there = path.read_text(encoding="utf-8") if path.exists() else ""
    name = str(path) if path.exists() else "/dev/null"
    lines = difflib.unified_diff(there.splitlines(), template(path).splitlines(), name, str(path), lineterm="")
    found = list(lines)
    return [*found, ""] if found else []


def _write(path: Path) -> bool:
    """Write the template unless the path exists; returns whether it was written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(template(path))
        except FileExistsError:
            return False
    return True
