"""Plans from Python: the figures of the command line, as values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import segue
from segue.errors import DeadlinePassedError, SpecError


def test_a_plan_gives_the_cost_of_a_run_that_has_not_begun(make_spec):
    policy = {"step_seconds": 60, "changeover_seconds": 300}
    spec = make_spec(steps=600, deadline=datetime.now(UTC) + timedelta(hours=20), policy=policy)
    plan = segue.plan(spec, runs=40)
    assert plan.facts["steps"] == 600
    assert plan.facts["cost"] < plan.facts["on_demand_cost"]
    assert plan.latest_safe_moment < spec.deadline
    again = segue.plan(spec, runs=40).facts["cost"]  # The same seed; a moment later, so nearly the same figures.
    assert again == pytest.approx(plan.facts["cost"], rel=0.01)


def test_a_plan_without_the_time_of_a_step_or_with_a_past_deadline_is_refused(make_spec):
    with pytest.raises(SpecError, match="step_seconds"):
        segue.plan(make_spec(steps=100))
    with pytest.raises(DeadlinePassedError):
        segue.plan(make_spec(steps=100, deadline=datetime(2020, 1, 1, tzinfo=UTC)), step_seconds=1)
