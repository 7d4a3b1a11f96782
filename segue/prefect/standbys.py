"""The cancellation of standbys and requests that an ended run has left on its pools."""

from __future__ import annotations

from contextlib import closing

from prefect import get_run_logger

from segue.controller.standbys.pool_standbys import release_leftover
from segue.controller.waiting.leftover_starts import withdraw_leftover
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError


def release_standby(spec: RunSpec) -> None:
    """Cancel the standbys and the requests of an ended run. A failure is only logged, because a standby or a start
    without a run ends by itself."""
    try:
        runlog = open_log(spec).reload()
        with closing(PrefectOrchestrator(log_id=runlog.log_id)) as prefect:
            release_leftover(runlog, spec, orchestrator=prefect)
            withdraw_leftover(runlog, spec, orchestrator=prefect)
    except (StoreReadError, StoreWriteError) as error:
        get_run_logger().warning("what is left on the pools could not be cancelled reason=%s", error)
