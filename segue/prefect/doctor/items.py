"""The list of the checks that need a Prefect server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL

from segue.clock import Clock
from segue.credentials import masked
from segue.doctor.check import Item, Result, ok, refused, worst
from segue.doctor.pools.job_judgement import kept_seconds
from segue.doctor.pools.judgement import JUDGES, judge
from segue.doctor.pools.pool_state import Needs
from segue.doctor.server_judgement import (
    judge_database,
    judge_recovery,
    judge_refusals,
    judge_sqlalchemy,
    judge_verifications,
    judge_version,
)
from segue.doctor.subject import Subject
from segue.prefect.api import SILENCE, quick_client, refusal
from segue.prefect.doctor.server_facts import Pools, database_of, open_parents, refused_writes
from segue.prefect.run_pools import is_verification_limited, recovery_of, server_version
from segue.spec.pool_prices import PoolSpec

_SERVER = "prefect.server"


def items(subject: Subject) -> list[Item]:
    """The checks of the server of PREFECT_API_URL, and of the run's pools on this server."""
    pools = Pools((subject.spec.pools if subject.spec is not None else PoolSpec()).deployments)
    needs = Needs(
        grace_seconds=subject.spec.grace_seconds if subject.spec is not None else None,
        is_store_remote=subject.store.is_remote if subject.spec is not None else None,
        why_unknown=subject.why_no_spec,
    )
    return [
        Item(_SERVER, _answered(server)),
        _asked("prefect.version", lambda client: judge_version(server_version(client))),
        _asked("prefect.database", database),
        Item("prefect.refusals", _answered(refusals), (_SERVER,)),
        Item("prefect.sqlalchemy", lambda: judge_sqlalchemy(version("sqlalchemy"))),
        Item("prefect.deployments", _answered(partial(deployments, pools)), (_SERVER,)),
        _asked("prefect.recover", partial(recovery, clock=subject.clock)),
        _asked("prefect.verify-resume", lambda client: judge_verifications(is_verification_limited(client))),
        *(Item(name, _answered(partial(of_pools, name, subject, pools, needs)), (_SERVER,)) for name in JUDGES),
    ]


def server() -> Result:
    """Check that the server answers and gives access. The health endpoint of the server alone is not enough, because it
    needs no credentials."""
    with quick_client() as client:
        problem = client.api_healthcheck()
        if problem is not None:
            return refused(refusal(problem))
        client.read_work_pools(limit=1)
    return ok(f"{masked(str(PREFECT_API_URL.value()))} answers")


def database(client: SyncPrefectClient) -> Result:
    return judge_database(database_of(client), open_parents=open_parents(client))


def refusals() -> Result:
    refused, asked = refused_writes()
    return judge_refusals(refused, of=asked)


def recovery(client: SyncPrefectClient, *, clock: Clock) -> Result:
    return judge_recovery(recovery_of(client, now=clock.now()))


def deployments(pools: Pools) -> Result:
    """Check that the deployments of the run and of its parent exist."""
    if pools.missing:
        return worst([refused(error) for error in pools.missing])
    return ok(f"{', '.join(pools.names)} exist")


def of_pools(name: str, subject: Subject, pools: Pools, needs: Needs) -> Result:
    """Make one check for the pools of the run. If the check applies to parents, also make it for the pool of the run's
    parent."""
    if name == "pool.queue" and pools.without_queue:
        return worst([refused(error) for error in pools.without_queue])
    parents = pools.of_parents
    if parents:
        needs = replace(needs, parent_pool=parents[0].pool, parent_queue=parents[0].queue)
    # Only one check needs the nodes. If a cluster does not answer, it must not block the other checks.
    segments = pools.with_nodes if name == "pool.nodes" else pools.of_segments
    if name == "pool.grace-period":
        given = [seconds for state in segments if (seconds := kept_seconds(state)) is not None]
        subject.pool_grace_seconds = min(given, default=None)
    return judge(name, segments, parents, needs)


def _asked(name: str, look: Callable[[SyncPrefectClient], Result]) -> Item:
    def ask() -> Result:
        with quick_client() as client:
            return look(client)

    return Item(name, _answered(ask), (_SERVER,))


def _answered(look: Callable[[], Result]) -> Callable[[], Result]:
    """Wrap a check. If a request gets no answer, the wrapped check returns a failed result instead of raising an
    exception."""

    def ask() -> Result:
        try:
            return look()
        except SILENCE as error:
            return refused(refusal(error))

    return ask
