"""Checks whether segments can run on the pools of a run. The module is pure.

`segue doctor` shows the results. A run also makes these checks before its first segment, and refuses to start if a
check fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from segue.doctor.check import CheckOutcome, Result, skipped, worst
from segue.doctor.pools import job_judgement, queue_judgement
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.pools.segment_job import CONTAINERS, ECS, KUBERNETES, PROCESS, PoolJob

Judge = Callable[[PoolState, Needs], Result | None]
"""A check of one pool. If the check does not apply to the type of the pool, the result is None."""


@dataclass(frozen=True)
class OfJobs:
    """A check of a pool's jobs, which applies only to some types of pools. If the jobs are unknown, the check is
    skipped."""

    look: Callable[[PoolState, PoolJob, Needs], Result]
    types: tuple[str, ...]

    def __call__(self, state: PoolState, needs: Needs) -> Result | None:
        job = state.job
        if job is None or not job.is_known:
            return skipped(f"the jobs of {state.named} are not known (type {job.type if job else 'unknown'})")
        return self.look(state, job, needs) if job.type in self.types else None


JUDGES: Mapping[str, Judge] = MappingProxyType(
    {
        "pool.queue": queue_judgement.queue,
        "pool.paused": queue_judgement.paused,
        "pool.workers": queue_judgement.workers,
        "pool.limits": queue_judgement.limits,
        "pool.job-variables": queue_judgement.job_variables,
        "pool.sigterm": OfJobs(job_judgement.sigterm, (*CONTAINERS, PROCESS)),
        "pool.backoff-limit": OfJobs(job_judgement.retries, (KUBERNETES,)),
        "pool.pod-replacement": OfJobs(job_judgement.pod_replacement, (KUBERNETES,)),
        "pool.grace-period": OfJobs(job_judgement.grace_period, CONTAINERS),
        "pool.shared-memory": OfJobs(job_judgement.shared_memory, (KUBERNETES,)),
        "pool.finished-jobs": OfJobs(job_judgement.finished_jobs, (KUBERNETES,)),
        "pool.memory": OfJobs(job_judgement.container_memory, (ECS,)),
        "pool.nodes": OfJobs(job_judgement.nodes, (KUBERNETES,)),
        "pool.store": job_judgement.store_reach,
    }
)
"""Every check of a pool, by its name."""
OF_PARENTS = ("pool.queue", "pool.paused", "pool.workers", "pool.limits", "pool.job-variables")
"""Names of the checks that also examine the pools on which parents run."""
_OF_BLOCKERS = ("pool.queue", "pool.paused", "pool.workers")
"""Names of checks. If one of these checks warns, no flow run of the pool starts now."""


def judge(name: str, segments: Sequence[PoolState], parents: Sequence[PoolState], needs: Needs) -> Result:
    """Run one check on the pools of segments and parents. Return the worst result with its reasons."""
    results = _results([name], segments, needs)
    check = JUDGES[name]
    if segments and not results and isinstance(check, OfJobs):
        return skipped(f"no pool is of type {' or '.join(check.types)}")
    if name in OF_PARENTS:
        results += _results([name], parents, Needs())
    return worst(results) if results else skipped("no deployment of the run has a pool")


def refusals(states: Sequence[PoolState], needs: Needs) -> list[Result]:
    """Return the failed checks. If there are any, segments cannot run correctly on these pools."""
    return [result for result in _results(JUDGES, states, needs) if result.outcome is CheckOutcome.FAIL]


def warnings(states: Sequence[PoolState], needs: Needs) -> list[Result]:
    """Return the warnings about a run on these pools.

    `queue_judgement.blocker` returns the warnings about a delay of the start.
    """
    names = [name for name in JUDGES if name not in _OF_BLOCKERS]
    found = (result for result in _results(names, states, needs) if result.outcome is CheckOutcome.WARN)
    return list(dict.fromkeys(found))


def refusals_of_parents(states: Sequence[PoolState]) -> list[Result]:
    """Return the failed checks of the pools on which parents run."""
    return [result for result in _results(OF_PARENTS, states, Needs()) if result.outcome is CheckOutcome.FAIL]


def _results(names: Iterable[str], states: Sequence[PoolState], needs: Needs) -> list[Result]:
    found = (JUDGES[name](state, needs) for state in states for name in names)
    return [result for result in found if result is not None]
