"""A proxy to S3 that adds a round trip to every request. The proxy is a separate process, so that it takes no time from
the reader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from benchmarks.common.child import child_environment

_CHUNK_BYTES = 2**16


@contextmanager
def far_s3(onward_url: str, *, latency_seconds: float) -> Iterator[str]:
    """The address of a proxy to this server, during the block."""
    command = [sys.executable, "-m", "benchmarks.waiting.far_s3", onward_url, str(latency_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment(), start_new_session=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


async def _serve(onward_url: str, latency_seconds: float) -> None:
    onward = urlsplit(onward_url)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(onward.hostname, onward.port)
            await asyncio.gather(_pass_on(reader, there_writer, latency_seconds), _pass_on(there_reader, writer, 0.0))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency_seconds: float) -> None:
    """Copy one direction of a connection. Bytes that are sent while no other bytes are on the way wait for the round
    trip."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            await asyncio.sleep(latency_seconds)
            writer.write(data)
            await writer.drain()
        writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))
