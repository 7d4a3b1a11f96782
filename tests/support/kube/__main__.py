"""`python -m tests.support.kube LOGS`: the API on a free port, which is the first line of the output."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from aiohttp import web

from tests.support.kube.api import application
from tests.support.kube.cluster import Cluster


async def main() -> None:
    """Serve until SIGTERM; then no process of any pod is left."""
    cluster = Cluster(Path(sys.argv[1]))
    runner = web.AppRunner(application(cluster), shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - the starter reads it
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    cluster.close()
    await runner.cleanup()


asyncio.run(main())
