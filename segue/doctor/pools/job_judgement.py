"""Judges a segment's job: command, grace period, retries, memory, nodes and store. The module is pure.

`judgement.py` lists which types of pools each check examines.
"""

from __future__ import annotations

from segue.doctor.check import Result, fail, ok, skipped, warn
from segue.doctor.pools.node_needs import most_grace_seconds
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.pools.segment_job import ECS, KUBERNETES, SIGTERM_SECONDS, SIGTERM_VARIABLE, PoolJob
from segue.units import duration

_MOST_STOP_SECONDS = 120.0
"""Longest stopTimeout in seconds.
https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_ContainerDefinition.html
"""
_COMMAND = "set the job variable `command` to `python -m segue.flows.prefect_engine`"


def sigterm(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    """Check that a segment receives SIGTERM, and that Prefect does not restart the segment's flow run at SIGTERM."""
    if job.starts_engine or (job.command is None and not job.is_container):  # A worker for processes starts the engine.
        return ok(f"{state.deployment}: the engine receives SIGTERM itself")
    starter = f"`{job.command}`" if job.command else "Prefect's default command"
    if job.starts_engine is None:
        return warn(
            f"{state.named} starts {starter}; it is not known if SIGTERM then reaches the engine",
            fix=f"{_COMMAND}, or let the script end with `exec python -m segue.flows.prefect_engine`.",
        )
    if not job.is_container:
        return warn(f"{state.named} starts {starter}, which may keep SIGTERM from the segment", fix=f"{_COMMAND}.")
    if not job.starts_runner:
        return warn(
            f"{state.named} starts {starter}, which keeps SIGTERM from the engine: a preempted segment is killed "
            "before it has saved",
            fix=f"{_COMMAND}, or end the script with `exec python -m segue.flows.prefect_engine`.",
        )
    behavior = (job.environment.get(SIGTERM_VARIABLE) or "").lower()
    # The worker of Kubernetes sets `reschedule` if nothing is set.
    if behavior != "crash" and (behavior or job.type == KUBERNETES):
        return fail(
            f"{state.named} starts {starter} without {SIGTERM_VARIABLE}=crash: at SIGTERM Prefect starts the same flow "
            "run in the same pool again, and the segment saves nothing",
            fix=f"{_COMMAND}, and set that variable to crash in its `env`.",
        )
    reason = f"{state.named} starts {starter}, which ends a segment at SIGTERM before it has saved"
    return warn(reason, fix=f"{_COMMAND}.")


def retries(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    """Check that the platform does not start an ended segment again."""
    if job.retries != 0:
        return fail(
            f"{state.named} has backoffLimit {job.retries}: Kubernetes starts a preempted segment again, and so "
            "does segue",
            fix="set backoffLimit to 0 in the template (`backoff_limit: 0` as a job variable).",
        )
    if job.restart_policy != "Never":
        return fail(
            f"{state.named} has restartPolicy {job.restart_policy or 'unset'}: the node starts an ended segment again",
            fix="set restartPolicy to Never in the template.",
        )
    return ok(f"{state.deployment}: Kubernetes starts no segment again")


def pod_replacement(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    """Check that Kubernetes counts a saving pod as running (kubernetes.io/docs/concepts/workloads/controllers/job/)."""
    if job.counts_ending_pods_as_failed:
        return warn(
            f"{state.named} does not set podReplacementPolicy to Failed: Kubernetes counts a pod as failed when it "
            "gets SIGTERM, and Prefect ends its flow run as Crashed while the segment saves",
            fix="set it in the template's job_manifest.spec (Kubernetes 1.29 or later).",
        )
    return ok(f"{state.deployment}: a pod that saves counts as running")


def kept_seconds(state: PoolState) -> float | None:
    """Return the grace period in seconds that the platform gives a job of this pool.

    If the grace period is unknown, return None.
    """
    job = state.job
    return None if job is None or job.grace_seconds is None else min(job.grace_seconds, _most_seconds(job)[0])


def _most_seconds(job: PoolJob) -> tuple[float, str]:
    """Return the longest default grace period of the job's platform in seconds, and the platform's name."""
    return (_MOST_STOP_SECONDS, "ECS") if job.type == ECS else most_grace_seconds(job.node_needs)


def grace_period(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    """Check that the platform's grace period is at least as long as the run's grace_seconds."""
    given, name = job.grace_seconds, "terminationGracePeriodSeconds" if job.type == KUBERNETES else "stopTimeout"
    assert given is not None  # Containers always have a grace period.
    most, platform = _most_seconds(job)
    if job.type == ECS and given > most:
        reason = f"{state.named} has {name} {given:g}, and ECS refuses every task with more than {most:g}"
        return fail(reason, fix=f"set {name} to {most:g} in the template (`stop_seconds`).")
    if needs.grace_seconds is None:
        return skipped(needs.why_unknown)
    kept = min(given, most)
    if kept - SIGTERM_SECONDS >= needs.grace_seconds:
        return ok(f"{state.deployment}: {name} is {duration(given)}")
    why = name if kept == given else f"by default {platform} gives no more, whatever {name} says"
    may_rise = needs.grace_seconds + SIGTERM_SECONDS <= most
    other = f", or set a higher value for {name} in the template" if may_rise else ""
    result = fail if given < needs.grace_seconds else warn
    return result(
        f"{state.named} kills {duration(kept)} after SIGTERM ({why}), but the run expects grace_seconds = "
        f"{needs.grace_seconds:g}",
        fix=f"lower grace_seconds of the run to {kept - SIGTERM_SECONDS:g} ({duration(SIGTERM_SECONDS)} less, because "
        f"SIGTERM reaches the trainer late){other}.",
    )


def shared_memory(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    if job.has_shared_memory:
        return ok(f"{state.deployment}: /dev/shm is an emptyDir in memory")
    return warn(
        f"{state.named} mounts nothing at /dev/shm, so containers have 64 MB there: data loader workers and NCCL "
        "die if it is full",
        fix="mount an emptyDir with medium: Memory at /dev/shm in the template.",
    )


def finished_jobs(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    if job.keeps_finished:
        return warn(
            f"{state.named} has no ttlSecondsAfterFinished: the job of every segment stays in the cluster",
            fix="set it in the template (`finished_job_ttl` as a job variable).",
        )
    return ok(f"{state.deployment}: ended jobs are removed")


def nodes(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    """Check that a node has the labels that the template requires.

    If no node has these labels, warn only, because an autoscaler may start a node with these labels later.
    """
    if not job.node_needs:
        return ok(f"{state.deployment}: the template requires no labels of nodes")
    if state.nodes is None:
        return skipped(f"the nodes of the cluster are not known here: {state.why_no_nodes}")
    fitting = [labels for labels in state.nodes if job.node_needs.fit(labels)]
    if fitting:
        return ok(f"{state.deployment}: {len(fitting)} of {len(state.nodes)} nodes have {job.node_needs}")
    return warn(
        f"no node of the current cluster has the labels that {state.named} requires ({job.node_needs}): without an "
        "autoscaler that starts such nodes, a segment waits for ever",
        fix="correct nodeSelector or nodeAffinity in the template, or label the nodes.",
    )


def container_memory(state: PoolState, job: PoolJob, needs: Needs) -> Result:
    if job.memory is None:
        reason = f"{state.named} sets no memory: Prefect gives its tasks 2 GB"
        return warn(reason, fix="set `memory` in the template or as a job variable.")
    return ok(f"{state.deployment}: {job.memory} MB")


def store_reach(state: PoolState, needs: Needs) -> Result:
    """Check that all machines of the pools can reach the store, because it is a bucket or a shared folder."""
    if needs.is_store_remote is None:
        return skipped(needs.why_unknown)
    if needs.is_store_remote:
        return ok("the store is in a bucket")
    if state.job is None or not state.job.is_container:
        return ok("the store is a folder, so every machine of the pools must have the same folder at this path")
    return warn(
        f"the store is a folder, and {state.named} runs containers: each would have a folder of its own",
        fix="use a store in a bucket, or mount the same volume at that path in every container.",
    )
