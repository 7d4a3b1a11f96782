"""Judgement of pools: what Prefect shows of a deployment's pool, and whether segments can run there. Pure.

`segue doctor` shows all of these checks. A run makes them before its first segment, and is refused where one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from segue.doctor.check import Outcome, Result, fail, ok, skipped, warn, worst
from segue.doctor.jobs import CONTAINERS, ECS, KUBERNETES, SIGTERM_SECONDS, SIGTERM_VARIABLE, Job
from segue.doctor.node_needs import most_grace_seconds
from segue.units import duration

_MOST_STOP_SECONDS = 120.0
"""Longest stopTimeout. https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_ContainerDefinition.html"""
Limited = Literal["pool", "queue", "deployment"]
"""What may have a concurrency limit."""
_COMMAND = "set the job variable `command` to `python -m segue.flows.prefect_engine`"


@dataclass(frozen=True)
class PoolState:
    """A deployment's work pool and queue, as the server shows them."""

    deployment: str
    pool: str
    queue: str | None = None
    is_paused: bool = False
    is_queue_paused: bool = False
    is_queue_polled: bool = True
    """Whether a worker has asked for its flow runs lately: workers may be limited to other queues of the pool."""
    limit: int | None = None
    """Flow runs that may run at once: the smallest limit of pool, queue and deployment; None without one."""
    pool_limit: int | None = None
    """The limit of the pool alone."""
    queue_limit: int | None = None
    """The limit of the queue alone."""
    workers: int | None = None
    """Workers online; None for a pool that needs none."""
    known_workers: int | None = None
    """Workers that the pool ever had, as far as the server knows; None for a pool that needs none."""
    unknown_variables: tuple[str, ...] = ()
    """Job variables of the deployment that the pool's template does not have."""
    job: Job | None = None
    """The job of a segment there; None where the template does not describe one."""
    nodes: Sequence[Mapping[str, str]] | None = None
    """Labels of each node of the cluster; None where that is not known."""
    why_no_nodes: str = "nobody has asked its cluster"
    """Why the nodes are not known."""

    @property
    def blocker(self) -> str | None:
        """Why flow runs of the deployment do not start now; None if they do as soon as there is a machine."""
        if self.is_paused:
            return f"the pool {self.pool} is paused"
        if self.is_queue_paused:
            return f"the queue {self.queue} of the pool {self.pool} is paused"
        if self.workers == 0:
            return f"the pool {self.pool} has no worker"
        if not self.is_queue_polled:
            return f"no worker of the pool {self.pool} takes flow runs from its queue {self.queue}"
        return f"the concurrency limit of the {_of_limit(self.limited, self)[0]} is 0" if self.limit == 0 else None

    @property
    def named(self) -> str:
        return f"the pool {self.pool} of the deployment {self.deployment!r}"

    @property
    def limited(self) -> Limited:
        """What has the smallest limit."""
        if self.limit is not None and self.limit == self.pool_limit:
            return "pool"
        return "queue" if self.limit is not None and self.limit == self.queue_limit else "deployment"


def _of_limit(owner: Limited, state: PoolState) -> tuple[str, str]:
    """The name of what has a limit, and how the limit is raised."""
    match owner:
        case "pool":
            return f"pool {state.pool}", f"`prefect work-pool set-concurrency-limit {state.pool} N`"
        case "queue":
            command = f"`prefect work-queue set-concurrency-limit {state.queue} N --pool {state.pool}`"
            return f"queue {state.queue} of the pool {state.pool}", command
        case "deployment":
            return f"deployment {state.deployment!r}", "`concurrency_limit` in prefect.yaml, and deploy again"


@dataclass(frozen=True)
class Needs:
    """What a run needs of its pools."""

    grace_seconds: float | None = None
    """The grace period that it counts on; None where no run is known."""
    parent_pool: str | None = None
    """The pool on which the run's parent runs; None where that is not known."""
    parent_queue: str | None = None
    """The queue of that pool in which the parent runs."""
    is_store_remote: bool | None = None
    """Whether its store is in a bucket; None where no run is known."""
    why_unknown: str = "no run is known"


def queue(state: PoolState, needs: Needs) -> Result:
    """Whether the deployment's queue gives its flow runs out; one that does not exist is a QueueMissingError."""
    if state.is_queue_paused:
        reason = f"the queue {state.queue} of the pool {state.pool} is paused"
        return warn(reason, fix=f"`prefect work-queue resume {state.queue} --pool {state.pool}`.")
    if state.workers and not state.is_queue_polled:
        return warn(
            f"no worker of the pool {state.pool} takes flow runs from its queue {state.queue}",
            fix=f"start one with `prefect worker start --pool {state.pool}`, without other `--work-queue`s.",
        )
    return ok(f"{state.deployment}: queue {state.queue or 'default'} of {state.pool}")


def paused(state: PoolState, needs: Needs) -> Result:
    if state.is_paused:
        return warn(f"the pool {state.pool} is paused", fix=f"`prefect work-pool resume {state.pool}`.")
    return ok(f"{state.pool} is not paused")


def workers(state: PoolState, needs: Needs) -> Result:
    """Whether there is a worker. One that went offline may come back, with its machine."""
    fix = f"start one with `prefect worker start --pool {state.pool}`."
    if state.known_workers == 0:
        return fail(f"{state.named} has no worker and never had one", fix=fix)
    if state.workers == 0:
        return warn(f"no worker of the pool {state.pool} is online; it had {state.known_workers}", fix=fix)
    return ok(f"{state.pool}: needs no worker" if state.workers is None else f"{state.pool}: {state.workers} online")


def limits(state: PoolState, needs: Needs) -> Result:
    """Whether the limits let a segment run. The parent holds a slot of its pool and queue as long as its run lasts."""
    shared = _shared_limit(state, needs)
    owner, how = _of_limit(shared or state.limited, state)
    reason = f"{state.named} runs at most {state.limit} flow runs at once"
    if shared is not None:
        return fail(
            f"{reason}, and the run's parent is one of them (limit of the {owner})",
            fix=f"raise that limit to 2 or more ({how}), or run the parent on a pool of its own.",
        )
    if state.limit == 0:
        return fail(f"{reason} (limit of the {owner})", fix=f"raise that limit to 1 or more ({how}).")
    return ok(f"{state.deployment}: {'no limit' if state.limit is None else f'at most {state.limit} at once'}")


def _shared_limit(state: PoolState, needs: Needs) -> Limited | None:
    """What has room only for the parent, so that no segment would ever start: pool or queue; None for neither."""
    if state.pool != needs.parent_pool:
        return None
    if state.pool_limit is not None and state.pool_limit < 2:
        return "pool"
    is_queue_shared = state.queue is not None and state.queue == needs.parent_queue
    return "queue" if is_queue_shared and state.queue_limit is not None and state.queue_limit < 2 else None


def job_variables(state: PoolState, needs: Needs) -> Result:
    if state.unknown_variables:
        names = ", ".join(state.unknown_variables)
        return fail(
            f"the deployment {state.deployment!r} sets job variables that the pool {state.pool} does not have "
            f"({names})",
            fix="correct their names in prefect.yaml, or give the pool the template of `segue init`.",
        )
    return ok(f"{state.deployment}: all are in the template of {state.pool}")


def sigterm(state: PoolState, needs: Needs) -> Result:
    """Whether a segment hears SIGTERM, and Prefect starts no flow run again behind segue's back."""
    job = state.job
    if job is None or not job.is_known:
        return _of_other_job(state)
    if job.starts_engine or (job.command is None and not job.is_container):  # A worker for processes starts the engine.
        return ok(f"{state.deployment}: the engine hears SIGTERM itself")
    starter = f"`{job.command}`" if job.command else "Prefect's default command"
    if job.starts_engine is None:
        return warn(
            f"{state.named} starts {starter}, and it is not known whether SIGTERM reaches the engine behind that",
            fix=f"{_COMMAND}, or end the script with `exec python -m segue.flows.prefect_engine`.",
        )
    if not job.is_container:
        return warn(f"{state.named} starts {starter}, which may keep SIGTERM from the segment", fix=f"{_COMMAND}.")
    if not job.starts_runner:
        return fail(
            f"{state.named} starts {starter}, which keeps SIGTERM from the engine: a preempted segment is killed "
            "before it has saved",
            fix=f"{_COMMAND}, or end the script with `exec python -m segue.flows.prefect_engine`.",
        )
    behavior = (job.environment.get(SIGTERM_VARIABLE) or "").lower()
    # The worker of Kubernetes sets `reschedule` where nothing is set.
    if behavior != "crash" and (behavior or job.type == KUBERNETES):
        return fail(
            f"{state.named} starts {starter} without {SIGTERM_VARIABLE}=crash: at SIGTERM Prefect starts the same flow "
            "run in the same pool again, and the segment saves nothing",
            fix=f"{_COMMAND}, and set that variable to crash in its `env`.",
        )
    reason = f"{state.named} starts {starter}, which ends a segment at SIGTERM before it has saved"
    return warn(reason, fix=f"{_COMMAND}.")


def retries(state: PoolState, needs: Needs) -> Result:
    """Whether the platform would start a segment again by itself."""
    job = state.job
    if job is None or job.type != KUBERNETES:
        return _of_other_job(state)
    if job.retries != 0:
        return fail(
            f"{state.named} has backoffLimit {job.retries}: Kubernetes starts a preempted segment again, besides the "
            "one that segue starts",
            fix="set backoffLimit to 0 in the template (`backoff_limit: 0` as a job variable).",
        )
    if job.restart_policy != "Never":
        return fail(
            f"{state.named} has restartPolicy {job.restart_policy or 'unset'}: the node starts an ended segment again",
            fix="set restartPolicy to Never in the template.",
        )
    return ok(f"{state.deployment}: Kubernetes starts no segment again")


def pod_replacement(state: PoolState, needs: Needs) -> Result:
    """Whether a pod that still saves counts as running. https://kubernetes.io/docs/concepts/workloads/controllers/job/"""
    job = state.job
    if job is None or job.type != KUBERNETES:
        return _of_other_job(state)
    if job.counts_ending_pods_as_failed:
        return warn(
            f"{state.named} has no podReplacementPolicy: Kubernetes counts a pod as failed when it gets SIGTERM, and "
            "Prefect ends its flow run as Crashed while the segment saves",
            fix="set podReplacementPolicy to Failed in the template's job_manifest.spec (Kubernetes 1.29 or later).",
        )
    return ok(f"{state.deployment}: a pod that saves counts as running")


def kept_seconds(state: PoolState) -> float | None:
    """The grace period that the platform gives a job of this pool; None where that is not known."""
    job = state.job
    return None if job is None or job.grace_seconds is None else min(job.grace_seconds, _most_seconds(job)[0])


def _most_seconds(job: Job) -> tuple[float, str]:
    """The longest grace period that the platform gives such a job by default, and the platform."""
    return (_MOST_STOP_SECONDS, "ECS") if job.type == ECS else most_grace_seconds(job.node_needs)


def grace_period(state: PoolState, needs: Needs) -> Result:
    """Whether the platform waits as long as the run counts on."""
    job = state.job
    if job is None or job.grace_seconds is None:
        return _of_other_job(state)
    given, name = job.grace_seconds, "terminationGracePeriodSeconds" if job.type == KUBERNETES else "stopTimeout"
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
    other = f", or raise {name} in the template" if needs.grace_seconds + SIGTERM_SECONDS <= most else ""
    result = fail if given < needs.grace_seconds else warn
    return result(
        f"{state.named} kills {duration(kept)} after SIGTERM ({why}), and the run counts on grace_seconds = "
        f"{needs.grace_seconds:g}",
        fix=f"lower grace_seconds of the run to {kept - SIGTERM_SECONDS:g} ({duration(SIGTERM_SECONDS)} less, because "
        f"SIGTERM reaches the trainer late){other}.",
    )


def _of_other_job(state: PoolState) -> Result:
    """The result of a check that says nothing about the jobs of this type of pool."""
    if state.job is None or not state.job.is_known:
        return skipped(f"the jobs of {state.named} are not known (type {state.job.type if state.job else 'unknown'})")
    return skipped(f"it does not concern a pool of type {state.job.type}")


def shared_memory(state: PoolState, needs: Needs) -> Result:
    job = state.job
    if job is None or job.has_shared_memory is None:
        return _of_other_job(state)
    if job.has_shared_memory:
        return ok(f"{state.deployment}: /dev/shm is an emptyDir in memory")
    return warn(
        f"{state.named} mounts nothing at /dev/shm, so containers have 64 MB there: workers of a data loader and NCCL "
        "die where it is full",
        fix="mount an emptyDir with medium: Memory at /dev/shm in the template.",
    )


def finished_jobs(state: PoolState, needs: Needs) -> Result:
    job = state.job
    if job is None or job.type != KUBERNETES:
        return _of_other_job(state)
    if job.keeps_finished:
        return warn(
            f"{state.named} has no ttlSecondsAfterFinished: the job of every segment stays in the cluster",
            fix="set it in the template (`finished_job_ttl` as a job variable).",
        )
    return ok(f"{state.deployment}: ended jobs are removed")


def nodes(state: PoolState, needs: Needs) -> Result:
    """Whether a node has the labels that the template asks for. An autoscaler may start one that is not there yet."""
    job = state.job
    if job is None or job.type != KUBERNETES:
        return _of_other_job(state)
    if not job.node_needs:
        return ok(f"{state.deployment}: any node will do")
    if state.nodes is None:
        return skipped(f"the nodes of the cluster are not known here: {state.why_no_nodes}")
    fitting = [labels for labels in state.nodes if job.node_needs.fit(labels)]
    if fitting:
        return ok(f"{state.deployment}: {len(fitting)} of {len(state.nodes)} nodes have {job.node_needs}")
    return warn(
        f"no node of the cluster that is reached from here has the labels of {state.named} ({job.node_needs}): without "
        "an autoscaler that starts such nodes, a segment waits for ever",
        fix="correct nodeSelector or nodeAffinity in the template, or label the nodes.",
    )


def container_memory(state: PoolState, needs: Needs) -> Result:
    job = state.job
    if job is None or job.type != ECS:
        return _of_other_job(state)
    if job.memory is None:
        reason = f"{state.named} sets no memory: Prefect gives its tasks 2 GB"
        return warn(reason, fix="set `memory` in the template or as a job variable.")
    return ok(f"{state.deployment}: {job.memory} MB")


def store_reach(state: PoolState, needs: Needs) -> Result:
    """Whether a store that is a folder can be reached from containers."""
    if needs.is_store_remote is None:
        return skipped(needs.why_unknown)
    if needs.is_store_remote:
        return ok("the store is in a bucket")
    if state.job is None or not state.job.is_container:
        return ok("the store is a folder, and so must be reached by that path on every machine of the pools")
    return warn(
        f"the store is a folder, and {state.named} runs containers: each would have a folder of its own",
        fix="use a store in a bucket, or mount the same volume at that path in every container.",
    )


Judge = Callable[[PoolState, Needs], Result]

JUDGES: Mapping[str, Judge] = MappingProxyType(
    {
        "pool.queue": queue,
        "pool.paused": paused,
        "pool.workers": workers,
        "pool.limits": limits,
        "pool.job-variables": job_variables,
        "pool.sigterm": sigterm,
        "pool.backoff-limit": retries,
        "pool.pod-replacement": pod_replacement,
        "pool.grace-period": grace_period,
        "pool.shared-memory": shared_memory,
        "pool.finished-jobs": finished_jobs,
        "pool.memory": container_memory,
        "pool.nodes": nodes,
        "pool.store": store_reach,
    }
)
"""Every check of a pool, by its name."""
OF_PARENTS = ("pool.queue", "pool.paused", "pool.workers", "pool.limits", "pool.job-variables")
"""Those that matter for the pool of the parents, too."""
_OF_TYPES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "pool.backoff-limit": (KUBERNETES,),
        "pool.pod-replacement": (KUBERNETES,),
        "pool.grace-period": CONTAINERS,
        "pool.shared-memory": (KUBERNETES,),
        "pool.finished-jobs": (KUBERNETES,),
        "pool.memory": (ECS,),
        "pool.nodes": (KUBERNETES,),
    }
)
"""Types of pools that a check concerns, where it does not concern all."""
_OF_BLOCKERS = ("pool.queue", "pool.paused", "pool.workers")
"""Those whose warning is why nothing starts now."""


def judge(name: str, segments: Sequence[PoolState], parents: Sequence[PoolState], needs: Needs) -> Result:
    """One check of the pools of segments and parents: the worst result, with the reasons of those pools."""
    concerned = [state for state in segments if _concerns(name, state.job)]
    if segments and not concerned:
        return skipped(f"no pool is of type {' or '.join(_OF_TYPES[name])}")
    results = [JUDGES[name](state, needs) for state in concerned]
    if name in OF_PARENTS:
        results += [JUDGES[name](state, Needs()) for state in parents]
    return worst(results) if results else skipped("no deployment of the run has a pool")


def _concerns(name: str, job: Job | None) -> bool:
    """Whether a check concerns a pool with such jobs; one whose jobs are not known is not left out without a word."""
    return job is None or not job.is_known or job.type in _OF_TYPES.get(name, (job.type,))


def refusals(states: Sequence[PoolState], needs: Needs) -> list[Result]:
    """Why no segment can run on these pools as it must. What may pass by itself, such as a paused pool, is left out."""
    return _results(states, needs, tuple(JUDGES), Outcome.FAIL)


def warnings(states: Sequence[PoolState], needs: Needs) -> list[Result]:
    """What makes a run on these pools worse than it could be. Why nothing starts now is `PoolState.blocker`."""
    names = [name for name in JUDGES if name not in _OF_BLOCKERS]
    return list(dict.fromkeys(_results(states, needs, names, Outcome.WARN)))


def refusals_of_parents(states: Sequence[PoolState]) -> list[Result]:
    """The same for pools of parents, which train nothing."""
    return _results(states, Needs(), OF_PARENTS, Outcome.FAIL)


def _results(states: Sequence[PoolState], needs: Needs, names: Sequence[str], outcome: Outcome) -> list[Result]:
    found = (JUDGES[name](state, needs) for state in states for name in names)
    return [result for result in found if result.outcome is outcome]
