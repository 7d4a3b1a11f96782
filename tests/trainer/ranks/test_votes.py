"""Votes of several ranks: skipped while no rank asks for one, and made at the same safe point by all of them."""

from __future__ import annotations

import pytest

from segue.records import StopReason
from segue.runlog.history import read_history

STEPS = 400
SELDOM = {"steps": STEPS, "checkpoints": {"every_steps": STEPS}}
"""Nothing is due before the end of the run, so the leader asks for a vote only five times a second."""


@pytest.mark.matrix
def test_a_step_in_which_nothing_is_due_has_one_exchange(ranks_fork_server, make_spec, open_log, tmp_path):
    config = {"at_step": STEPS - 1, "file": str(tmp_path / "exchanges")}
    spec = make_spec(recipe="tests.recipes.ranked:counted", config=config, **SELDOM)
    report = ranks_fork_server.run_attempt(open_log(spec), spec, ranks=2)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, STEPS)
    # 60 exchanges for the start, and 5 votes a second: a busy machine takes seconds for these steps.
    votes = int((tmp_path / "exchanges").read_text()) - STEPS
    assert votes < 60 + 5.5 * report.train_seconds
    assert votes < STEPS / 2


@pytest.mark.matrix
@pytest.mark.parametrize("rank", [0, 1])
def test_a_notice_on_one_rank_stops_all_ranks_at_the_next_safe_point(ranks_fork_server, make_spec, open_log, rank):
    config = {"sharded": True, "at": [rank, 150, "notice"], "pause_seconds": 0.005}
    spec = make_spec(recipe="tests.recipes.ranked:even", config=config, **SELDOM)
    runlog = open_log(spec)
    report = ranks_fork_server.run_attempt(runlog, spec, ranks=2)
    assert (report.stop_reason, report.lost_steps) == (StopReason.NOTICE, 0)
    # The signal arrives after the exchange of the step, or at the latest while the next steps are made.
    assert 150 <= report.to_step <= 155
    assert read_history(runlog.reload()).newest.manifest.step == report.to_step


@pytest.mark.matrix
def test_the_save_that_becomes_due_in_an_evaluation_has_its_metric(ranks_fork_server, make_spec, open_log, tmp_path):
    file = tmp_path / "evaluated"
    fields = {"steps": 60, "checkpoints": {"every_seconds": 0.4, "staging_buffers": 2}}
    spec = make_spec(recipe="tests.recipes.ranked:evaluated", config={"every": 20, "file": str(file)}, **fields)
    runlog = open_log(spec)
    report = ranks_fork_server.run_attempt(runlog, spec, ranks=2)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, 60)
    found = {each.manifest.step: each.manifest.metric for each in read_history(runlog.reload()).checkpoints}
    assert [found.get(step) for step in (20, 40, 60)] == [20.0, 40.0, 60.0]
    assert file.read_text().split() == sorted(map(str, found), key=int), "no state is evaluated twice"


@pytest.mark.matrix
def test_a_notice_in_an_evaluation_stops_all_ranks_before_the_next_step(
    ranks_fork_server, make_spec, open_log, tmp_path
):
    config = {"every": 1, "file": str(tmp_path / "evaluated"), "notice_in": 7}
    spec = make_spec(recipe="tests.recipes.ranked:evaluated", config=config, **SELDOM)
    report = ranks_fork_server.run_attempt(open_log(spec), spec, ranks=2)
    assert (report.stop_reason, report.to_step) == (StopReason.NOTICE, 7)
