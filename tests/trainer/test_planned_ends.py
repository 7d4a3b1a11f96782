"""Planned ends of segments: the run is cut there, each cut is verified, and the result is that of an uncut run."""

from __future__ import annotations

import pytest

from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history

BOUND, FINISHED = StopReason.BOUND, StopReason.FINISHED


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("segment", "ends"),
    [
        ({"steps": 15}, [15, 30, 40]),
        ({"epochs": 2}, [16, 32, 40]),  # Eight steps an epoch.
    ],
)
def test_a_run_in_planned_segments_is_the_run_without_them(fork_server, make_spec, open_log, segment, ends):
    whole = make_spec(run_id="whole")
    reference = open_log(whole)
    fork_server.run_to_the_end(reference, whole)
    spec = make_spec(segment=segment)
    runlog = open_log(spec)
    reports = fork_server.run_to_the_end(runlog, spec)
    assert [report.to_step for report in reports] == ends
    assert [report.stop_reason for report in reports] == [BOUND] * (len(ends) - 1) + [FINISHED]
    assert [report.lost_steps for report in reports] == [0] * len(ends)
    history = read_history(runlog)
    assert [attempt.verdict.kind for attempt in history.attempts[1:]] == [VerdictKind.EXACT] * (len(ends) - 1)
    assert history.newest.manifest.components == read_history(reference).newest.manifest.components
