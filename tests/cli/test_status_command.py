"""`segue runs` and `segue stop`: what a store holds, and how a run is ended."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from segue.cli.status import _live_facts
from segue.clock import SystemClock
from segue.controller.recovery_looks import begin_look
from segue.controller.steps import decide_next
from segue.records import Heartbeat, Machine, ParentRecord, SlowRank, StopReason
from segue.runlog import keys
from segue.runlog.parents import write_parent
from segue.testing.clock import FakeClock
from tests.cli.test_errors import refusal
from tests.controller.test_steps import START, Run


@pytest.fixture
def make_run(make_spec):
    def make(run_id: str, **fields) -> Run:
        policy = {"step_seconds": 1}
        return Run(make_spec(run_id=run_id, steps=100, policy=policy, **fields), FakeClock(START))

    return make


def store_of(run: Run) -> tuple[str, str]:
    return "--store", run.spec.store.url


def test_the_runs_of_a_store_are_listed_with_state_step_punctuality_and_cost(make_run, desk):
    late = make_run("late", deadline=START + timedelta(seconds=50))
    late.commit(late.claim(late.decide()), 10)
    done = make_run("done")
    plan = done.decide()
    claim = done.claim(plan)
    done.commit(claim, 100)
    done.report(plan, claim, StopReason.FINISHED, seconds=3600, train_seconds=3000, train_steps=90)
    outcome = desk.run("runs", *store_of(late), "--json")
    listed = {row["run"]: row for row in json.loads(outcome.out)["runs"]}
    assert list(listed) == ["done", "late"]
    done, running = listed["done"], listed["late"]
    assert (done["state"], done["committed_steps"], done["goal_steps"]) == ("finished", 100, 100)
    assert (done["cost"], done["currency"], done["late_seconds"]) == (1.0, "USD", None)
    assert (running["state"], running["segment"], running["attempt"]) == ("running", 0, 1)
    assert running["late_seconds"] > 0
    assert [name for name, value in (done | running).items() if isinstance(value, str) and " " in value] == []
    table = desk.run("runs", *store_of(late))
    assert (table.code, table.err) == (0, "")
    assert all(word in table.out for word in ("run", "state", "step", "deadline", "cost", "done", "late"))


def test_a_store_without_runs_says_so(desk):
    (desk.folder / "empty").mkdir()
    outcome = desk.run("runs", "--store", str(desk.folder / "empty"))
    assert (outcome.code, outcome.out.split(" in ")[0]) == (0, "There are no runs")


@pytest.mark.parametrize("command", ["runs", "costs"])
@pytest.mark.parametrize("where", [("--store", "none"), ()])
def test_a_store_that_is_not_there_is_an_error(desk, command, where):
    said = refusal(desk.run(command, *where))
    assert f"{where[-1] if where else '.segue/store'}: there is no such folder or bucket. Fix: correct --store" in said
    assert not (desk.folder / "none").exists()


def test_a_run_that_is_not_there_names_those_that_are_the_nearest_first(make_run, desk):
    for name in ("nightly", "nightly-2", *(f"other{number}" for number in range(12))):
        run = make_run(name)
    said = refusal(desk.run("status", "nightli", *store_of(run)))
    assert "Runs there: nightly, nightly-2, other" in said
    assert said.count("other") == 8
    assert "and 4 more." in said


def test_a_run_that_trains_is_shown_with_its_step_its_heartbeat_and_what_its_saves_fail_with(make_run, desk):
    run = make_run("live")
    claim = run.claim(run.decide())
    silent = desk.run("status", "live", *store_of(run), "--json")
    assert "heartbeat_age_seconds" not in json.loads(silent.out)
    run.beat(claim, step=7, beat_at=datetime.now(UTC) - timedelta(seconds=40), trouble="the disk is full")
    facts = json.loads(desk.run("status", "live", *store_of(run), "--json").out)
    assert (facts["live_step"], facts["save_trouble"]) == (7, "the disk is full")
    assert 40 <= facts["heartbeat_age_seconds"] < 400
    shown = desk.run("status", "live", *store_of(run)).out
    assert "heartbeat age seconds" in shown
    assert "save trouble  the disk is full" in shown


def test_a_run_is_stopped_once_and_the_answer_says_how_to_resume(make_run, desk):
    run = make_run("mine")
    run.claim(run.decide())
    outcome = desk.run("stop", "mine", *store_of(run))
    assert (outcome.code, outcome.err) == (0, "")
    assert "stop requested" in outcome.out
    assert "--run-id mine" in outcome.out
    state = json.loads(desk.run("status", "mine", *store_of(run), "--json").out)["state"]
    assert state == "stopping"


def test_what_cannot_be_stopped_is_refused(make_run, desk):
    run = make_run("over")
    plan = run.decide()
    claim = run.claim(plan)
    run.commit(claim, 100)
    run.report(plan, claim, StopReason.FINISHED)
    assert decide_next(run.log, run.spec, clock=run.clock).action == "finished"
    assert "has already ended (finished at step 100)" in refusal(desk.run("stop", "over", *store_of(run)))
    assert "no run 'nowhere'" in refusal(desk.run("stop", "nowhere", *store_of(run)))


@pytest.mark.parametrize(
    ("beat_seconds_ago", "unguarded", "shown"),
    [
        (5, None, None),  # The parent lives, and watches the looks.
        (
            5,
            "no check by `recover` has completed for 4 min; ... Fix: x.",
            "no check by `recover` has completed for 4 min;",
        ),
        (300, None, "no check by `recover` has completed for 10 min: dead parents are not started again. Fix: `segue"),
    ],
)
def test_status_says_when_nothing_starts_a_dead_parent_again(make_run, desk, beat_seconds_ago, unguarded, shown):
    run = make_run("open")
    run.decide()
    store, now = run.log.store, datetime.now(UTC)
    assert json.loads(desk.run("status", "open", *store_of(run), "--json").out)["recovery"] is None
    beat_at = now - timedelta(seconds=beat_seconds_ago)
    write_parent(
        store, ParentRecord(run_id="open", parent_id="p", timeout_seconds=20, beat_at=beat_at, unguarded=unguarded)
    )
    begin_look(store, clock=SystemClock(), interval_seconds=30).end()
    looked_at = (now - timedelta(seconds=600)).timestamp()
    os.utime(store.root / keys.LOOK_KEY, (looked_at, looked_at))
    found = json.loads(desk.run("status", "open", *store_of(run), "--json").out)["recovery"]
    assert (found or "").startswith(shown) if shown else found is None


def test_a_slow_rank_is_named_with_its_machine():
    slow = SlowRank(rank=3, machine=Machine(kind="slurm", name="gpu-7"), slowness=1.31)
    now = datetime.now(UTC)
    facts = {"attempt_id": "a", "counter": 1, "phase": "training", "step": 9, "trainer_pid": 1, "beat_at": now}
    shown = _live_facts(Heartbeat(**facts, slow_ranks=(slow,)), now=now)["slow_ranks"]
    assert "rank 3 took 1.31 times as long as the other ranks" in shown
    assert "gpu-7" in shown
    assert _live_facts(Heartbeat(**facts), now=now)["slow_ranks"] is None
