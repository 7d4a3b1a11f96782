"""The cancellation of standbys that an ended run has left on a pool."""

from __future__ import annotations

from contextlib import closing

from prefect import get_run_logger

from segue.controller.standbys.pools import release_leftover
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError


def release_standby(spec: RunSpec) -> None:
    """Cancel the standby of an ended run. A failure is only logged, because a standby without a run ends by itself."""
    try:
        runlog = open_log(spec).reload()
        with closing(PrefectOrchestrator(log_id=runlog.log_id)) as prefect:
            release_leftover(runlog, spec, orchestrator=prefect)
    except (StoreReadError, StoreWriteError) as error:
        get_run_logger().warning("the leftover standby could not be cancelled reason=%s", error)
