"""A PostgreSQL server of Debian's package, for one test: its own data, a free port, nothing that survives it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from segue.deployments.local_stack.stack import free_port

_INSTALLED = Path("/usr/lib/postgresql")
_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; one of these exists then."""
_QUICK = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=200"


@contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """The URL of an empty database for a Prefect server. Skips where PostgreSQL is not installed."""
    programs = sorted(_INSTALLED.glob("*/bin/initdb"))
    if not programs:
        pytest.skip("PostgreSQL is not installed; apt-get install postgresql")
    home, port = programs[-1].parent, free_port(0)
    data = _folder_of_server(folder)
    _run([str(home / "initdb"), "-D", str(data), "-U", "prefect", "--auth=trust", "-E", "UTF8", "--no-sync"])
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} {_QUICK}"
    control = [str(home / "pg_ctl"), "-D", str(data), "-w", "-l", str(data / "server.log")]
    _run([*control, "-o", options, "start"])
    try:
        _run([str(home / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "prefect"])
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect"
    finally:
        _run([*control, "-m", "immediate", "stop"])
        shutil.rmtree(data, ignore_errors=True)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120, user=_user(), cwd="/")


def _user() -> str | None:
    """The user as whom the server runs; None: this one."""
    if os.getuid() != 0:
        return None
    return next(name for name in _USERS if name in {entry.pw_name for entry in pwd.getpwall()})


def _folder_of_server(folder: Path) -> Path:
    """A folder that the server's user may use, also below one that only root may."""
    user = _user()
    if user is None:
        data = folder / "postgres"
        data.mkdir()
        return data
    data = Path("/tmp") / f"segue-postgres-{os.getpid()}"  # pytest's own folders are closed to other users.
    data.mkdir(mode=0o700)
    shutil.chown(data, user)
    return data
