"""The graph of a parent's flow run shows what its attempts wait for."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.runtime import flow_run

from segue.prefect.messenger import Messenger
from segue.prefect.ui.shown_wait import ShownWait
from segue.testing.clock import FakeClock
from tests.flows.test_runs import client, until

__all__ = ["client"]

pytestmark = pytest.mark.prefect


@task(name="segment")
def attempt_that_waits():
    clock, messenger = FakeClock(), Messenger()
    shown = ShownWait(messenger.deliver, clock=clock)
    shown.show("waiting for on-demand capacity (segment/on-demand)")
    clock.advance(61)
    shown.show("waiting for on-demand capacity (segment/on-demand): the pool on-demand is paused")
    shown.show("booting (segment/on-demand)")
    clock.advance(7)
    shown.show(None)
    shown.show(None)
    messenger.close()


@flow(name="waits", persist_result=False)
def parent_that_waits():
    attempt_that_waits()
    return str(flow_run.id)


def test_each_wait_of_an_attempt_is_a_task_run_that_says_why_and_for_how_long(client):
    parent = parent_that_waits()

    def ended():
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[parent])))
        waits = {run.name: run.state for run in found if not run.name.startswith("segment")}
        return waits if len(waits) == 2 and all(state.is_completed() for state in waits.values()) else None

    waits = until(ended, what="two waits that have ended")
    assert {name: state.message for name, state in waits.items()} == {
        "waiting for on-demand capacity (segment/on-demand)": "waiting for on-demand capacity (segment/on-demand): the "
        "pool on-demand is paused; for 61 s since it was first shown",
        "booting (segment/on-demand)": "booting (segment/on-demand); for 7 s since it was first shown",
    }


def test_without_a_flow_run_nothing_is_sent():
    sent = []
    shown = ShownWait(sent.append, clock=FakeClock())
    shown.show("waiting for spot capacity (segment/spot)")
    shown.show(None)
    assert sent == []
