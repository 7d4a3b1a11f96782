"""A relay in front of a server on this machine, which can refuse, hold, slow down or cut connections."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 1 << 16
_HEAD_SECONDS = 10.0
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Manner:
    """How a gate treats connections."""

    status: int | None = None
    """The gate's own answer to every request. If it is None, requests reach the server."""
    holds: bool = False
    """Whether connections are accepted, but never answered."""
    cuts: bool = False
    """Whether connections are closed at once, as on a machine without that server."""
    delay_seconds: float = 0.0
    """Delay of every chunk, in either direction."""

    @property
    def passes(self) -> bool:
        return self.status is None and not self.holds and not self.cuts


OPEN = Manner()


class Gate:
    """A context manager that relays TCP connections to a server's port on 127.0.0.1, in a separate thread.

    `port_of` gives the server's port for each new connection, so that the server may start later, or again. WebSockets
    pass too.
    """

    def __init__(self, port_of: Callable[[], int], *, host: str = "127.0.0.1") -> None:
        self._port_of, self._host = port_of, host
        self._manner = OPEN
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="segue-gate", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def behave(self, manner: Manner) -> None:
        """Treat connections in this way from now on. Connections that cannot continue in this way are closed."""
        self._loop.call_soon_threadsafe(self._switch, manner)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, self._host, 0))
        self._port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        self._loop.run_forever()
        server.close()
        self._close_all()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()

    def _switch(self, manner: Manner) -> None:
        before, self._manner = self._manner, manner
        if not (before.passes and manner.passes):
            self._close_all()

    def _close_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        # A connection may break at any moment, on either side; that is what this is for.
        broken = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)
        # Cancelled only when the gate is closed; asyncio would report that for each connection.
        with suppress(*broken, asyncio.CancelledError):
            await self._treat(reader, writer)
        self._writers.discard(writer)
        writer.transport.abort()

    async def _treat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        manner = self._manner
        if manner.cuts:
            return
        if manner.holds:
            while await reader.read(_CHUNK_BYTES):
                pass
            return
        if manner.status is not None:
            await _answer(reader, writer, manner.status)
            return
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._port_of())
        self._writers.add(onward)
        try:
            await asyncio.gather(self._pump(reader, onward), self._pump(onward_reader, writer))
        finally:
            self._writers.discard(onward)
            onward.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if self._manner.delay_seconds:
                await asyncio.sleep(self._manner.delay_seconds)
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int) -> None:
    """Answer one request. The body is read first, because the client would otherwise see a broken connection."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
    found = _LENGTH.search(head)
    if found is not None:
        await asyncio.wait_for(reader.readexactly(int(found[1])), _HEAD_SECONDS)
    body = b'{"detail":"refused on purpose"}'
    lines = (b"HTTP/1.1 %d Refused" % status, b"content-type: application/json", b"connection: close")
    writer.write(b"\r\n".join((*lines, b"content-length: %d" % len(body), b"", body)))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
