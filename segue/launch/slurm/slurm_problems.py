"""Finds the problems of a run's `[slurm]` table before a job is submitted."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from pathlib import Path

from segue.errors import SlurmSetupError
from segue.launch.problem import Problem, refusals
from segue.launch.slurm.commands import CommandResult, ask
from segue.launch.slurm.script import limit_minutes, shape_options, time_limit
from segue.launch.slurm.slurm_partition import Partition, partition_shown, priority_kill_wait
from segue.spec import RunSpec
from segue.spec.launchers import SlurmSpec

log = logging.getLogger(__name__)

_COMMANDS = ("sbatch", "scontrol", "scancel", "squeue")
_PERHAPS_LATER = re.compile(r"requested node configuration is not available|node.* not available|busy|down", re.I)
"""Answers of `sbatch --test-only` that may be temporary, because nodes are drained or a partition is down.

The answers were measured with Slurm 22.05.
"""

_LIMIT = re.compile(r"violates accounting/qos|qosmax|qosgrp|assoc\w*limit|assocmax|assocgrp|maxsubmit", re.I)
"""Answers of `sbatch --test-only` about limits, such as the highest number of a user's jobs."""
_NO_RIGHTS = re.compile(r"not permitted to use this partition|access/permission denied", re.I)
_NO_PARTITION = re.compile(r"not found|invalid partition", re.I)

_USABLE = [["up", state] for state in ("idle", "alloc", "mix", "comp", "plnd")]
"""Partition availability and node state of usable nodes, in sinfo's short form. Unusable states are e.g. `down*`."""


def has_slurm() -> bool:
    """Whether this machine has Slurm's commands."""
    return all(shutil.which(command) is not None for command in _COMMANDS)


def slurm_problems(spec: RunSpec) -> list[Problem]:
    """Return the problems that prevent a run's jobs from running, and the parts that could not be checked.

    The list is empty if the run has no `[slurm]` table. The call submits nothing. If the controller does not answer,
    the call blocks for ten seconds, and the run waits instead of being refused.
    """
    slurm = spec.slurm
    if slurm is None:
        return []
    if not has_slurm():
        missing = ", ".join(command for command in _COMMANDS if shutil.which(command) is None)
        fix = "run segments on a machine with Slurm's commands (a login node), or remove [slurm] from the run spec"
        return [Problem(what=f"this machine has no {missing}", fix=fix)]
    found = _folder_problems(slurm)
    settings = ask(["scontrol", "show", "config"])
    for field, partition in {"spot": slurm.spot, "on_demand": slurm.on_demand}.items():
        answer = ask(["scontrol", "--all", "show", "partition", partition])
        if answer.code and _NO_PARTITION.search(answer.trouble + answer.output) is None:
            found.append(_silent(answer))
            break
        found += _partition_problems(spec, field, partition, answer, kill_wait=priority_kill_wait(settings.output))
    return found


def require_slurm(spec: RunSpec) -> None:
    """Refuse a run whose jobs cannot run on the Slurm cluster.

    Raises:
        SlurmSetupError: there are problems. The message has each problem and its fix.
    """
    problems = refusals(slurm_problems(spec))
    if problems:
        raise SlurmSetupError(problems=problems)


def _silent(answer: CommandResult) -> Problem:
    what = f"the Slurm controller does not answer ({answer.why}), so partitions and rights are not checked"
    fix = "check that slurmctld and munge run (`scontrol ping`); jobs are submitted when the controller answers"
    return Problem(what=what, fix=fix, is_certain=False)


def _folder_problems(slurm: SlurmSpec) -> list[Problem]:
    folder = Path(slurm.folder).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return []
    except OSError as error:
        fix = "set slurm.folder to a folder on a file system that all nodes and this machine share"
        return [
            Problem(what=f"the folder {folder} for the output of jobs cannot be written ({error.strerror})", fix=fix)
        ]


def _partition_problems(
    spec: RunSpec, field: str, name: str, answer: CommandResult, *, kill_wait: int | None
) -> list[Problem]:
    slurm, partition = spec.slurm, partition_shown(answer.output)
    assert slurm is not None
    refused = ask(["sbatch", "--test-only", *shape_options(spec, partition=name), "--wrap=true"])
    if answer.code or partition is None or _NO_RIGHTS.search(refused.trouble):
        why = f" ({refused.why})" if refused.code and not refused.is_silence else ""
        fix = f"set slurm.{field} to a partition that `sinfo` lists, or ask for access to it"
        return [Problem(what=f"there is no Slurm partition {name!r} that this user may use{why}", fix=fix)]
    found = _held_problems(spec, slurm, field, partition) or _refused_problems(spec, slurm, field, partition)
    return found + (_preemption_problems(spec, partition, kill_wait) if field == "spot" else [])


def _held_problems(spec: RunSpec, slurm: SlurmSpec, field: str, partition: Partition) -> list[Problem]:
    """Return the requests that Slurm would accept and then hold for ever (`PartitionConfig`, `PartitionTimeLimit`)."""
    found = []
    most = min(partition.nodes, partition.nodes if partition.most_nodes is None else partition.most_nodes)
    if slurm.nodes > most:
        what = f"a job of {slurm.nodes} nodes can never start in the partition {partition.name!r}, which permits {most}"
        found.append(
            Problem(what=what, fix=f"set slurm.nodes to {most} or less, or another partition as slurm.{field}")
        )
    hours, longest = spec.segment.hours, partition.longest_minutes
    if hours is None and longest is None and partition.has_default_time:
        what = f"jobs in the partition {partition.name!r} end after its DefaultTime, and it has no MaxTime to request"
        found.append(Problem(what=what, fix="set segment.hours, so that segments end at a checkpoint"))
    needed = 0 if hours is None else limit_minutes(hours * 3600, spec)
    if hours is not None and longest is not None and needed > longest:
        what = f"segments of {hours:g} hours need jobs of {needed} minutes, and the partition {partition.name!r} "
        what += f"permits {longest}"
        found.append(Problem(what=what, fix="lower segment.hours; the next segment continues the training"))
    return found


def _preemption_problems(spec: RunSpec, partition: Partition, kill_wait: int | None) -> list[Problem]:
    """Return the cluster settings with which a preemption does not work as the trainer expects."""
    if kill_wait is None:
        return []
    if "SUSPEND" in partition.preemption:
        what = f"the partition {partition.name!r} suspends preempted jobs, whose trainers then neither end nor answer"
        return [Problem(what=what, fix="set its PreemptMode to CANCEL, or another partition as slurm.spot")]
    given = partition.grace_seconds + kill_wait
    if partition.preemption == "OFF" or spec.grace_seconds <= given:
        return []
    what = (
        f"the partition {partition.name!r} kills a preempted job after {given} s (GraceTime and KillWait), and the run "
    )
    what += f"expects grace_seconds = {spec.grace_seconds:g}"
    fix = f"lower grace_seconds to {given}, or set a higher GraceTime for the partition"
    return [Problem(what=what, fix=fix)]


def _refused_problems(spec: RunSpec, slurm: SlurmSpec, field: str, partition: Partition) -> list[Problem]:
    """Return the requests that sbatch refuses, because of a missing option or feature, or an account without rights."""
    seconds = None if spec.segment.hours is None else spec.segment.hours * 3600
    test, shape = ["sbatch", "--test-only", "--no-requeue"], shape_options(spec, partition=partition.name)
    given, wanted = (time_limit(spec, seconds, partition, is_wanted=is_wanted) for is_wanted in (False, True))
    answer = ask([*test, *given, *shape, "--wrap=true"])
    if answer.is_refusal and wanted != given and ask([*test, *wanted, *shape, "--wrap=true"]).code == 0:
        return []  # The cluster requires a time limit, which jobs then get.
    if answer.code == 0:
        return []
    if answer.is_silence:
        what, fix = f"sbatch does not answer ({answer.why})", "check that slurmctld and munge run (`scontrol ping`)"
        return [Problem(what=f"{what}, so the options of jobs are not checked", fix=fix, is_certain=False)]
    if _LIMIT.search(answer.trouble):
        what = f"sbatch refuses jobs in the partition {partition.name!r} for now: {answer.why}"
        return [Problem(what=what.rstrip("."), fix="wait, or ask for a higher limit", is_certain=False)]
    if _PERHAPS_LATER.search(answer.trouble) and _usable_nodes(partition.name) < slurm.nodes:
        what = f"the Slurm partition {partition.name!r} has too few usable nodes now, and jobs wait for them"
        return [Problem(what=what, fix="`sinfo -R` shows why nodes are drained or down", is_certain=False)]
    if answer.names_time_limit and seconds is None:
        what = f"sbatch refuses a job without a time limit in the partition {partition.name!r}: {answer.why}"
        return [Problem(what=what.rstrip("."), fix="set segment.hours, so that segments end at a checkpoint")]
    options = " ".join(slurm.options) or "no further options"
    what = f"sbatch refuses a job in the partition {partition.name!r} with {options}: {answer.why}"
    return [Problem(what=what.rstrip("."), fix=f"correct slurm.options, or set another partition as slurm.{field}")]


def _usable_nodes(partition: str) -> int:
    """Return the number of nodes of a partition that run jobs or can run jobs now."""
    answer = ask(["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%a %t"])
    return sum(line.split() in _USABLE for line in answer.output.splitlines())
