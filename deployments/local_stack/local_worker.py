"""Runs the worker of one pool of a local stack, in a fork of the stack's supervisor. The arguments are POOL and NAME.

Imports take most of a worker's start time. The supervisor imports this module once for all workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

from prefect.plugins import load_prefect_collections
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessWorker

from segue.deployments.workers.warm_worker import warm

load_prefect_collections()  # A worker imports all collections, to report the installed ones to the server.


def main() -> None:
    """Run the worker until SIGTERM or SIGINT."""
    pool, name = sys.argv[1:]
    setup_signal_handlers_worker(os.getpid(), "the process worker", _say)
    warm()
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(ProcessWorker(work_pool_name=pool, name=name, create_pool_if_not_found=False).start(printer=_say))


def _say(text: str, **_: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
