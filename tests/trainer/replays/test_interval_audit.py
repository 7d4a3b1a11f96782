"""Audits replay committed steps in new processes, and name the machine that computed a wrong bit."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from segue.continuity.noise import NONE
from segue.controller.local_run import run_here
from segue.errors import AuditImpossibleError
from segue.launch.assignment import Assignment
from segue.records import Capacity, SegmentPlan, StopReason
from segue.runlog.history import read_history
from segue.trainer.audited_steps import interval_of
from segue.trainer.interval_audit import _Audit, audit_steps
from segue.trainer.replays.fresh import FreshAnswer
from segue.trainer.replays.replay import replay
from tests.trainer.replays.wrong_machine import VARIABLE, flipping

RECIPE = "tests.trainer.replays.wrong_machine:build"


@pytest.fixture
def trained(fork_server, make_spec, open_log):
    """Makes attempts, each up to a step and on a host of its own; returns the log and the history."""

    def train(*attempts, **fields):
        # Only ends of attempts are committed: which steps are committed then does not depend on how fast a save is.
        fields = {"recipe": RECIPE, "checkpoints": {"every_steps": 1000, "keep": 9}} | fields
        spec = make_spec(**{"steps": attempts[-1][0], **fields})
        runlog = open_log(spec)
        for steps, _, fault in attempts:
            environment = {VARIABLE: fault} if fault else None
            fork_server.run_attempt(runlog, spec.model_copy(update={"steps": steps}), environment=environment)
        return runlog, on_hosts(read_history(runlog), [host for _, host, _ in attempts])

    return train


def on_hosts(history, hosts):
    """The history as if each attempt had run on another host."""
    attempts = [
        replace(attempt, claim=attempt.claim.model_copy(update={"host": host, "machines": ()}))
        for attempt, host in zip(history.attempts, hosts, strict=True)
    ]
    return replace(history, attempts=tuple(attempts))


def audited(runlog, history, **options):
    start = options.pop("start", None)
    chosen = next((c for c in history.usable if c.manifest.step == start), None)
    return audit_steps(runlog, history, store=history.spec.store, start=chosen, **options)


@pytest.mark.matrix
@pytest.mark.parametrize(("bit", "step"), [(0, 25), (22, 29), (26, 22)])
def test_an_audit_names_the_step_and_the_host_that_flipped_a_bit(trained, bit, step):
    runlog, history = trained((20, "sound", ""), (40, "wrong", f"{step},0,5,{bit}"))
    slots = history.next_slot
    report = audited(runlog, history)
    assert (report.result, report.differs_on, report.replays) == ("differs", "wrong", 2), report.sentence
    assert (report.from_step, report.to_step, report.equal_step) == (20, 40, 20)
    assert step <= report.step
    # The lowest bit may change no recorded number for some steps. The next loss shows any other bit.
    assert report.step <= (step + 1 if bit else 40), report.sentence
    assert f"segue run --run-id NEW --from {runlog.run_id}@20" in report.sentence
    before = audited(runlog, history, start=20, steps=step - 21)
    assert (before.result, before.trained_on, before.to_step) == ("exact", ("wrong",), step - 1), before.sentence
    assert read_history(runlog).next_slot == slots


@pytest.mark.matrix
def test_every_flipped_bit_of_every_position_differs_from_the_log(trained):
    runlog, history = trained((20, "host", ""), (40, "host", ""))
    interval = interval_of(runlog, history, start=None, steps=None)
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="test")
    assignment = Assignment(spec=history.spec, plan=plan)
    audit = _Audit(runlog.run_id, history, interval, processes=None)

    def difference():
        made = replay(assignment, runlog, interval.start, steps=20, watched=interval.watched)
        answer = FreshAnswer(made.rows, "{}", environment=made.environment, digests=made.digests)
        return audit._difference(answer, NONE)

    assert difference() is None
    unseen, late = [], []
    for bit in range(32):
        for step, parameter, element in [(21, 0, 5), (28, 2, 3), (29, 3, 0), (33, 4, 7), (39, 5, 0), (40, 0, 100)]:
            with flipping(step, parameter, element, bit):
                found = difference()
            if found is None:
                unseen.append((bit, step, parameter))
            elif found.step > step + 1:
                late.append((bit, step, found))
    assert not unseen
    # A change of a low bit may be smaller than the rounding of the next losses.
    assert not [each for each in late if each[0] >= 20]


RICH = {"accumulate": 2, "evaluate_every": 3, "ema": True, "weighted": True}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("recipe", "config"), [(RECIPE, {"workers": 2}), ("tests.recipes.rich:rich", RICH), (RECIPE, {})]
)
def test_an_undisturbed_run_shows_no_difference_in_any_interval(make_spec, open_log, recipe, config):
    # Dropout, batch norm, averages, epochs, evaluations and data workers; a new process trains each 17 steps.
    checkpoints = {"every_steps": 7, "keep": 99}
    fields = {"steps": 60, "segment": {"steps": 17}, "checkpoints": checkpoints}
    spec = make_spec(recipe=recipe, config=config, **fields)
    runlog = open_log(spec)
    assert run_here(spec, runlog, on_line=lambda line: None).action == "finished"
    history = read_history(runlog)
    history = on_hosts(history, [f"host {number}" for number in range(len(history.attempts))])
    assert len(history.attempts) == 4
    for start in history.usable[:-1:3]:
        report = audited(runlog, history, start=start.manifest.step)
        assert (report.result, report.step, report.commits_compared) == ("exact", None, 1), report.sentence
    whole = audited(runlog, history, start=history.usable[0].manifest.step, steps=1000)
    assert whole.result == "exact", whole.sentence
    assert (whole.to_step, whole.steps_compared) == (60, 60 - whole.from_step)
    assert len(whole.trained_on) == 4
    # The resume at step 17 has repeated steps that the attempt before it had made as the witness of its last commit.
    assert 18 in interval_of(runlog, history, start=history.usable[0], steps=1000).witness
    assert whole.commits_compared == len(history.usable) - 1


@pytest.mark.matrix
def test_an_audit_beside_a_run_that_trains_leaves_its_attempt_the_right_to_write(fork_server, make_spec, open_log):
    config = {"pause_seconds": 0.02}
    spec = make_spec(recipe=RECIPE, config=config, steps=100_000, checkpoints={"every_steps": 20, "keep": 3})
    runlog, reports = open_log(spec), []

    def audit_then_stop(pid, runlog, plan):
        history = read_history(runlog)
        if len(history.usable) < 2:
            return False
        reports.append(audited(runlog, history))
        newest = read_history(runlog).committed_step
        os.kill(pid, signal.SIGTERM)
        assert newest > reports[0].to_step
        return True

    ended = fork_server.run_attempt(runlog, spec, observer=audit_then_stop)
    assert (reports[0].result, reports[0].replays) == ("exact", 1), reports[0].sentence
    assert (ended.stop_reason, ended.checkpoint.step) == (StopReason.NOTICE, ended.to_step)
    history = read_history(runlog)
    assert history.usable[0].manifest.step > reports[0].from_step  # Pruned in the meantime.
    assert len(history.attempts) == 1


@pytest.mark.matrix
def test_a_difference_that_the_recipe_or_the_environment_explains_blames_no_machine(trained):
    runlog, history = trained((20, "host", ""), (40, "host", ""))
    wider = replace(history, spec=history.spec.model_copy(update={"config": {"batch_size": 16}}))
    with pytest.raises(AuditImpossibleError, match=r"replay has .*a setting changed.* Fix: replay with the recipe"):
        audited(runlog, wider)
    threads = replace(history, spec=history.spec.model_copy(update={"threads": 2}))
    with pytest.raises(AuditImpossibleError, match=r"another threads.* Fix: replay with .* type of machine"):
        audited(runlog, threads)


@pytest.mark.matrix
@pytest.mark.parametrize(("eps", "result"), [(1e-6, "equivalent"), (0.5, "not reproducible")])
def test_a_recipe_with_noise_is_compared_within_the_noise_of_its_replays(trained, eps, result):
    config = {"kind": "perturbed", "eps": eps}
    runlog, history = trained(
        (20, "host", ""), (40, "host", ""), recipe="tests.continuity.noise.recipe:build", config=config
    )
    report = audited(runlog, history)
    assert (report.result, report.replays, report.differs_on) == (result, 4, None), report.sentence
    assert bool(report.noise) is (result == "equivalent")
    assert report.passed is (result == "equivalent")


def test_an_audit_refuses_what_it_cannot_replay(trained):
    runlog, history = trained((10, "host", ""), (20, "host", ""))
    program = history.spec.model_copy(update={"recipe": None})
    with pytest.raises(AuditImpossibleError, match=r"trains a program.*segue drill"):
        audited(runlog, replace(history, spec=program))
    last = history.usable[-1]
    ahead = replace(last, rows=())
    lone = replace(history, checkpoints=(*history.checkpoints[:-1], ahead))
    with pytest.raises(AuditImpossibleError, match=r"no step .* checkpoint of step 20.* Fix: choose --from among 10"):
        audited(runlog, lone, start=20)
    first = history.usable[0].manifest
    runlog.store.delete([f"{runlog.run_id}/{shard.key}" for shard in first.shards])
    with pytest.raises(AuditImpossibleError, match=r"step 10 was pruned.* Fix: run the same command without --from"):
        audited(runlog, history, start=10)


def test_the_default_interval_is_the_newest_and_others_are_cut_at_the_last_known_step(trained):
    runlog, history = trained((10, "a", ""), (20, "b", ""), (33, "c", ""))

    def chosen(start=None, steps=None):
        found = next((c for c in history.usable if c.manifest.step == start), None)
        interval = interval_of(runlog, history, start=found, steps=steps)
        return interval.start.manifest.step, interval.to_step, [c.manifest.step for c in interval.commits]

    assert chosen() == (20, 33, [33])
    assert chosen(start=20, steps=3) == (20, 23, [])
    assert chosen(start=10) == (10, 20, [20])
    assert chosen(start=10, steps=1000) == (10, 33, [20, 33])
    crossing = interval_of(runlog, history, start=history.usable[0], steps=1000)
    hosts = [attempt.claim.host for attempt in crossing.attempts.values()]
    assert hosts == ["b"] * 10 + ["c"] * 13
    assert list(crossing.curve) == list(crossing.attempts) == list(range(11, 34))
