"""Computes a segment's job from a pool's template and a deployment's variables: command, environment, grace period and
retries.

The input is the job configuration of a Prefect worker, with values for all variables. The supported workers are process
(Prefect 3.8), kubernetes (prefect-kubernetes 0.8) and ecs (prefect-aws 0.7). The module is pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from segue.doctor.pools.node_needs import NodeNeeds, node_needs

KUBERNETES, ECS, PROCESS = "kubernetes", "ecs", "process"
"""The types of pools whose job configuration segue can read."""
CONTAINERS = (KUBERNETES, ECS)

AVOIDED_NODES = "avoided_nodes"
"""Name of the job variable with the nodes that an attempt avoids. Without this variable, an attempt avoids no node."""
SIGTERM_VARIABLE = "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"
SIGTERM_SECONDS = 1
"""Longest time in seconds from SIGTERM at a container's first process until SIGTERM reaches the trainer.

The grace_seconds of a run may be at most the pool's grace period minus this time.
"""
_KUBERNETES_GRACE_SECONDS, _KUBERNETES_RETRIES, _ECS_GRACE_SECONDS = 30.0, 6, 30.0
"""Defaults of Kubernetes and ECS for the grace period and the retries."""
_RUNNER = "prefect flow-run execute"
"""The default command of the workers that start containers."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount of containers
ENGINES = ("prefect.engine", "prefect.flow_engine", "segue.flows.prefect_engine")
"""Python modules that run a flow run as an engine.

A segment receives SIGTERM in the engine's process. Prefect's own starter does not pass SIGTERM on to an engine.
"""
_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_BECOME = ("bash", "zsh", "ksh")
"""Shells that replace themselves with the command if a script consists of one simple command.

This behaviour was measured with bash 5.2. The shell dash does not replace itself.
"""
_PASS_ON = ("env", "exec", "nice", "ionice", "numactl", "tini", "dumb-init", "catatonit", "timeout")
"""Programs that replace themselves with their command, or that pass SIGTERM on to their command."""
_PYTHON = re.compile(r"python[\d.]*")
_ASSIGNMENT = re.compile(r"\w+=.*")
_RUNS_FLOW_RUN = re.compile(r"\bprefect\b.*\bflow-run\s+execute\b")
"""This pattern finds the command `prefect flow-run execute`, even with options between the words."""
_OPERATORS = frozenset("();<>|&")
"""Characters of shell operators.

If a command contains an operator, bash stays the parent process of the command, as measured with bash 5.2.
"""
_ENDS = (";", "&&")
"""The operators that separate the commands of a script."""


@dataclass(frozen=True)
class PoolJob:
    """The properties of a flow run's job, as far as they are known."""

    type: str
    """The type of the pool, as Prefect names it."""
    command: str | None = None
    """The whole command, including the container's entry point.

    If the value is None, the worker uses its default command.
    """
    environment: Mapping[str, str | None] = field(default_factory=dict)
    grace_seconds: float | None = None
    """Seconds from SIGTERM to SIGKILL. If the type of pool has no grace period, the value is None."""
    retries: int | None = None
    """Number of times that the platform restarts a failed job.

    If the platform never restarts jobs, the value is None.
    """
    restart_policy: str | None = None
    counts_ending_pods_as_failed: bool = False
    """Whether Kubernetes counts a pod as failed at SIGTERM, although the pod still runs."""
    keeps_finished: bool = False
    """Whether ended jobs stay in the cluster for ever."""
    has_shared_memory: bool | None = None
    """Whether /dev/shm is larger than the default of containers. If the size is unknown, the value is None."""
    memory: str | None = None
    """The memory of the container."""
    node_needs: NodeNeeds = field(default_factory=NodeNeeds)
    """The labels that the node of the job must have."""

    @property
    def is_container(self) -> bool:
        return self.type in CONTAINERS

    @property
    def is_known(self) -> bool:
        return self.type in (*CONTAINERS, PROCESS)

    @property
    def starts_runner(self) -> bool:
        """Whether the command is `prefect flow-run execute`, which does not pass SIGTERM on to the engine."""
        return self.command is None or starts_runner(self.command)

    @property
    def starts_engine(self) -> bool | None:
        """Whether the command itself is an engine. If the answer is unknown, the value is None."""
        return False if self.command is None else starts_engine(self.command)


def job_of(pool_type: str, configuration: Mapping[str, Any]) -> PoolJob:
    """Return the job of a job configuration, in which each variable has a value.

    The platform's defaults replace missing settings.
    """
    if pool_type == KUBERNETES:
        return _kubernetes(configuration)
    if pool_type == ECS:
        return _ecs(configuration)
    command, env = _words(configuration.get("command")), configuration.get("env")
    return PoolJob(type=pool_type, command=command, environment=_environment(env))


def _kubernetes(configuration: Mapping[str, Any]) -> PoolJob:
    job = _at(configuration, "job_manifest", "spec")
    pod = _at(job, "template", "spec")
    container = _first(pod.get("containers"))
    return PoolJob(
        type=KUBERNETES,
        # The worker starts the container's `args`, which are the pool's command only if the template says so.
        command=_in_container(container.get("command"), container.get("args")),
        environment=_environment(container.get("env")) | _environment(configuration.get("env")),
        grace_seconds=_number(pod.get("terminationGracePeriodSeconds"), _KUBERNETES_GRACE_SECONDS),
        retries=int(_number(job.get("backoffLimit"), _KUBERNETES_RETRIES)),
        restart_policy=pod.get("restartPolicy"),
        # With a podFailurePolicy, `Failed` is the default.
        counts_ending_pods_as_failed=job.get("podReplacementPolicy") != "Failed" and not job.get("podFailurePolicy"),
        keeps_finished=job.get("ttlSecondsAfterFinished") is None,
        has_shared_memory=_has_memory_volume(pod, container),
        node_needs=node_needs(pod),
    )


def _has_memory_volume(pod: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    """Whether an emptyDir in memory is mounted at /dev/shm."""
    mounts = container.get("volumeMounts") or ()
    names = {mount.get("name") for mount in mounts if mount.get("mountPath") == _SHARED_MEMORY}
    in_memory = (each for each in pod.get("volumes") or () if _at(each, "emptyDir").get("medium") == "Memory")
    return any(volume.get("name") in names for volume in in_memory)


def _in_container(entry_point: Any, arguments: Any) -> str | None:
    """Return the command line of a container's process. If the worker uses its default command, return None."""
    first = _list(entry_point)
    return _words([*first, *(_list(arguments) or shlex.split(_RUNNER))]) if first else _words(arguments)


def _ecs(configuration: Mapping[str, Any]) -> PoolJob:
    task, request = configuration.get("task_definition") or {}, configuration.get("task_run_request") or {}
    name = configuration.get("container_name")
    containers = task.get("containerDefinitions") or ()
    container = next((each for each in containers if each.get("name") == name), _first(containers))
    override = _first(_at(request, "overrides").get("containerOverrides"))
    memory = (container.get("memory"), container.get("memoryReservation"), override.get("memory"), task.get("memory"))
    environments = (container.get("environment"), override.get("environment"), configuration.get("env"))
    commands = (configuration.get("command"), override.get("command"), container.get("command"))
    return PoolJob(
        type=ECS,
        command=_in_container(container.get("entryPoint"), next((given for given in commands if given), None)),
        environment={variable: text for each in environments for variable, text in _environment(each).items()},
        grace_seconds=_number(container.get("stopTimeout"), _ECS_GRACE_SECONDS),
        memory=next((str(given) for given in memory if given), None),
    )


def _at(value: Any, *path: str) -> Mapping[str, Any]:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _first(items: Any) -> Mapping[str, Any]:
    found = next(iter(items), None) if isinstance(items, Sequence) and not isinstance(items, str) else None
    return found if isinstance(found, Mapping) else {}


def _list(value: Any) -> list[str]:
    if value is None:
        return []
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value]


def _words(value: Any) -> str | None:
    words = _list(value)
    return shlex.join(words) if words else None


def _number(value: Any, default: float) -> float:
    """Return a number from a template, which may contain the number as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


def _environment(given: Any) -> dict[str, str | None]:
    """Return environment variables from a mapping, or from a list of names and values as in Kubernetes and ECS."""
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    pairs = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    return {str(pair["name"]): pair.get("value") for pair in pairs if isinstance(pair, Mapping) and "name" in pair}


def starts_runner(command: str) -> bool:
    """Whether this command contains `prefect flow-run execute`, Prefect's own starter."""
    return _RUNS_FLOW_RUN.search(command) is not None


def starts_engine(command: str) -> bool | None:
    """Whether SIGTERM to the process of this command reaches an engine. If the answer is unknown, return None."""
    try:
        return _is_engine(shlex.split(command))
    except ValueError:  # A quote that is not closed.
        return None


def _is_engine(words: Sequence[str]) -> bool | None:
    words = list(words)
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    if not words:
        return None
    program = PurePosixPath(words[0]).name
    if program in _PASS_ON:
        found = (at for at, word in enumerate(words) if at and _is_known(PurePosixPath(word).name))
        at = next(found, None)
        return None if at is None else _is_engine(words[at:])
    if _PYTHON.fullmatch(program):
        module = next((name for option, name in pairwise(words) if option == "-m"), None)
        if module == "prefect":
            return False
        return True if module in ENGINES else None  # Other modules may start the engine: `python -m coverage run`.
    if program in _SHELLS:
        return _is_engine_of_script(_script_of(words), becomes_one=program in _BECOME)
    return False if program == "prefect" else None


def _is_known(program: str) -> bool:
    return program in (*_SHELLS, *_PASS_ON, "prefect") or _PYTHON.fullmatch(program) is not None


def _script_of(words: Sequence[str]) -> str | None:
    """Return the script in the arguments of a shell. If the script is in a file, return None."""
    return next((script for option, script in pairwise(words) if re.fullmatch(r"-[a-z]*c", option)), None)


def _is_engine_of_script(script: str | None, *, becomes_one: bool) -> bool | None:
    """Whether the script's last command replaces the shell with an engine.

    If the shell is not replaced, SIGTERM reaches only the shell.
    """
    commands = _commands(script) if script is not None else []
    if not commands:
        return None
    last = commands[-1]
    is_plain = not any(set(word) <= _OPERATORS for word in last)
    if "||" in last:  # The words after it are for the case that the command could not be started.
        last = last[: last.index("||")] or [""]
    if last[0] == "exec" and not {"|", "&", "|&", "(", ")"} & set(last):
        return _is_engine(last[1:])
    found = _is_engine(last)
    if not found:
        return found
    if not is_plain:
        return False
    # If other commands come first, the result depends on the shell and its version.
    return True if becomes_one and len(commands) == 1 else None


def _commands(script: str) -> list[list[str]]:
    """Return the words of each command of a script."""
    lexer = shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in _ENDS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]
