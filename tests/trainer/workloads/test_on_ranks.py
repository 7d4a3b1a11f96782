"""Schedulers with a metric, sparse gradients and changes of groups on two ranks."""

from __future__ import annotations

import pytest

from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.final_states import state_at_end

DEMANDING, RESHAPED = "demanding:demanding", "reshaped:reshaped"


@pytest.mark.parametrize(
    ("recipe", "config"),
    [
        (DEMANDING, {"kind": "plateau of ranks", "evaluate_every": 5}),
        pytest.param(DEMANDING, {"kind": "plateau", "evaluate_every": 7}, marks=pytest.mark.soak),
        pytest.param(DEMANDING, {"kind": "sparse", "clip": 0.05}, marks=pytest.mark.soak),
        pytest.param(RESHAPED, {"kind": "named"}, marks=pytest.mark.soak),
        (RESHAPED, {"kind": "replaces buffers"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)
@pytest.mark.matrix
def test_two_ranks_end_as_in_one_go_after_a_planned_end(ranks_fork_server, make_spec, open_log, recipe, config):
    fields = {"recipe": f"tests.trainer.workloads.{recipe}", "config": config, "checkpoints": {"every_steps": 1000}}
    whole = make_spec(run_id="whole", **fields)
    whole_log = open_log(whole)
    report = ranks_fork_server.run_attempt(whole_log, whole, ranks=2)
    assert (report.stop_reason, report.failure) == (StopReason.FINISHED, None)
    spec = make_spec(run_id="parts", segment={"steps": 20}, **fields)
    runlog = open_log(spec)
    reports = ranks_fork_server.run_to_the_end(runlog, spec, ranks=2)
    assert [report.failure for report in reports] == [None, None]
    history = read_history(runlog.reload())
    assert history.attempts[1].verdict.kind is VerdictKind.EXACT, history.attempts[1].verdict
    assert state_at_end(history) == state_at_end(read_history(whole_log.reload()))
