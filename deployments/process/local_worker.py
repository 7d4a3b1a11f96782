"""The worker of a pool of a local stack: `python -m segue.deployments.process.local_worker POOL NAME`.

It starts together with the server, imports what it needs, and takes flow runs once its pool exists. Without Prefect's
command line, which loads every collection that is installed, it is ready two seconds sooner.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress

import httpx
from prefect.settings import PREFECT_API_URL
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessWorker
from segue.deployments.process.warm_worker import warm

_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 5.0


def main() -> None:
    """Wait for the pool, then work until SIGTERM or SIGINT."""
    pool, name = sys.argv[1:]
    setup_signal_handlers_worker(os.getpid(), "the process worker", _say)
    warm()
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        _await_pool(pool)
        asyncio.run(ProcessWorker(work_pool_name=pool, name=name, create_pool_if_not_found=False).start(printer=_say))


def _await_pool(pool: str) -> None:
    with httpx.Client(base_url=PREFECT_API_URL.value() or "", timeout=_ANSWER_SECONDS) as client:
        while True:
            with suppress(httpx.HTTPError):
                if client.get(f"/work_pools/{pool}").is_success:
                    return
            time.sleep(_LOOK_SECONDS)


def _say(text: str, **_: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
