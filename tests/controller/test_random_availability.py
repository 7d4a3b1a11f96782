"""For random availability of spot, the deadline is met, and the final state is that of an undisturbed run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.records import Capacity, SegmentPlan, VerdictKind
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import History, read_history
from segue.spec import RunSpec
from tests.support.spot_pool import World
from tests.support.stretched_time import late_seconds

STEPS = 1200
RECIPE = {"steps": STEPS, "checkpoints": {"every_steps": 50}}
POLICIES = ("eager_progress", "slack_age", "plan")
NUMBERS = {"step_seconds": 0.01, "changeover_seconds": 4, "detection_seconds": 8}


def state_of(history: History) -> dict[str, str]:
    """Digests of all components except the setup, which holds the config."""
    digests = history.newest.manifest.components
    return {name: digest for name, digest in digests.items() if not name.startswith("setup")}


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory) -> dict[str, str]:
    fields = {"run_id": "undisturbed", "recipe": "segue.testing.recipes:tiny", "threads": 1}
    fields |= {"store": {"url": str(tmp_path_factory.mktemp("reference"))}, "continuity": {"rehearsal": "off"}}
    spec = RunSpec.parse(fields | RECIPE)
    runlog = open_run(spec, clock=SystemClock())
    fork_server.run_to_the_end(runlog, spec)
    return state_of(read_history(runlog))


def begin_on_demand(spec, runlog) -> None:
    """As in a run whose first wait for spot failed."""
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.ON_DEMAND, deployment=spec.pools.on_demand)
    facts = {"plan": plan, "action": "run", "reason": "no spot to be had"}
    runlog.append(lambda stamp: DecisionEntry(**stamp(epoch=0), **facts))


SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (101, 102)))
"""One of each policy. `python -m benchmarks chaos` and `python -m benchmarks crash` take many seeds."""


@pytest.mark.matrix
@pytest.mark.parametrize("seed", SEEDS)
def test_every_script_of_preemptions_meets_the_deadline_and_ends_in_the_undisturbed_state(
    seed, fork_server, make_spec, open_log, undisturbed
):
    deadline = datetime.now(UTC) + timedelta(seconds=90)
    spec = make_spec(
        run_id=f"random-{seed}",
        deadline=deadline,
        config={"pause_seconds": 0.005},
        policy=NUMBERS | {"name": POLICIES[seed % len(POLICIES)], "max_lost_in_place": 100},
        liveness={"heartbeat_seconds": 0.2, "heartbeat_timeout_seconds": 8, "start_seconds": 8},
        **RECIPE,
    )
    runlog = open_log(spec)
    if seed % 2:
        begin_on_demand(spec, runlog)
    ended = World(spec, runlog, fork_server, seed=seed).run()
    history = read_history(runlog.reload())
    told = [f"{entry.reason}" for entry in history.decisions]
    assert ended.action == "finished", told
    assert late_seconds(spec, runlog) < 0, told
    assert state_of(history) == undisturbed
    assert VerdictKind.BROKEN not in {attempt.verdict.kind for attempt in history.attempts if attempt.verdict}
