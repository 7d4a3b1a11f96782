"""The checks of pools fail for templates and pools on which a run would lose what it should not lose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from segue.doctor.check import skipped
from segue.doctor.pools.judgement import JUDGES, judge, refusals, refusals_of_parents, warnings
from segue.doctor.pools.node_needs import node_needs
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.pools.queue_judgement import blocker
from segue.doctor.pools.segment_job import PoolJob, job_of, starts_engine
from tests.doctor import templates
from tests.doctor.showing import bad, good, makes_fail

CRASH = {"PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR": "crash"}


def on_kubernetes(configuration: dict[str, Any] | None = None, **fields: Any) -> PoolState:
    job = job_of("kubernetes", configuration or templates.kubernetes())
    return PoolState("segment/spot", "spot-pods", workers=1, known_workers=1, job=job, **fields)


def with_job(**fields: Any) -> PoolState:
    return on_kubernetes(templates.kubernetes(job=fields))


def with_pod(**fields: Any) -> PoolState:
    return on_kubernetes(templates.kubernetes(pod=fields))


def on_ecs(configuration: dict[str, Any] | None = None) -> PoolState:
    return PoolState("segment/spot", "spot-tasks", workers=1, job=job_of("ecs", configuration or templates.ecs()))


def of_process(command: str | None, **fields: Any) -> PoolState:
    return PoolState("segment/spot", "spot", workers=1, job=job_of("process", {"command": command}), **fields)


BAD: list[tuple[str, PoolState, str, tuple[str, ...]]] = [
    (
        "pool.queue",
        on_kubernetes(queue="gpu", is_queue_paused=True),
        "warn",
        ("the queue gpu", "work-queue resume gpu"),
    ),
    (
        "pool.queue",
        on_kubernetes(queue="gpu", is_queue_polled=False),
        "warn",
        ("takes flow runs from its queue gpu", "worker start --pool spot-pods --work-queue gpu"),
    ),
    ("pool.paused", on_kubernetes(is_paused=True), "warn", ("is paused", "work-pool resume")),
    ("pool.workers", PoolState("a/b", "p", workers=0, known_workers=0), "fail", ("never had one", "worker start")),
    ("pool.workers", PoolState("a/b", "p", workers=0, known_workers=2), "warn", ("no worker of the pool p is online",)),
    (
        "pool.limits",
        PoolState("a/b", "p", limit=0, pool_limit=0),
        "fail",
        ("at most 0 flow runs at once (limit of the pool p)", "work-pool set-concurrency-limit p N"),
    ),
    (
        "pool.limits",
        PoolState("a/b", "p", queue="gpu", limit=0, pool_limit=8, queue_limit=0),
        "fail",
        ("limit of the queue gpu of the pool p", "work-queue set-concurrency-limit gpu N --pool p"),
    ),
    ("pool.limits", PoolState("a/b", "p", limit=0, pool_limit=8), "fail", ("deployment 'a/b'", "prefect.yaml")),
    ("pool.limits", PoolState("a/b", "parents", limit=1, pool_limit=1), "fail", ("the run's parent is one of them",)),
    (
        "pool.limits",
        PoolState("a/b", "parents", queue="default", limit=1, pool_limit=8, queue_limit=1),
        "fail",
        ("the run's parent is one of them (limit of the queue default of the pool parents)", "to 2 or more"),
    ),
    ("pool.job-variables", PoolState("a/b", "p", unknown_variables=("imagee",)), "fail", ("(imagee)", "prefect.yaml")),
    ("pool.sigterm", on_kubernetes(templates.KUBERNETES), "fail", ("Prefect's default command", "same flow run")),
    ("pool.sigterm", on_kubernetes(templates.kubernetes(command="prefect flow-run execute")), "fail", ("same pool",)),
    (
        "pool.sigterm",
        on_kubernetes(templates.KUBERNETES | {"env": CRASH}),
        "warn",
        ("before it has saved", "prefect_engine"),
    ),
    (
        "pool.sigterm",
        on_kubernetes(templates.kubernetes(command="sh -c 'python -m prefect.engine'")),
        "warn",
        ("it is not known if SIGTERM then reaches the engine", "exec python -m"),
    ),
    (
        "pool.sigterm",
        on_ecs(templates.ecs(container={"entryPoint": ["/app/entrypoint.sh"]})),
        "warn",
        ("starts `/app/entrypoint.sh python -m segue.flows.prefect_engine`", "it is not known"),
    ),
    (
        "pool.pod-replacement",
        with_job(podReplacementPolicy=None),
        "warn",
        ("while the segment saves", "1.29"),
    ),
    (
        "pool.sigterm",
        on_kubernetes(templates.kubernetes(command="sh -c 'exec python -m prefect.engine | tee /log'")),
        "warn",
        ("keeps SIGTERM from the engine", "exec python -m"),
    ),
    (
        "pool.sigterm",
        on_kubernetes(templates.kubernetes(command="/app/start.sh")),
        "warn",
        ("it is not known if SIGTERM then reaches the engine", "exec python -m"),
    ),
    ("pool.sigterm", on_ecs(templates.ECS), "warn", ("before it has saved",)),
    ("pool.sigterm", on_ecs(templates.ECS | {"env": {**CRASH, **dict.fromkeys(CRASH, "reschedule")}}), "fail", ()),
    ("pool.sigterm", of_process("prefect flow-run execute"), "warn", ("may keep SIGTERM",)),
    ("pool.backoff-limit", with_job(backoffLimit=6), "fail", ("backoffLimit 6",)),
    (
        "pool.backoff-limit",
        on_kubernetes(templates.kubernetes(job={"backoffLimit": None})),
        "fail",
        ("backoffLimit 6",),
    ),
    (
        "pool.backoff-limit",
        on_kubernetes(templates.kubernetes(pod={"restartPolicy": "OnFailure"})),
        "fail",
        ("OnFailure",),
    ),
    (
        "pool.grace-period",
        with_pod(terminationGracePeriodSeconds=15),
        "fail",
        (
            "kills 15 s after SIGTERM",
            "grace_seconds = 25",
            "of the run to 14",
            "higher value for terminationGracePeriodSeconds",
        ),
    ),
    ("pool.grace-period", on_ecs(templates.ecs(container={"stopTimeout": "10"})), "fail", ("stopTimeout",)),
    (
        "pool.grace-period",
        on_ecs(templates.ecs(container={"stopTimeout": 600})),
        "fail",
        ("ECS refuses every task with more than 120", "set stopTimeout to 120"),
    ),
    (
        "pool.grace-period",
        with_pod(terminationGracePeriodSeconds=25),
        "warn",
        ("kills 25 s", "higher value for termination"),
    ),
    (
        "pool.grace-period",
        with_pod(terminationGracePeriodSeconds=600, nodeSelector={"cloud.google.com/gke-spot": "true"}),
        "warn",
        ("kills 15 s after SIGTERM (by default a spot node of GKE gives no more", "of the run to 14", "late)."),
    ),
    ("pool.shared-memory", on_kubernetes(templates.KUBERNETES), "warn", ("64 MB", "medium: Memory")),
    (
        "pool.finished-jobs",
        on_kubernetes(templates.KUBERNETES),
        "warn",
        ("ttlSecondsAfterFinished", "finished_job_ttl"),
    ),
    ("pool.memory", on_ecs(templates.ECS), "warn", ("sets no memory", "2 GB")),
    ("pool.store", on_kubernetes(), "warn", ("a folder of its own", "bucket")),
]
NEEDS = Needs(grace_seconds=25, parent_pool="parents", parent_queue="default", is_store_remote=False)


@makes_fail(*(name for name, *_ in BAD))
@pytest.mark.parametrize(("name", "state", "outcome", "words"), BAD)
def test_what_is_wrong_with_a_pool_is_said_with_the_fix(name, state, outcome, words):
    bad(name, judge(name, [on_kubernetes(), state], [], NEEDS), outcome, *words)


@pytest.mark.parametrize("state", [on_kubernetes(), on_ecs()])
def test_a_sound_pool_of_containers_passes(state):
    needs = Needs(grace_seconds=59, is_store_remote=True)
    results = {name: result for name, look in JUDGES.items() if (result := look(state, needs)) is not None}
    assert {name: result for name, result in results.items() if result.outcome not in ("ok", "skipped")} == {}
    assert refusals([state], needs) == []


@pytest.mark.parametrize(
    "command",
    [
        "python -m prefect.engine",
        "python -m segue.flows.prefect_engine",
        "/opt/venv/bin/python3.11 -X faulthandler -m prefect.flow_engine",
        "sh -c 'exec python -m segue.flows.prefect_engine'",
        "bash -lc 'cd /app && exec python -m segue.flows.prefect_engine'",
        "bash -c 'A=1 python -m segue.flows.prefect_engine'",
        "sh -c 'set -e; . /env & A=1; exec env B=2 python -m segue.flows.prefect_engine'",
        "sh -c 'exec python -m prefect.engine || exit 1'",
        "tini -g -- nice -n 5 python -m prefect.engine",
        "A=1 python -m prefect.engine",
    ],
)
def test_a_command_that_is_an_engine_hears_sigterm_whatever_the_variable(command):
    good(JUDGES["pool.sigterm"](on_kubernetes(templates.kubernetes(command=command)), NEEDS))


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("python -m torch.distributed.run -m prefect.engine", None),
        ("python -m coverage run -m prefect.engine", None),
        ("python -m prefect flow-run execute", False),
        ("prefect flow-run execute", False),
        ("sh -c 'cd /app && python -m prefect.engine'", None),
        ("bash -c 'cd /app && python -m prefect.engine'", None),
        ("bash -c 'python -m prefect.engine | tee /log'", False),
        ("bash -c 'python -m prefect.engine || exit 1'", False),
        ("bash -c 'python -m prefect.engine > /log 2>&1'", False),
        ("sh -c 'python -m prefect flow-run execute'", False),
        ("sh -c 'exec python -m prefect.engine & wait'", False),
        ("sh -c 'exec python -m prefect.engine &'", False),
        ("sh -c 'python -m prefect.engine & trap \"\" TERM; wait'", None),
        ("sh -c 'true || exec python -m prefect.engine'", None),
        ("bash start.sh", None),
        ("python start.py", None),
        ("/entrypoint.sh python -m prefect.engine", None),
        ("sh -c 'exec \"python", None),
        ("env", None),
    ],
)
def test_a_command_that_is_not_known_to_be_an_engine_is_not_taken_for_one(command, known):
    assert starts_engine(command) is known


def test_the_words_of_a_container_are_what_kubernetes_and_the_worker_make_of_them():
    """Its `command` precedes its `args`, and the pool's own `command` counts only where the template has it."""
    configuration = templates.kubernetes()
    container = configuration["job_manifest"]["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["/app/entrypoint.sh"]
    assert job_of("kubernetes", configuration).command == f"/app/entrypoint.sh {templates.ENGINE}"
    container["args"] = ["prefect", "flow-run", "execute"]
    container["command"] = None
    bad_one = JUDGES["pool.sigterm"](on_kubernetes(configuration), NEEDS)
    assert (bad_one.outcome, "same pool again" in bad_one.reason) == ("fail", True)
    container["args"], container["command"] = None, ["tini", "--"]
    assert job_of("kubernetes", configuration).command == "tini -- prefect flow-run execute"


def test_a_job_with_a_pod_failure_policy_replaces_pods_only_when_they_have_ended():
    good(JUDGES["pool.pod-replacement"](with_job(podReplacementPolicy=None, podFailurePolicy={"rules": []}), NEEDS))


def test_a_queue_that_no_worker_asks_is_why_nothing_starts():
    asked = on_kubernetes(queue="gpu")
    assert blocker(asked) is None
    assert blocker(replace(asked, is_queue_polled=False)) == (
        "no worker of the pool spot-pods takes flow runs from its queue gpu"
    )
    why = blocker(replace(asked, limit=0, pool_limit=4, queue_limit=0))
    assert why is not None
    assert why.endswith("runs at most 0 flow runs at once (limit of the queue gpu of the pool spot-pods)")


def test_a_queue_of_one_is_no_obstacle_where_the_parent_runs_in_another():
    one = PoolState("a/b", "parents", queue="gpu", limit=1, pool_limit=8, queue_limit=1)
    good(JUDGES["pool.limits"](one, NEEDS))
    good(JUDGES["pool.limits"](replace(one, queue="default", limit=2, queue_limit=2), NEEDS))
    good(JUDGES["pool.limits"](replace(one, queue="default", pool="others"), NEEDS))


def test_what_is_not_refused_is_warned_of_once_and_what_only_waits_is_not():
    state = on_kubernetes(templates.KUBERNETES | {"command": templates.ENGINE}, is_paused=True)
    said = [result.reason for result in warnings([state, state], Needs())]
    assert [any(name in reason for reason in said) for name in ("/dev/shm", "ttlSecondsAfterFinished")] == [True, True]
    assert ("is paused" in str(said), len(said)) == (False, len(set(said)))


AFFINE = [
    ([{"key": "gpu", "operator": "In", "values": ["h100", "a100"]}], "gpu In (h100, a100)", ["h100", "a100"]),
    ([{"key": "gpu", "operator": "NotIn", "values": ["h100"]}], "gpu NotIn (h100)", ["a100", None]),
    ([{"key": "gpu", "operator": "Exists"}], "gpu Exists", ["h100", "a100"]),
    ([{"key": "gpu", "operator": "DoesNotExist"}], "gpu DoesNotExist", [None]),
    ([{"key": "gpu", "operator": "Exists"}, {"key": "gpu", "operator": "NotIn", "values": ["a100"]}], "and", ["h100"]),
    ([{"key": "gpu", "operator": "Gt", "values": ["3"]}], "gpu Gt (3)", ["h100", "a100", None]),
]


@pytest.mark.parametrize(("expressions", "shown", "fitting"), AFFINE)
def test_the_required_affinity_of_a_pod_decides_which_nodes_fit(expressions, shown, fitting):
    needs = node_needs(affine(expressions))
    found = [gpu for gpu in ("h100", "a100", None) if needs.fit({} if gpu is None else {"gpu": gpu})]
    assert (sorted(map(str, found)), shown in str(needs)) == (sorted(map(str, fitting)), True)


def test_one_term_of_several_is_enough_and_the_selector_counts_beside_them():
    pod = affine([{"key": "a", "operator": "Exists"}], [{"key": "b", "operator": "Exists"}]) | {
        "nodeSelector": {"zone": "x"}
    }
    needs = node_needs(pod)
    assert [needs.fit(labels) for labels in ({"b": "", "zone": "x"}, {"b": ""}, {"zone": "x"})] == [True, False, False]
    state = with_pod(**pod)
    assert JUDGES["pool.nodes"](replace(state, nodes=[{"zone": "x"}]), NEEDS).outcome == "warn"
    good(JUDGES["pool.nodes"](on_kubernetes(), NEEDS))


def affine(*terms: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def test_a_worker_for_processes_starts_the_engine_by_default():
    good(JUDGES["pool.sigterm"](of_process(None), NEEDS))


def test_the_variable_counts_also_as_kubernetes_lists_it():
    container = {"name": "prefect-job", "env": [{"name": name, "value": text} for name, text in CRASH.items()]}
    container |= {"args": ["prefect", "flow-run", "execute"]}
    configuration = templates.kubernetes(pod={"containers": [container]})
    assert JUDGES["pool.sigterm"](on_kubernetes(configuration), NEEDS).outcome == "warn"


def test_a_grace_period_that_ecs_does_not_permit_cannot_be_raised():
    result = JUDGES["pool.grace-period"](on_ecs(), Needs(grace_seconds=300))
    assert result.fix.startswith("lower grace_seconds of the run to 119 (1 s less")
    assert "raise" not in result.fix


def test_without_a_run_nothing_is_said_about_its_grace_period_and_store():
    needs = Needs(why_unknown="no run was named")
    for name in ("pool.grace-period", "pool.store"):
        assert judge(name, [with_pod(terminationGracePeriodSeconds=15)], [], needs) == skipped("no run was named")


def test_a_pool_that_was_not_looked_at_is_not_ok_because_another_one_is():
    unknown = PoolState("segment/spot", "spot", job=PoolJob(type="docker"))
    for name in ("pool.sigterm", "pool.backoff-limit", "pool.grace-period"):
        result = judge(name, [unknown, on_kubernetes()], [], NEEDS)
        assert (result.outcome, "type docker" in result.reason) == ("skipped", True)
    assert judge("pool.backoff-limit", [of_process(None), on_kubernetes()], [], NEEDS).outcome == "ok"


@pytest.mark.parametrize("configuration", [{}, {"job_manifest": None}, {"job_manifest": {"spec": {"template": []}}}])
def test_a_template_without_its_usual_parts_is_read_as_the_platform_reads_it(configuration):
    job = job_of("kubernetes", configuration)
    assert (job.grace_seconds, job.retries, job.command) == (30, 6, None)
    assert job_of("ecs", {"task_definition": None}).grace_seconds == 30
    assert job_of("modal", {}) == PoolJob(type="modal")


def test_pools_of_parents_are_judged_by_what_matters_there():
    alone = PoolState("train/train", "parents", workers=0, known_workers=1, limit=1, pool_limit=1)
    assert judge("pool.workers", [], [alone], NEEDS).outcome == "warn"
    assert judge("pool.limits", [], [alone], NEEDS).outcome == "ok"
    assert judge("pool.sigterm", [], [alone], NEEDS).outcome == "skipped"
    assert refusals_of_parents([alone]) == []
