"""Schedulers that need a metric are stepped with the number of `evaluate`, and a resume steps them alike."""

from __future__ import annotations

import signal

import pytest
import torch

import segue
from segue.clock import SystemClock
from segue.launch.assignment import Assignment
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.rehearsal_main import rehearse
from segue.trainer.workloads.schedulers import shared_metric
from tests.support.forked_trainers import next_plan
from tests.support.observers import stop_when_proven
from tests.trainer.workloads.interrupted import assert_exact, killed_once, undisturbed

ROWS = 4


@pytest.fixture
def make_demanding(make_spec, tmp_path):
    def make(**config):
        return make_spec(
            run_id="demanding",
            recipe="tests.trainer.workloads.demanding:demanding",
            config={"once": str(tmp_path / "hung")} | config,
            continuity={"rehearsal": "off", "witness_steps": ROWS},
        )

    return make


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("plateau", 10),  # The commit at step 10 follows the evaluation of that step.
        ("plateau", 9),  # The step before the commit was evaluated.
        ("plateau", 11),  # The first replayed step is evaluated, and the rate of the next one depends on it.
        ("plateau", 1),
        ("plateau", "epoch"),  # Eight steps.
        ("two schedulers", 3),
        ("own plateau", 6),
    ],
)
def test_a_resume_near_an_evaluation_is_exact(fork_server, make_demanding, kind, every):
    spec = make_demanding(kind=kind, evaluate_every=every, hang_at=17)
    history = killed_once(fork_server, spec, at=10, rows=ROWS)
    assert_exact(history, undisturbed(fork_server, spec), rows=ROWS)


def test_it_is_stepped_at_evaluations_only(fork_server, make_demanding, open_log):
    spec = make_demanding(kind="plateau", evaluate_every=6)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    frame = segue.curve(runlog.reload()).set_index("step")
    changed = frame["lr"].diff().fillna(0) != 0
    assert frame.index[changed].tolist() == [7 + 6 * n for n in range(1, 6)], "the first evaluation sets the best"
    assert frame.index[frame["metric.evaluate"].notna()].tolist() == [6, 12, 18, 24, 30, 36]


def test_an_early_stop_and_a_scheduler_get_the_same_metric(fork_server, make_demanding):
    spec = make_demanding(kind="plateau", evaluate_every=6, patience=3, hang_at=17)
    history, whole = killed_once(fork_server, spec, at=10, rows=ROWS), undisturbed(fork_server, spec)
    assert_exact(history, whole, rows=ROWS)
    assert (whole.committed_step, history.finish_reason is not None) == (24, True)


@pytest.mark.parametrize(
    ("every", "rows"), [(12, 2), *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((11, 1), (50, ROWS)))]
)
def test_rows_after_the_last_commit_end_where_a_rate_would_need_an_evaluation(
    fork_server, make_demanding, open_log, every, rows
):
    spec = make_demanding(kind="plateau", evaluate_every=every)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec.model_copy(update={"segment": spec.segment.model_copy(update={"steps": 10})}))
    assert [len(each.rows) for each in read_history(runlog.reload()).checkpoints] == [rows]
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.FINISHED
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert (verdict.kind, verdict.findings, verdict.rows_compared) == (VerdictKind.EXACT, (), rows)


@pytest.mark.matrix
@pytest.mark.parametrize("every", [10, 11, 12])
def test_a_rehearsal_makes_the_evaluations_that_the_rates_depend_on(fork_server, make_demanding, open_log, every):
    spec = make_demanding(kind="plateau", evaluate_every=every)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    checkpoint = next(each for each in read_history(runlog.reload()).checkpoints if each.rows)
    assignment = Assignment(spec=spec, plan=next_plan(runlog, spec))
    threads = torch.get_num_threads()
    try:
        verdict = rehearse(assignment, runlog, checkpoint, clock=SystemClock()).verdict
    finally:
        torch.set_num_threads(threads)
    assert (verdict.kind, verdict.findings, verdict.rows_compared) == (VerdictKind.EXACT, (), ROWS)


class TwoRanks(Ranks):
    """Rank 1 of two, where rank 0 has sent another number."""

    rank, count = 1, 2

    def gather_texts(self, text):
        return [(0.25).hex(), text]


def test_the_number_of_rank_0_holds_on_all_ranks():
    assert shared_metric(0.5, TwoRanks()) == 0.25
    assert shared_metric(0.5, Ranks()) == 0.5
