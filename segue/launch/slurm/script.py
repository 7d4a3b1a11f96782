"""The job of an attempt: its name, the options of sbatch, and its script. Pure."""

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
"""The time that a job may run beyond its attempt's training: seconds, and a share of the training for long attempts."""
_EARLY_SECONDS = 60.0
"""How much earlier than requested Slurm may send a signal. Source: sbatch's documentation of --signal."""
_END_OF_INPUT = "END_OF_THE_ASSIGNMENT"


def job_name(assignment: Assignment, *, key: str) -> str:
    """The name of an attempt's job. With `key`, which is made for each launch, no other job has it."""
    plan = assignment.plan
    return f"segue-{assignment.spec.run_id}-seg{plan.segment}-a{plan.attempt}-{_store_key(assignment.spec)}{key}"


def older_jobs(shown: str, assignment: Assignment) -> list[str]:
    """The ids of jobs of earlier attempts of the same run, in lines of ids and names."""
    head, store = re.escape(f"segue-{assignment.spec.run_id}-seg"), _store_key(assignment.spec)
    found = re.findall(rf"^(\d+) {head}(\d+)-a(\d+)-{store}\w+$", shown, re.MULTILINE)
    own = assignment.plan.segment, assignment.plan.attempt
    return [job for job, segment, attempt in found if (int(segment), int(attempt)) < own]


def _store_key(spec: RunSpec) -> str:
    """Runs of the same name in other stores are other runs."""
    url = spec.store.url
    where = url if "://" in url else str(Path(url).absolute())
    return hashlib.sha256(f"{where} {spec.store.endpoint_url}".encode()).hexdigest()[:6]


def partition_of(spec: RunSpec, capacity: Capacity) -> str:
    """The partition for a capacity."""
    assert spec.slurm is not None
    return spec.slurm.spot if capacity is Capacity.SPOT else spec.slurm.on_demand


def ahead_seconds(spec: RunSpec) -> int:
    """How long before the end of a job its trainer hears of it, by SIGUSR1."""
    return math.ceil(spec.liveness.usr1_seconds or spec.grace_seconds)


def limit_minutes(seconds: float, spec: RunSpec, *, longest_minutes: int | None = None) -> int:
    """The time limit of a job whose attempt trains for so long, in minutes; no longer than the partition permits.

    Slurm sends SIGUSR1 up to a minute early, and the attempt's own end has to come before that. Slurm holds without end
    a job that asks for more than its partition permits.
    """
    before_the_end = ahead_seconds(spec) + _EARLY_SECONDS
    minutes = math.ceil((seconds + max(_BOOT_SECONDS, _BOOT_SHARE * seconds) + before_the_end) / 60)
    return minutes if longest_minutes is None else min(minutes, longest_minutes)


def shape_options(spec: RunSpec, *, partition: str) -> list[str]:
    """The options of sbatch that decide whether a cluster can run the jobs of a run."""
    assert spec.slurm is not None
    shape = [f"--partition={partition}", f"--nodes={spec.slurm.nodes}", "--ntasks-per-node=1"]
    return [*shape, *spec.slurm.options]


def sbatch_command(
    assignment: Assignment, *, name: str, output: Path, partition: Partition, wants_time_limit: bool = False
) -> list[str]:
    """The command that submits an attempt; its standard input is the job's script.

    Ahead of the end Slurm sends SIGUSR1 to the trainer, not to the shell (no `B:`): at a time limit, and at a
    preemption if the cluster has `preempt_send_user_signal`. Without that setting, the trainer gets SIGTERM at once at
    a preemption.
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
        *shape_options(spec, partition=partition_of(spec, plan.capacity)),
    ]


def time_limit(spec: RunSpec, seconds: float | None, partition: Partition, *, is_wanted: bool = False) -> list[str]:
    """The option with the time limit of a job whose attempt trains for so long (None: as long as it may).

    `is_wanted` is whether the cluster refuses jobs without one.
    """
    longest = partition.longest_minutes
    if seconds is not None:
        return [f"--time={limit_minutes(seconds, spec, longest_minutes=longest)}"]
    # Otherwise a job without a limit of its own would end after the default time. If there is no default time, Slurm
    # takes the longest that partition, QOS and account permit: the partition's own limit may be too much to ask for.
    is_needed = is_wanted or partition.has_default_time
    return [f"--time={longest}"] if is_needed and longest is not None else []


def _names_environment(spec: RunSpec) -> bool:
    assert spec.slurm is not None
    return any(option.startswith(("--export=", "--export-file=")) for option in spec.slurm.options)


def batch_script(assignment: Assignment, *, python: str = sys.executable) -> str:
    """The script of an attempt's job: one task on each node, all with the assignment as their input.

    The shell outlives srun in spite of signals, so that the job's exit code is the trainer's. A task that ends does not
    end the others: they may have a report to write.
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
