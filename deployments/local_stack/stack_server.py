"""The Prefect server of a local stack: Prefect's own application, which never refuses a request for a busy SQLite.

`python -m segue.deployments.local_stack.stack_server PORT`. Most requests of Prefect's server read first and then
write, in one transaction that SQLite begins as a reader (DEFERRED). If another connection writes in between, SQLite
refuses the write at once, whatever its busy timeout is (https://www.sqlite.org/lang_transaction.html, "Read
transactions versus write transactions"); the server then answers 503, and a worker or an engine waits for 2, 4, 8, 16,
32 s. Here each transaction begins as a writer (IMMEDIATE): it waits its turn, and is never refused. Prefect itself does
so in some places (`begin_transaction(..., with_for_update=True)`). If a request opens a further session within its
transaction, as the change of a work queue does for its event, that session does not begin as a writer: it would wait
for the first.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

import uvicorn
from prefect.server.database import dependencies
from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
from prefect.server.models.block_registration import run_block_auto_registration
from prefect.server.utilities.database import get_dialect
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, get_current_settings
from sqlalchemy.engine.url import make_url
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from segue.deployments.local_stack.database import copy_template, template_file

HOST = "127.0.0.1"
_OUTER: ContextVar[AsyncSessionTransaction | None] = ContextVar("outer transaction", default=None)
"""The transaction of this request. A task that the request starts may outlive it, and keeps this variable."""


class ImmediateSqlite(AioSqliteConfiguration):
    """Prefect's SQLite, whose transactions all begin as writers."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        # As a writer, a second transaction of the same request would wait for the first one.
        outer = _OUTER.get()
        is_outer = outer is None or not outer.is_active
        async with super().begin_transaction(session, with_for_update=is_outer) as transaction:
            await session.connection()  # It begins here, in the mode that is set now.
            mode, before = SQLITE_BEGIN_MODE.set(None), _OUTER.set(transaction)
            try:
                yield transaction
            finally:
                _OUTER.reset(before)
                SQLITE_BEGIN_MODE.reset(mode)


def prepare(database: Path, *, template: Path) -> None:
    """Create a database that does not exist yet: from the template if there is one, else by migrations."""
    if not database.exists() and not copy_template(database, template=template):
        asyncio.run(_create())


async def _create() -> None:
    database = dependencies.provide_database_interface()
    await database.create_db()
    async with database.session_context() as session:
        await run_block_auto_registration(session=session)


def main() -> None:
    """Serve at a port of this machine until SIGTERM; exit code 1 at once if the port is taken."""
    try:
        # Before anything else: uvicorn binds after the start of Prefect's services, and then waits for their end.
        listener = socket.create_server((HOST, int(sys.argv[1])), backlog=2048)
    except OSError as error:
        sys.exit(f"port {sys.argv[1]} cannot be used: {os.strerror(error.errno or 0)}")
    url = str(PREFECT_API_DATABASE_CONNECTION_URL.value())
    if get_dialect(url).name == "sqlite":
        database = dependencies.MODELS_DEPENDENCIES["database_config"] = ImmediateSqlite(connection_url=url)
        if (file := make_url(url).database) and not database.is_inmemory():
            prepare(Path(file), template=template_file())
    from prefect.server.api.server import create_app  # Only once the database is set.

    settings = get_current_settings().server
    config = uvicorn.Config(
        create_app(final=True),
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
