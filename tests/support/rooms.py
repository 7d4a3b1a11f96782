"""The rooms of the source tree and the arrows between them, computed from the imports themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOMES = {"segue": "segue", "flows": "segue.flows", "tasks": "segue.tasks", "deployments": "segue.deployments"}
"""Where sources lie, and the import name of what lies there."""

ROOMS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli.main",),
    ("cli.retraining",),
    ("cli",),
    ("deployments.local_stack", "deployments.ecs", "deployments.kubernetes"),
    ("deployments.workers",),
    ("deployments",),
    ("deployments.templates",),
    ("flows",),
    ("tasks",),
    ("prefect.recovery", "prefect.doctor"),
    ("prefect.slots",),
    ("prefect.prefect_orchestrator",),
    ("prefect.ui",),
    ("prefect",),
    ("retraining.triggers", "retraining.versions"),
    ("retraining.gate", "doctor.registry"),
    ("doctor.pools",),
    ("planning", "run", "integrations", "local_session", "metrics", "retraining", "doctor"),
    ("retraining.gate.record",),
    ("resume_drill",),
    ("verification",),
    ("interop", "reports", "local_attempt"),
    ("trainer", "controller"),
    ("trainer.resuming", "controller.waiting"),
    ("trainer.replays",),
    ("trainer.process", "controller.steps"),
    ("trainer.claim",),
    ("trainer.programs", "controller.costs", "controller.attempt_ends"),
    ("trainer.workloads", "controller.standbys"),
    ("trainer.workloads.steps", "controller.liveness", "controller.orchestrator"),
    ("trainer.ranks",),
    ("trainer.health",),
    ("simulation", "curves"),
    ("policy",),
    ("policy.rules", "policy.machines"),
    ("continuity.carried",),
    ("continuity.untracked",),
    ("continuity",),
    ("checkpoints",),
    ("checkpoints.loading",),
    ("checkpoints.saving",),
    ("checkpoints.format",),
    ("notices",),
    ("runlog",),
    ("launch.early",),
    ("launch.registry",),
    ("launch.ray", "launch.slurm"),
    ("launch", "stores"),
    ("sessions",),
    ("hosting",),
    ("recipe_check",),
    ("data", "recipe"),
    ("data.tables",),
    ("spec",),
    ("parsing", "policies", "signing", "user_objects"),
    ("errors",),
    ("records",),
    ("clock", "credentials", "markup", "process", "shard", "units"),
)
"""Top to bottom. A room imports those below it, and none of its own line or above."""
APART = ("testing",)
"""For tests of segue and of its users: looks at what it fakes, and nothing shipped looks at it."""


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once in a process and not to be changed."""
    return ast.parse(path.read_text())


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its import name."""
    found = {}
    for folder, package in HOMES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name] = tree_of(path)
    return found


@cache
def arrows() -> tuple[tuple[str, str], ...]:
    """Every import of one module by another, at the top of a file or inside a function."""
    return tuple(_arrows(modules()))


def _arrows(known: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    for name, tree in known.items():
        if name == "segue":
            continue  # The public surface names rooms; it is none.
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names if alias.name in known and alias.name != "segue")
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    target = full if full in known else node.module
                    if target in known and target.count("."):
                        yield name, target


def room_of(module: str) -> str:
    """The room a module lies in: the longest that its name begins with."""
    inner = module.removeprefix("segue.")
    rooms = [room for line in ROOMS for room in line] + list(APART)
    fits = [room for room in rooms if inner == room or inner.startswith(f"{room}.")]
    return max(fits, key=len, default=inner)


def upward() -> list[str]:
    """The imports that go up, or sideways within a line."""
    height = {room: -number for number, line in enumerate(ROOMS) for room in line}
    found = []
    for source, target in arrows():
        one, other = room_of(source), room_of(target)
        if one == other or one in APART:
            continue
        if other in APART or height[one] <= height[other]:
            found.append(f"{source} imports {target}")
    return sorted(set(found))


def packages() -> set[str]:
    """Every folder with sources, by its name below `segue`."""
    inner = (name.removeprefix("segue.").rsplit(".", 1) for name in modules() if name.count(".") > 1)
    return {package for package, _ in inner}


def circles_of_files() -> list[tuple[str, ...]]:
    """Modules that can be reached from themselves, imports inside of functions included."""
    graph: dict[str, set[str]] = {}
    for source, target in arrows():
        if source != target:
            graph.setdefault(source, set()).add(target)
    return [group for group in _strong_components(graph) if len(group) > 1]


def cycles() -> list[tuple[str, ...]]:
    """Rooms that can be reached from themselves, by first folder or file below `segue`, whatever `ROOMS` holds."""
    graph: dict[str, set[str]] = {}
    for source, target in arrows():
        one, other = (name.split(".")[1] for name in (source, target))
        if one != other:
            graph.setdefault(one, set()).add(other)
    return [group for group in _strong_components(graph) if len(group) > 1]


def _strong_components(graph: dict[str, set[str]]) -> list[tuple[str, ...]]:
    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for following in graph.get(waiting.pop(), ()):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return seen

    reach = {room: reachable(room) for room in graph}
    groups = {
        tuple(sorted({room} | {other for other in seen if room in reach.get(other, ())}))
        for room, seen in reach.items()
    }
    return sorted(groups)
