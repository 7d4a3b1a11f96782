"""Faults of the orchestration: notices, cancellations, paused pools, an API that refuses."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling

from benchmarks.chaos import processes
from benchmarks.chaos.faults.kind import MOMENT, Kind, Undo
from benchmarks.chaos.gate import OPEN, Manner
from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.world import NotNowError, World, picked

_AWAY = (3.0, 12.0)
_API = "api"
_POOLS = ("spot", "on-demand", "parents")


def give_notice(world: World, fault: Fault) -> Undo:
    """Send SIGTERM to a segment. When the time is over, kill all processes of the segment."""
    claims = [claim for run in world.live if (claim := run.claim()) is not None and claim.flow_run_id]
    alive = [claim for claim in claims if psutil.pid_exists(claim.segment_pid)]
    claim = picked(alive, fault.pick)
    with suppress(psutil.Error):
        psutil.Process(claim.segment_pid).send_signal(signal.SIGTERM)

    def take_machine() -> None:
        for process in processes.of_flow_run(claim.flow_run_id or ""):
            with suppress(psutil.Error):
                process.kill()

    return take_machine


def cancel_segment(world: World, fault: Fault) -> Undo:
    claims = [claim for run in world.live if (claim := run.claim()) is not None and claim.flow_run_id]
    claim = picked([claim for claim in claims if psutil.pid_exists(claim.segment_pid)], fault.pick)
    return _cancel(world, UUID(claim.flow_run_id))


def cancel_parent(world: World, fault: Fault) -> Undo:
    records = [record for run in world.live if (record := run.parent()) is not None]
    return _cancel(world, UUID(picked([r.flow_run_id for r in records if r.flow_run_id], fault.pick)))


def pause_pool(world: World, fault: Fault) -> Undo:
    name = _POOLS[fault.pick % len(_POOLS)]
    world.take(f"pool-{name}")
    try:
        _ask(world, lambda client: client.update_work_pool(name, WorkPoolUpdate(is_paused=True)))
    except NotNowError:
        world.release(f"pool-{name}")
        raise

    def resume() -> None:
        _ask(world, lambda client: client.update_work_pool(name, WorkPoolUpdate(is_paused=False)))
        world.release(f"pool-{name}")

    return resume


def _behaves(manner: Manner) -> Callable[[World, Fault], Undo]:
    def apply(world: World, fault: Fault) -> Undo:
        world.take(_API)
        world.gate.behave(manner)

        def finish() -> None:
            world.gate.behave(OPEN)
            world.release(_API)

        return finish

    return apply


def _cancel(world: World, flow_run_id: UUID) -> Undo:
    def cancel(client: SyncPrefectClient) -> None:
        state = client.read_flow_run(flow_run_id).state
        if state is None or not state.is_running():
            raise NotNowError
        client.set_flow_run_state(flow_run_id, Cancelling(message="cancelled by the chaos benchmark"), force=True)

    _ask(world, cancel)
    return lambda: None


def _ask(world: World, request: Callable[[SyncPrefectClient], object]) -> None:
    """Make a request as a person would.

    Raises:
        NotNowError: the server does not answer, or refused the request.
    """
    try:
        world.ask(request)
    except (httpx.HTTPError, PrefectHTTPStatusError):
        raise NotNowError from None


KINDS = (
    Kind("notice", "SIGTERM to a segment, and the grace period until its end", (5.0, 6.0), give_notice),
    Kind("notice-short", "SIGTERM to a segment, and hardly any time until its end", (0.1, 0.8), give_notice),
    Kind("cancel-segment", "a person cancels a segment's flow run", MOMENT, cancel_segment),
    Kind("cancel-parent", "a person cancels a parent's flow run", MOMENT, cancel_parent),
    Kind("pool-pause", "a work pool is paused, then resumed", _AWAY, pause_pool),
    Kind("api-503", "the API answers 503 to everything", _AWAY, _behaves(Manner(status=503))),
    Kind("api-401", "the API answers 401 to everything", _AWAY, _behaves(Manner(status=401))),
    Kind("api-422", "the API answers 422 to everything", _AWAY, _behaves(Manner(status=422))),
    Kind("api-hangs", "the API takes requests and answers none", _AWAY, _behaves(Manner(holds=True))),
)
