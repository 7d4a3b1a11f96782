"""The dispatch of a segment: linked to its task in the graph, and given up when its worker has died with it."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId
from prefect.client.schemas.objects import StateType
from prefect.states import Pending
from segue.tasks import prefect_orchestrator
from segue.tasks.prefect_orchestrator import PrefectOrchestrator
from segue.tasks.waiting import starts

from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
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


def test_a_segment_whose_worker_died_with_it_is_given_up_though_its_parents_die_too(stack, make_spec, monkeypatch):
    monkeypatch.setattr(prefect_orchestrator, "_ASK_START_SECONDS", 1.0)
    monkeypatch.setattr(starts, "_PROCESS_START_SECONDS", 3600.0)
    spec = make_spec(run_id="taken-and-lost", **LONG)
    runlog = open_run(spec, clock=SystemClock())
    plan = decide_next(runlog, spec, clock=SystemClock()).plan

    def parent():
        orchestrator = PrefectOrchestrator(log_id=runlog.log_id)
        return orchestrator, orchestrator.submit(spec, plan)

    with get_client(sync_client=True) as client:
        client.update_work_pool("spot", WorkPoolUpdate(is_paused=True))
        try:
            first, handle = parent()
            (segment,) = segment_runs(client, spec.run_id)
            client.set_flow_run_state(segment.id, Pending(), force=True)  # As the worker did that has died.
            until(lambda: first.state(handle) or waited(client, segment, 20), what="a while")
            assert first.state(handle) is None, "its process may still start"
            first.close()
            monkeypatch.setattr(starts, "_PROCESS_START_SECONDS", 20.0)
            second, handle = parent()
            assert until(lambda: second.state(handle), what="the end of its flow run", limit_seconds=15) == "Lost"
            second.close()
        finally:
            client.update_work_pool("spot", WorkPoolUpdate(is_paused=False))


def waited(client, segment, seconds: float) -> bool:
    """Whether it has been Pending for so long, by the server's clock."""
    run = client.read_flow_run(segment.id)
    return (run.estimated_start_time_delta - (run.state.timestamp - run.expected_start_time)).total_seconds() > seconds
