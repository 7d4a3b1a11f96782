"""Builds the Slurm job of an attempt: its name, its sbatch options and its script. All functions are pure."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import sys
from pathlib import Path

from segue.launch.assignment import Assignment
from segue.launch.slurm.slurm_partition import Partition
from segue.records import Capacity
from segue.spec import RunSpec

_BOOT_SECONDS, _BOOT_SHARE = 600.0, 0.1
"""Time that a job gets in addition to the training time of its attempt: in seconds, and as a share of the training
time.

The longer of the two times counts.
"""
_EARLY_SECONDS = 60.0
"""Seconds by which Slurm may send a signal too early. Source: sbatch's documentation of --signal."""
_END_OF_INPUT = "END_OF_THE_ASSIGNMENT"


def job_name(assignment: Assignment, *, key: str) -> str:
    """Return the name of an attempt's job. Each launch has a new `key`, so that no other job has the same name."""
    plan = assignment.plan
    return f"segue-{assignment.spec.run_id}-seg{plan.segment}-a{plan.attempt}-{_store_key(assignment.spec)}{key}"


def older_jobs(shown: str, assignment: Assignment) -> list[str]:
    """Return the ids of the jobs of the run's earlier attempts. Each line of `shown` contains a job's id and name."""
    head, store = re.escape(f"segue-{assignment.spec.run_id}-seg"), _store_key(assignment.spec)
    found = re.findall(rf"^(\d+) {head}(\d+)-a(\d+)-{store}\w+$", shown, re.MULTILINE)
    own = assignment.plan.segment, assignment.plan.attempt
    return [job for job, segment, attempt in found if (int(segment), int(attempt)) < own]


def _store_key(spec: RunSpec) -> str:
    """Return a hash of the store, because runs with the same name in different stores are different runs."""
    url = spec.store.url
    where = url if "://" in url else str(Path(url).absolute())
    return hashlib.sha256(f"{where} {spec.store.endpoint_url}".encode()).hexdigest()[:6]


def partition_of(spec: RunSpec, capacity: Capacity) -> str:
    """Return the name of the partition for a capacity."""
    assert spec.slurm is not None
    return spec.slurm.spot if capacity is Capacity.SPOT else spec.slurm.on_demand


def ahead_seconds(spec: RunSpec) -> int:
    """Return the seconds before the end of a job at which the trainer gets SIGUSR1."""
    return math.ceil(spec.liveness.usr1_seconds or spec.grace_seconds)


def limit_minutes(seconds: float, spec: RunSpec, *, longest_minutes: int | None = None) -> int:
    """Return the time limit in minutes of a job whose attempt trains for `seconds`, up to the limit of the partition.

    Slurm may send SIGUSR1 up to a minute early, and the attempt must end before this signal. If a job requests more
    time than its partition permits, Slurm holds the job for ever.
    """
    before_the_end = ahead_seconds(spec) + _EARLY_SECONDS
    minutes = math.ceil((seconds + max(_BOOT_SECONDS, _BOOT_SHARE * seconds) + before_the_end) / 60)
    return minutes if longest_minutes is None else min(minutes, longest_minutes)


def shape_options(spec: RunSpec, *, partition: str) -> list[str]:
    """Return the options of sbatch that decide whether the cluster can run the jobs of a run."""
    assert spec.slurm is not None
    shape = [f"--partition={partition}", f"--nodes={spec.slurm.nodes}", "--ntasks-per-node=1"]
    return [*shape, *spec.slurm.options]


def sbatch_command(
    assignment: Assignment, *, name: str, output: Path, partition: Partition, wants_time_limit: bool = False
) -> list[str]:
    """Return the command that submits an attempt. The job's script goes to the standard input of this command.

    The option `--signal` has no `B:`, so Slurm sends SIGUSR1 to the trainer and not to the shell. Slurm sends SIGUSR1
    before the time limit, and before a preemption if the cluster has `preempt_send_user_signal`. Without this setting,
    the trainer gets SIGTERM directly at a preemption.
    """
    spec, plan = assignment.spec, assignment.plan
    environment = [] if _names_environment(spec) else ["--export=ALL"]
    return [
        "sbatch",
        "--parsable",
        "--no-requeue",
        f"--job-name={name}",
        f"--comment=segue run {spec.run_id}, segment {plan.segment}, attempt {plan.attempt}, {plan.capacity}",
        f"--signal=USR1@{ahead_seconds(spec)}",
        f"--output={str(output).replace('%', '%%')}",
        "--open-mode=append",
        *environment,
        *time_limit(spec, plan.max_seconds, partition, is_wanted=wants_time_limit),
        *exclusion(assignment, partition),
        *shape_options(spec, partition=partition_of(spec, plan.capacity)),
    ]


def exclusion(assignment: Assignment, partition: Partition) -> list[str]:
    """Return the sbatch option with the nodes that the attempt avoids.

    The result is empty if the partition has too few other nodes, or if the run spec itself excludes nodes.
    """
    spec, avoided = assignment.spec, assignment.plan.avoided_nodes
    assert spec.slurm is not None
    is_own = any(option.startswith(("--exclude=", "-x")) for option in spec.slurm.options)
    has_others = partition.nodes - len(avoided) >= spec.slurm.nodes
    return [f"--exclude={','.join(avoided)}"] if avoided and has_others and not is_own else []


def time_limit(spec: RunSpec, seconds: float | None, partition: Partition, *, is_wanted: bool = False) -> list[str]:
    """Return the sbatch option with the time limit of a job whose attempt trains for `seconds`.

    If `seconds` is None, the attempt trains as long as possible. `is_wanted` tells if the cluster refuses jobs without
    a time limit.
    """
    longest = partition.longest_minutes
    if seconds is not None:
        return [f"--time={limit_minutes(seconds, spec, longest_minutes=longest)}"]
    # Without this option, the job would end after the default time. If there is no default time, Slurm takes the
    # longest time that the partition, the QOS and the account permit. A job must not ask for the partition's own limit,
    # because this limit may be longer than permitted.
    is_needed = is_wanted or partition.has_default_time
    return [f"--time={longest}"] if is_needed and longest is not None else []


def _names_environment(spec: RunSpec) -> bool:
    assert spec.slurm is not None
    return any(option.startswith(("--export=", "--export-file=")) for option in spec.slurm.options)


def batch_script(assignment: Assignment, *, python: str = sys.executable) -> str:
    """Return the script of an attempt's job. The script starts one task on each node, with the assignment as its input.

    The shell ignores signals and ends after srun, so that the job has the trainer's exit code. If one task ends, the
    other tasks continue, because they may still have to write a report.
    """
    given = assignment.model_dump_json()
    return f"""#!/bin/bash
# One attempt of a run of segue: segment {assignment.plan.segment}, attempt {assignment.plan.attempt}.
trap : TERM INT USR1 CONT
# Since Slurm 22.05 srun does not inherit this from sbatch.
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpu-bind=none \\
    {shlex.quote(python)} -u -m segue.launch.node <<'{_END_OF_INPUT}' &
{given}
{_END_OF_INPUT}
wait $!; code=$?
while [ "$code" -gt 128 ] && kill -0 $! 2>/dev/null; do wait $!; code=$?; done
exit "$code"
"""
