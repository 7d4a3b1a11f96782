"""Provides the Prefect server of a command: the configured server, or a local server that the command starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from segue.errors import OrchestratorError
from segue.reports.console import errors

_FOLDER = Path(".segue")


@contextmanager
def server() -> Iterator[bool]:
    """Provide the Prefect server of PREFECT_API_URL. If there is none, provide a local server with pools until the
    block ends.

    For a local server, the block gets True. For a configured server, the block gets False.

    Raises:
        OrchestratorError: the local server did not start.
    """
    from prefect.settings import PREFECT_API_URL

    from segue.deployments.local_stack.stack import LocalStack

    if PREFECT_API_URL.value():
        yield False
        return
    stack = LocalStack(_FOLDER, home=Path.cwd(), say=lambda text: errors.print(f"[dim]{text}[/]"))
    try:
        stack.start()
        with stack.settings():
            yield True
    finally:
        stack.stop()


def has_server() -> bool:
    """Whether Prefect is installed and a server is configured."""
    if importlib.util.find_spec("prefect") is None:
        return False
    from prefect.settings import PREFECT_API_URL

    return bool(PREFECT_API_URL.value())


def require_lasting_server(what: str) -> None:
    """Refuse an operation that needs a server which outlives this command, if no server is configured.

    Raises:
        OrchestratorError: no server is configured.
    """
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        raise OrchestratorError(
            what=f"{what} needs a Prefect server that outlives this command.",
            fix="set PREFECT_API_URL, for example to that of a server started with `prefect server start`.",
        )
