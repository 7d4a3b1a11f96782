"""Runs Prefect's own server for a local stack, changed so that it refuses no request while SQLite is busy.

`python -m segue.deployments.local_stack.stack_server PORT`. Most requests of Prefect's server first read and then
write, in one transaction that SQLite begins as a reader (DEFERRED). If another connection writes between the read and
the write, SQLite refuses the write at once, even with a busy timeout (https://www.sqlite.org/lang_transaction.html,
"Read transactions versus write transactions"). The server then answers 503, and a worker or an engine waits for 2, 4,
8, 16, 32 s. In this module, each transaction begins as a writer (IMMEDIATE), so SQLite lets it wait and never refuses
it. Prefect itself begins some transactions so (`begin_transaction(..., with_for_update=True)`). A request may open a
second session within its transaction, for example for the event of a changed work queue. The second session does not
begin as a writer, because it would wait for the first session.
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
"""The transaction of the current request. Tasks that outlive the request inherit this variable."""


class ImmediateSqlite(AioSqliteConfiguration):
    """Prefect's configuration of SQLite, changed so that all transactions begin as writers."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        # A second transaction of the same request must not begin as a writer, because it would wait for the first.
        outer = _OUTER.get()
        is_outer = outer is None or not outer.is_active
        async with super().begin_transaction(session, with_for_update=is_outer) as transaction:
            await session.connection()  # The transaction begins here, in the current mode.
            mode, before = SQLITE_BEGIN_MODE.set(None), _OUTER.set(transaction)
            try:
                yield transaction
            finally:
                _OUTER.reset(before)
                SQLITE_BEGIN_MODE.reset(mode)


def prepare(database: Path, *, template: Path) -> None:
    """If the database does not exist, create it from the template. Without a template, create it by migrations."""
    if not database.exists() and not copy_template(database, template=template):
        asyncio.run(_create())


async def _create() -> None:
    database = dependencies.provide_database_interface()
    await database.create_db()
    async with database.session_context() as session:
        await run_block_auto_registration(session=session)


def main() -> None:
    """Serve at a port of this machine until SIGTERM. If the port is in use, exit at once with code 1."""
    try:
        # The port is checked first. uvicorn would bind after the start of Prefect's services, and would then wait for
        # the end of these services.
        listener = socket.create_server((HOST, int(sys.argv[1])), backlog=2048)
    except OSError as error:
        sys.exit(f"port {sys.argv[1]} cannot be used: {os.strerror(error.errno or 0)}")
    url = str(PREFECT_API_DATABASE_CONNECTION_URL.value())
    if get_dialect(url).name == "sqlite":
        database = dependencies.MODELS_DEPENDENCIES["database_config"] = ImmediateSqlite(connection_url=url)
        if (file := make_url(url).database) and not database.is_inmemory():
            prepare(Path(file), template=template_file())
    from prefect.server.api.server import create_app  # Imported only after the database is configured.

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
