"""Makes all checks whether segments can run on the pools of a run. The module is pure.

`segue doctor` shows all of these checks. A run makes these checks before its first segment. If one check fails, the run
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from segue.doctor.check import CheckOutcome, Result, skipped, worst
from segue.doctor.pools import job_judgement, queue_judgement
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.pools.segment_job import CONTAINERS, ECS, KUBERNETES, PoolJob

Judge = Callable[[PoolState, Needs], Result]

JUDGES: Mapping[str, Judge] = MappingProxyType(
    {
        "pool.queue": queue_judgement.queue,
        "pool.paused": queue_judgement.paused,
        "pool.workers": queue_judgement.workers,
        "pool.limits": queue_judgement.limits,
        "pool.job-variables": queue_judgement.job_variables,
        "pool.sigterm": job_judgement.sigterm,
        "pool.backoff-limit": job_judgement.retries,
        "pool.pod-replacement": job_judgement.pod_replacement,
        "pool.grace-period": job_judgement.grace_period,
        "pool.shared-memory": job_judgement.shared_memory,
        "pool.finished-jobs": job_judgement.finished_jobs,
        "pool.memory": job_judgement.container_memory,
        "pool.nodes": job_judgement.nodes,
        "pool.store": job_judgement.store_reach,
    }
)
"""Every check of a pool, by its name."""
OF_PARENTS = ("pool.queue", "pool.paused", "pool.workers", "pool.limits", "pool.job-variables")
"""Names of the checks that also apply to the pool of the parents."""
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
"""The types of pools to which a check applies. A check that is not listed applies to all types."""
_OF_BLOCKERS = ("pool.queue", "pool.paused", "pool.workers")
"""Names of the checks whose warning means that no flow run starts now."""


def judge(name: str, segments: Sequence[PoolState], parents: Sequence[PoolState], needs: Needs) -> Result:
    """Make one check for the pools of segments and parents. Return the worst result with its reasons."""
    concerned = [state for state in segments if _concerns(name, state.job)]
    if segments and not concerned:
        return skipped(f"no pool is of type {' or '.join(_OF_TYPES[name])}")
    results = [JUDGES[name](state, needs) for state in concerned]
    if name in OF_PARENTS:
        results += [JUDGES[name](state, Needs()) for state in parents]
    return worst(results) if results else skipped("no deployment of the run has a pool")


def _concerns(name: str, job: PoolJob | None) -> bool:
    """Whether a check applies to a pool with such jobs. A check also applies if the jobs are not known."""
    return job is None or not job.is_known or job.type in _OF_TYPES.get(name, (job.type,))


def refusals(states: Sequence[PoolState], needs: Needs) -> list[Result]:
    """Return the failed checks that keep segments from running correctly. A paused pool only causes a warning."""
    return _results(states, needs, tuple(JUDGES), CheckOutcome.FAIL)


def warnings(states: Sequence[PoolState], needs: Needs) -> list[Result]:
    """Return the warnings about a run on these pools, except the warnings about a delay of the start (see
    `PoolState.blocker`).
    """
    names = [name for name in JUDGES if name not in _OF_BLOCKERS]
    return list(dict.fromkeys(_results(states, needs, names, CheckOutcome.WARN)))


def refusals_of_parents(states: Sequence[PoolState]) -> list[Result]:
    """Return the failures of pools of parents. Parents train nothing."""
    return _results(states, Needs(), OF_PARENTS, CheckOutcome.FAIL)


def _results(states: Sequence[PoolState], needs: Needs, names: Sequence[str], outcome: CheckOutcome) -> list[Result]:
    found = (JUDGES[name](state, needs) for state in states for name in names)
    return [result for result in found if result.outcome is outcome]
