"""Programs on several ranks: each rank goes on with what it had, and the run ends as without an interruption."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from segue.clock import SystemClock
from segue.controller.steps import check_start
from segue.errors import RanksChangedError
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.final_states import state_at_end

PROGRAM = Path(__file__).parents[1] / "programs/ranked_loop.py"
STEPS = 200


@pytest.fixture
def make_program(make_spec):
    """A run of the program with these options; an epoch has 10 steps on two ranks."""

    def make(*options, **fields):
        command = ["python", str(PROGRAM), *map(str, options)]
        common = {"recipe": None, "program": {"command": command}, "steps": STEPS, "ranks": 2}
        return make_spec(**common | {"liveness": {"heartbeat_seconds": 0.05, "rank_seconds": 20}} | fields)

    return make


def stop(rank, number):
    """Send a signal to a rank once a checkpoint within an epoch can be verified."""

    def observer(group, log, plan):
        if not any(checkpoint.rows and checkpoint.manifest.step > 10 for checkpoint in read_history(log).checkpoints):
            return False
        group.signal(rank, number)
        return True

    return observer


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("number", "rank", "options"),
    [
        pytest.param(signal.SIGKILL, 1, (), marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, 0, (), marks=pytest.mark.soak),
        (signal.SIGTERM, 1, ("--sharded",)),
    ],
)
def test_a_program_on_two_ranks_goes_on_bit_for_bit(ranks_fork_server, make_program, open_log, number, rank, options):
    checkpoints = {"every_steps": 7, "staging_buffers": 2}
    undisturbed = make_program(*options, run_id="whole", checkpoints=checkpoints)
    whole = open_log(undisturbed)
    assert ranks_fork_server.run_attempt(whole, undisturbed, ranks=2).stop_reason is StopReason.FINISHED
    spec = make_program(*options, run_id="stopped", checkpoints=checkpoints)
    slow = make_program(*options, "--pause-seconds", 0.05, run_id="stopped", checkpoints=checkpoints)
    runlog = open_log(slow)
    first = ranks_fork_server.run_attempt(runlog, slow, ranks=2, observer=stop(rank, number))
    assert first.stop_reason is (StopReason.LOST if number == signal.SIGKILL else StopReason.NOTICE)
    second = ranks_fork_server.run_attempt(runlog, spec, ranks=2)
    assert second.stop_reason is StopReason.FINISHED
    assert 10 < second.from_step < STEPS
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert (verdict.kind, verdict.findings) == (VerdictKind.EXACT, ())
    assert verdict.rows_compared > 0
    assert verdict.not_compared == ("the data set", "random streams in the steps")
    assert state_at_end(read_history(runlog)) == state_at_end(read_history(whole.reload()))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("rank", "reason", "commits"),
    [
        (0, "this rank asked for the end", [(56, True), (121, False)]),
        (1, "another rank has ended the run", [(121, False)]),  # Only the leader saves the best.
    ],
)
def test_one_rank_alone_asks_for_a_save_and_for_the_end(
    ranks_fork_server, make_program, open_log, rank, reason, commits
):
    """No vote is due at these steps, so the other rank learns of the requests with the numbers of the steps."""
    spec = make_program("--metric-at", rank, 55, "--finish-at", rank, 120, checkpoints={"every_steps": STEPS})
    runlog = open_log(spec)
    report = ranks_fork_server.run_attempt(runlog, spec, ranks=2)
    assert (report.stop_reason, report.to_step, report.finish_reason) == (StopReason.FINISHED, 121, reason)
    found = [each.manifest for each in read_history(runlog.reload()).checkpoints]
    assert [(each.step, each.metric is not None) for each in found] == commits


@pytest.mark.matrix
@pytest.mark.parametrize("step", [20, 21])
def test_a_notice_that_comes_while_the_leader_waits_for_another_rank_ends_this_step(
    ranks_fork_server, make_program, open_log, step
):
    spec = make_program(
        *("--late-rank", 1, "--notice-at", 0, step, "--notice-after-seconds", 0.2), checkpoints={"every_steps": STEPS}
    )
    report = ranks_fork_server.run_attempt(open_log(spec), spec, ranks=2)
    assert (report.stop_reason, report.to_step) == (StopReason.NOTICE, step + 1)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("options", "step"),
    [
        pytest.param(("--finish-before", 1), 0, id="before the first step"),
        pytest.param(("--finish-at", 0, 54, "--break-at", 0, 54), 55, id="with a break on this rank alone"),
        pytest.param(("--finish-at", 1, 54, "--notice-at", 0, 54), 55, id="in the step of a notice"),
    ],
)
def test_the_end_that_one_rank_asks_for_at_any_moment_is_the_end_of_all(
    ranks_fork_server, make_program, open_log, options, step
):
    spec = make_program(*options, checkpoints={"every_steps": STEPS})
    report = ranks_fork_server.run_attempt(open_log(spec), spec, ranks=2)
    assert (report.stop_reason, report.to_step, report.failure) == (StopReason.FINISHED, step, None)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--raise-at", 1, 5), "ArithmeticError on rank 1: this rank raises here"),
        (("--silent-rank", 1), "SessionError on rank 1: the program reported nothing in step 1"),
        (("--drifting-rank", 1), "RankDriftError: "),
    ],
)
def test_what_one_rank_does_wrong_is_the_report_of_all(ranks_fork_server, make_program, open_log, options, sentence):
    spec = make_program(*options)
    report = ranks_fork_server.run_attempt(open_log(spec), spec, ranks=2)
    assert report.stop_reason is StopReason.FAILED
    assert sentence in f"{report.failure.type}: {report.failure.message}"


@pytest.mark.matrix
def test_ddp_whose_sums_change_their_order_is_refused_where_that_matters(ranks_fork_server, make_program, open_log):
    spec = make_program("--default-buckets", "--epochs", 1, steps=5)
    report = ranks_fork_server.run_attempt(open_log(spec), spec, ranks=3)
    assert report.stop_reason is StopReason.FAILED
    assert "find_unused_parameters=True" in report.failure.message
    two = make_program("--default-buckets", "--epochs", 1, run_id="two", steps=5)
    assert ranks_fork_server.run_attempt(open_log(two), two, ranks=2).stop_reason is StopReason.FINISHED


@pytest.mark.matrix
def test_another_number_of_ranks_is_refused_before_and_in_the_attempt(ranks_fork_server, make_program, open_log):
    first = make_program("--epochs", 1, steps=6)
    ranks_fork_server.run_attempt(open_log(first), first, ranks=2)
    later = make_program("--epochs", 1, steps=9)
    with pytest.raises(RanksChangedError, match="2 ranks made the checkpoint at step 6, but the run has 3 ranks now"):
        check_start(later.model_copy(update={"ranks": 3}), clock=SystemClock(), accept_drift=True)
    report = ranks_fork_server.run_attempt(open_log(first), later, ranks=3)
    assert report.stop_reason is StopReason.FAILED
    assert "continue with ranks = 2" in report.failure.message
