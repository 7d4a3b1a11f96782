"""Whichever rank is killed, and whenever: the resumed run equals one that was never killed."""

from __future__ import annotations

import random
import signal
import time
from enum import StrEnum

import pytest

from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from tests.support.single_rank import read_all

KILLS = 2
RANKS = 3


class Since(StrEnum):
    """From when on a kill counts its seconds."""

    CLAIM = "claim"
    VERDICT = "verdict on the resume, or first commit"
    COMMIT = "first commit"


class Killer:
    """Kills one rank so many seconds after a moment of its attempt."""

    def __init__(self, rank, after_seconds, *, since):
        self.rank, self._after_seconds, self._since = rank, after_seconds, since
        self._counting_from = None

    def __call__(self, group, log, plan):
        if self._counting_from is None:
            attempt = read_history(log).attempt_of(plan.segment, plan.attempt)
            is_judged = self._since is Since.VERDICT and attempt is not None and attempt.verdict is not None
            has_reached = attempt is not None and (self._since is Since.CLAIM or is_judged or bool(attempt.commits))
            self._counting_from = time.monotonic() if has_reached else None
        if self._counting_from is None or time.monotonic() < self._counting_from + self._after_seconds:
            return False
        group.signal(self.rank, signal.SIGKILL)
        return True


def verdicts_of(runlog: RunLog) -> list[VerdictKind]:
    return [attempt.verdict.kind for attempt in read_history(runlog).attempts if attempt.verdict is not None]


@pytest.mark.matrix
def test_kills_of_any_rank_at_random_moments_lose_no_commit_and_change_no_bit(ranks_fork_server, make_spec, open_log):
    steps = 100
    fields = {
        "recipe": "tests.recipes.ranked:noisy",
        "steps": steps,
        "checkpoints": {"every_steps": 5},
        "liveness": {"heartbeat_seconds": 0.05, "rank_seconds": 20},
    }
    undisturbed = make_spec(run_id="undisturbed", **fields)
    reference = open_log(undisturbed)
    ranks_fork_server.run_to_the_end(reference, undisturbed, ranks=RANKS)

    chance = random.Random(10)
    spec = make_spec(run_id="killed", policy={"max_lost_in_place": 100}, **fields)
    slow = spec.model_copy(update={"config": {"pause_seconds": 0.02}})  # Until all kills are spent.
    runlog = open_log(spec)
    kills, committed_before = 0, 0
    while read_history(runlog).committed_step < steps:
        # On a busy machine all of them may fall before a first commit, or between one and its seal: then some more,
        # each after a commit of its own, so that the run gets on.
        since = (Since.CLAIM, Since.VERDICT)[kills % 2] if kills < KILLS else Since.COMMIT
        killer = Killer(chance.randrange(RANKS), chance.uniform(0.0, 0.3), since=since)
        has_room = read_history(runlog).committed_step < steps / 2
        is_killing = kills < KILLS or (has_room and VerdictKind.EXACT not in verdicts_of(runlog))
        report = ranks_fork_server.run_attempt(
            runlog, slow if is_killing else spec, ranks=RANKS, observer=killer if is_killing else None
        )
        if is_killing:
            kills += 1
            assert report.stop_reason is StopReason.LOST, report.failure
            # One that is killed while it restores leaves no report, and neither does a leader.
            assert killer.rank == 0 or since is Since.CLAIM or f"rank {killer.rank} was lost" in report.note
        found = read_all(runlog)
        assert all("model.state.0.weight" in tensors and "rng.torch@2" in tensors for tensors in found.values())
        assert max(found, default=0) == read_history(runlog).committed_step >= committed_before
        committed_before = read_history(runlog).committed_step

    history = read_history(runlog)
    verdicts = verdicts_of(runlog)
    assert kills >= KILLS
    assert not history.damage
    assert all(checkpoint.quarantined is None for checkpoint in history.checkpoints)
    assert set(verdicts) <= {VerdictKind.EXACT, VerdictKind.UNVERIFIED}  # The latter: killed between commit and seal.
    assert VerdictKind.EXACT in verdicts
    assert history.newest.manifest.components == read_history(reference).newest.manifest.components
