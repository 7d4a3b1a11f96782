"""What is said of a flow run that a worker has taken and that has not started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Crashed, Pending, Running, Scheduled

from segue.prefect.flow_run_start import why_pending, why_refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TASK = "arn:aws:ecs:us-east-1:123456789012:cluster/segue::arn:aws:ecs:us-east-1:123456789012:task/segue/0a1b"
IMAGE = (
    "Image pull failed for container 'prefect-job': Kubernetes cannot pull the container image. Reason: "
    "ImagePullBackOff. Back-off pulling image Resolution: Verify the image name and tag are correct."
)
NEW_ATTEMPT = "After a change of the deployment, delete this flow run: a new attempt follows."


def pending(minutes, *, state=None, infrastructure=None):
    """A flow run that waited an hour for its worker, and has been Pending for some minutes since."""
    waited, since = timedelta(hours=1), timedelta(minutes=minutes)
    expected = NOW - since - waited
    return FlowRun.model_construct(
        state=state or Pending(timestamp=NOW - since),
        expected_start_time=expected,
        estimated_start_time_delta=NOW - expected,
        infrastructure_pid=infrastructure,
        work_pool_name="spot",
        run_count=0,
    )


def test_what_the_infrastructure_says_is_shown_at_once_with_its_fix():
    said = why_pending(pending(1), said=IMAGE)
    assert said.startswith("Image pull failed for container 'prefect-job': Kubernetes cannot pull the container image.")
    assert said.endswith("Back-off pulling image. Fix: Verify the image name and tag are correct.")


def test_a_long_reason_does_not_hide_its_fix():
    said = why_pending(
        pending(1), said=f"Pod is unschedulable: {'0/9 nodes, ' * 100} Resolution: scale the cluster up."
    )
    assert said.endswith("Fix: scale the cluster up.")
    assert len(said) < 400


def test_a_flow_run_that_stays_pending_says_so_also_where_its_infrastructure_says_nothing():
    assert why_pending(pending(14, infrastructure=TASK), said=None) is None
    said = why_pending(pending(16, infrastructure=TASK), said=None)
    assert said.startswith(f"its infrastructure reports nothing; Pending for more than 15 min ({TASK}). Fix: look at ")
    assert said.endswith(NEW_ATTEMPT)


def test_a_wait_for_an_image_that_lasts_says_how_the_run_goes_on():
    said = why_pending(pending(16), said=IMAGE)
    assert said.endswith(
        f"; Pending for more than 15 min. Fix: Verify the image name and tag are correct. {NEW_ATTEMPT}"
    )


@pytest.mark.parametrize("state", [Scheduled(), Running()])
def test_only_a_flow_run_that_is_pending_is_pending_for_long(state):
    assert why_pending(pending(60, state=state), said=None) is None


def test_a_flow_run_that_crashed_before_anything_was_created_was_refused():
    crashed = Crashed(message="Failed to submit flow run to infrastructure: no\n quota")
    why = "the pool spot could not start it: Failed to submit flow run to infrastructure: no quota"
    assert why_refused(pending(1, state=crashed)) == why
    assert why_refused(pending(1, state=crashed, infrastructure=TASK)) is None
