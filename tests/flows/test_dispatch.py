"""The dispatch of a segment: linked to its task in the graph."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId
from prefect.client.schemas.objects import StateType

from tests.flows.test_runs import LONG, final_state, segment_runs, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]


def test_a_segment_is_linked_to_the_task_that_submitted_it(stack, make_spec):
    with get_client(sync_client=True) as client:
        # A busy server may refuse the link, which must not delay the dispatch: then the next run shows it.
        for number in range(3):
            spec = make_spec(run_id=f"linked{number}", **LONG | {"steps": 100})
            _, parent = start(client, spec)
            assert final_state(client, parent).type is StateType.COMPLETED
            (segment,) = segment_runs(client, spec.run_id)
            if segment.parent_task_run_id is not None:
                break
        assert segment.parent_task_run_id is not None
        wanted = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[parent]))

        def task():
            runs = client.read_task_runs(task_run_filter=wanted)
            found = [run for run in runs if run.id == segment.parent_task_run_id]
            return found[0] if found and found[0].state.is_final() else None

        run = until(task, what="the final state of the task run")
        assert run.name == f"{spec.run_id}-seg0-a1"
        assert run.state.type is StateType.COMPLETED
