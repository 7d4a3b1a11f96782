"""Four random scripts of preemption through a real Prefect: each run is on time and ends in the undisturbed state."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.policy import clamp
from segue.policy.estimates import situation
from segue.records import Capacity, StopReason, VerdictKind
from segue.runlog.history import History, read_history
from segue.spec import RunSpec
from tests.flows.test_handover import state_of
from tests.support.preemption_scripts import Lane, Player, Script, drawn
from tests.support.stretched_time import late_seconds

log = logging.getLogger(__name__)

pytestmark = pytest.mark.prefect

STEPS = 280
RECIPE = {"steps": STEPS, "config": {"pause_seconds": 0.04}, "checkpoints": {"every_steps": 40}, "grace_seconds": 3}
LIVENESS = {"heartbeat_seconds": 0.25, "heartbeat_timeout_seconds": 6, "start_seconds": 30}
# Values for two runs that share two cores: a boot imports Prefect and torch.
NUMBERS = {"step_seconds": 0.045, "changeover_seconds": 18, "detection_seconds": 8}
PARENT_SECONDS = 12.0
"""Seconds from the request of a run to its first decision."""
LANES = 2


@pytest.fixture(scope="module")
def lanes(stack):
    with ExitStack() as clients:
        lanes = [Lane(clients.enter_context(get_client(sync_client=True)), f"lane{n}") for n in range(LANES)]
        yield lanes
        for lane in lanes:
            lane.close()


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory) -> dict[str, str]:
    fields = {"run_id": "undisturbed", "recipe": "segue.testing.recipes:tiny", "threads": 1}
    fields |= {"store": {"url": str(tmp_path_factory.mktemp("reference"))}, "continuity": {"rehearsal": "off"}}
    spec = RunSpec.parse(fields | {"steps": STEPS, "checkpoints": RECIPE["checkpoints"]})
    runlog = open_run(spec, clock=SystemClock())
    fork_server.run_to_the_end(runlog, spec)
    return state_of(read_history(runlog))


def spec_for(script: Script, make_spec, lane: Lane) -> RunSpec:
    """The spec with a deadline that leaves the slack of the script, by the clamp's estimate."""
    fields = RECIPE | {
        "run_id": f"script{script.seed}",
        "policy": NUMBERS | {"name": script.policy},
        "liveness": LIVENESS,
        "pools": {"spot": lane.deployment},
    }
    now = datetime.now(UTC)
    needed = clamp.needed_for_spot_seconds(situation(make_spec(**fields), History(), now=now))
    seconds = PARENT_SECONDS + needed + script.slack_seconds
    return make_spec(**fields, deadline=now + timedelta(seconds=seconds))


def play(scripts: list[Script], lanes: list[Lane], make_spec) -> list[Player]:
    """Play the scripts, as many at once as there are lanes; returns when all runs are over."""
    free = SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def play_one(script: Script) -> Player:
        lane = free.get()
        try:
            return Player(lane, script, spec_for(script, make_spec, lane)).play()
        finally:
            free.put(lane)

    with ThreadPoolExecutor(len(lanes)) as threads:
        return list(threads.map(play_one, scripts))


def has_left_spot(player: Player) -> bool:
    return any(report.capacity is Capacity.ON_DEMAND for report in player.history.last_reports())


def outcome_of(player: Player) -> str:
    """The outcome of a run, on one line."""
    history, script = player.history, player.script
    early = (player.spec.deadline - history.decisions[-1].written_at).total_seconds()
    reports = [f"{r.capacity}:{r.stop_reason}@{r.to_step}" for r in history.last_reports()]
    happened = [what for what, _ in player.strikes]
    return (
        f"seed={script.seed} policy={script.policy} tight={script.is_tight} slack={script.slack_seconds:.1f}"
        f" state={player.state.name} early={early:.1f} strikes={happened} reports={reports}"
    )


def why_not(player: Player, undisturbed: dict[str, str]) -> list[str]:
    """The promises that a run did not keep."""
    history = player.history
    reports = history.last_reports()
    struck = {claim.attempt_id for _, claim in player.strikes}
    preempted = {report.attempt_id for report in reports if report.stop_reason.is_preemption}
    # Attempts that ended at a recall at the moment of the strike.
    left = {report.attempt_id for report in reports if report.stop_reason is StopReason.BOUND}
    kinds = {attempt.verdict.kind for attempt in history.attempts if attempt.verdict}
    held = {
        "completed": player.state.type is StateType.COMPLETED,
        "on time": late_seconds(player.spec, player.runlog, until_decided_seconds=PARENT_SECONDS) < 0,
        "the state of the undisturbed run": state_of(history) == undisturbed,
        "no resume is broken": VerdictKind.BROKEN not in kinds,
        "every struck attempt ended": struck <= preempted | left,
    }
    return [promise for promise, is_kept in held.items() if not is_kept]


@pytest.mark.soak
@pytest.mark.matrix
def test_every_script_of_preemptions_is_on_time_and_ends_in_the_undisturbed_state(lanes, make_spec, undisturbed):
    scripts = [drawn(seed) for seed in range(4)]
    players = play(scripts, lanes, make_spec)
    for player in players:
        log.info("%s", outcome_of(player))
    broken = {player.script.seed: why_not(player, undisturbed) for player in players}
    assert not any(broken.values()), [
        (broken[p.script.seed], outcome_of(p), p.script, [(e.reason, e.numbers) for e in p.history.decisions])
        for p in players
        if broken[p.script.seed]
    ]
    # The scripts were carried out. A run that a shortage keeps from spot has no other strike.
    assert sum(bool(player.strikes) for player in players) > len(players) / 2
    assert sum(map(has_left_spot, players)) >= sum(script.is_tight for script in scripts) // 2
