"""`python -m benchmarks all`: the benchmarks one after the other, and one table of their figures."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.common.child import child_environment
from benchmarks.common.recorded import record, runs_of, tables_of
from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.clock import SystemClock
from segue.reports.console import console

_QUICK: dict[str, tuple[str, ...]] = {
    "checkpoint": ("--quick", "--many-tensors", "1000"),
    "overhead": ("--rounds", "1"),
    "growth": (),
    "turnaround": ("--count", "2"),
    "waiting": ("--quick",),
    "crash": ("--quick",),
    "fencing": ("--worlds", "500"),
    "datacheck": ("--rows", "200000", "--rounds", "1"),
    "dispatch": ("--count", "20"),
}
_WHOLE: dict[str, tuple[str, ...]] = dict.fromkeys((*_QUICK, "continuity", "fleet"), ())
_PACKAGES = ("segue", "torch", "prefect", "safetensors", "boto3", "obstore", "lightning", "accelerate")


def every(
    quick: Annotated[bool, typer.Option("--quick", help="The smallest sizes, in about 15 minutes.")] = False,
    only: Annotated[str | None, typer.Option(help="Benchmarks by name, separated by commas.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the figures: all.json and all.md.")] = Path("build"),
    keep: Annotated[bool, typer.Option("--record", help="Also record the figures for docs/benchmarks.md.")] = False,
) -> None:
    """Run the benchmarks one after the other, and write one table of their figures, with date, machine and versions.

    `deadline` and `chaos` are not included, because they need traces and a person's schedule. With --record, `make
    docs` then writes the tables of docs/benchmarks.md. Exit code 0: every benchmark ended with exit code 0.
    """
    leave_as_on_ctrl_c()
    if quick and keep:
        raise typer.BadParameter("the figures of --quick are not recorded. Fix: leave out --quick or --record.")
    asked = _QUICK if quick else _WHOLE
    names = [*asked] if only is None else only.split(",")
    if unknown := [name for name in names if name not in asked]:
        raise typer.BadParameter(f"there is no benchmark {unknown[0]} here. Fix: use some of {', '.join(asked)}.")
    report: dict[str, Any] = {"about": _about(is_quick=quick), "benchmarks": {}}
    folder.mkdir(parents=True, exist_ok=True)
    with progress() as say:
        for number, name in enumerate(names, 1):
            say(f"{number} of {len(names)}: {name}")
            report["benchmarks"][name] = _run(name, asked[name])
            (folder / "all.json").write_text(json.dumps(report, indent=1))
            (folder / "all.md").write_text(as_markdown(report))
    if keep:
        record(report)
    console.print(as_markdown(report).rstrip(), markup=False, highlight=False, soft_wrap=True)
    if any(each["exit_code"] for each in report["benchmarks"].values()):
        raise typer.Exit(1)


def _about(*, is_quick: bool) -> dict[str, Any]:
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        **_now(),
        "size": "quick" if is_quick else "whole",
        "processor": processor[1] if processor else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _now() -> dict[str, Any]:
    return {"date": SystemClock().now().isoformat(timespec="seconds"), "load before": round(os.getloadavg()[0], 1)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _run(name: str, options: tuple[str, ...]) -> dict[str, Any]:
    command, began, now = [sys.executable, "-m", "benchmarks", name, *options, "--json"], time.perf_counter(), _now()
    done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=False)
    figures = json.loads(done.stdout) if done.stdout.strip() else {}
    seconds = round(time.perf_counter() - began, 1)
    return now | {"options": options, "exit_code": done.returncode, "seconds": seconds, "figures": figures}


def as_markdown(report: Mapping[str, Any]) -> str:
    """The tables of docs/benchmarks.md for this report, and one table with each figure of each benchmark."""
    about = [f"{name}: {value}" for name, value in report["about"].items()]
    lines = ["; ".join(about), ""]
    for name, run in runs_of(report).items():
        lines += [f"## {name}", "", tables_of(run, name), ""]
    lines += ["## All figures", "", "| benchmark | figure | measured |", "| --- | --- | --- |"]
    for name, each in report["benchmarks"].items():
        lines.append(f"| `{name}` | exit code; seconds | {each['exit_code']}; {each['seconds']} |")
        lines += [f"| `{name}` | {path} | {value} |" for path, value in _leaves(each["figures"], "")]
    return "\n".join(lines) + "\n"


def _leaves(figures: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each number and text in these figures, with the path of its names."""
    if isinstance(figures, Mapping):
        for name, each in figures.items():
            yield from _leaves(each, f"{path}, {name}" if path else str(name))
    elif isinstance(figures, list) and any(isinstance(each, Mapping) for each in figures):
        for each in figures:
            yield from _leaves(each, path)
    elif figures is not None:
        yield path.replace("_", " "), figures
