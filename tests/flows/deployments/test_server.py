"""The server of the local stack refuses no write, and starts from a database that was created before."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from prefect.client.orchestration import get_client
from prefect.server.database.configurations import AioSqliteConfiguration

from segue.deployments.local_stack import stack_server
from segue.deployments.local_stack.database import keep_template, template_file
from segue.deployments.local_stack.stack_server import ImmediateSqlite, prepare


async def _read_then_write_beside_a_writer(config: AioSqliteConfiguration) -> int:
    """Each of ten tasks reads and then adds one, in a transaction of its own; the sum of what was taken."""
    engine = await config.engine()
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
        await connection.execute(sa.text("INSERT INTO t VALUES (0)"))

    async def add() -> None:
        session = await config.session(engine)
        async with session, config.begin_transaction(session):
            await session.execute(sa.text("SELECT n FROM t"))
            await asyncio.sleep(0.01)
            await session.execute(sa.text("UPDATE t SET n = n + 1"))

    results = await asyncio.gather(*(add() for _ in range(10)), return_exceptions=True)
    async with engine.begin() as connection:
        total = (await connection.execute(sa.text("SELECT n FROM t"))).scalar_one()
    await engine.dispose()
    refused = [result for result in results if isinstance(result, BaseException)]
    assert all("database is locked" in str(error) for error in refused), refused
    assert total == len(results) - len(refused)
    return len(refused)


def test_transactions_that_read_and_then_write_beside_each_other_are_all_taken(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path}/own.db"
    assert asyncio.run(_read_then_write_beside_a_writer(ImmediateSqlite(connection_url=url))) == 0


def test_prefects_own_configuration_refuses_some_of_them(tmp_path):
    # If it no longer does, Prefect's server can be started as it is.
    url = f"sqlite+aiosqlite:///{tmp_path}/prefects.db"
    assert asyncio.run(_read_then_write_beside_a_writer(AioSqliteConfiguration(connection_url=url))) > 0


def _tables(file: Path) -> set[str]:
    with sqlite3.connect(file) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.fixture
def migrations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Migrations that only create a table, and are written down: Prefect's own take seven seconds."""
    made: list[str] = []

    async def create() -> None:
        made.append("migrated")
        with sqlite3.connect(tmp_path / "home" / "prefect.db") as connection:
            connection.execute("CREATE TABLE alembic_version (version_num TEXT)")

    monkeypatch.setattr(stack_server, "_create", create)
    return made


def test_a_second_database_is_a_copy_of_the_first(tmp_path, migrations):
    database, template = tmp_path / "home" / "prefect.db", tmp_path / "cache" / "prefect.db"
    prepare(database, template=template)
    keep_template(database, template=template)
    assert _tables(template) == {"alembic_version"}
    database.unlink()
    prepare(database, template=template)
    assert migrations == ["migrated"]
    assert _tables(database) == {"alembic_version"}
    prepare(database, template=template)  # What is there is kept.
    assert sorted(file.name for file in (tmp_path / "home").iterdir()) == ["prefect.db"]


@pytest.mark.parametrize("cache", ["a file", "a folder", "a damaged template", "an empty template"])
def test_a_cache_that_cannot_be_used_only_costs_time(tmp_path, migrations, cache):
    database, template = tmp_path / "home" / "prefect.db", tmp_path / "cache" / "prefect.db"
    if cache == "a file":
        template.parent.write_text("")
    elif cache == "a folder":
        template.mkdir(parents=True)
    else:
        template.parent.mkdir()
        template.write_bytes(b"SQLite format 3 that is none" if cache == "a damaged template" else b"")
    prepare(database, template=template)
    keep_template(database, template=template)
    assert _tables(database) == {"alembic_version"}
    assert migrations == ["migrated"]


@pytest.mark.prefect
def test_a_local_prefect_leaves_a_template_with_its_deployments_and_no_flow_run(stack):
    with sqlite3.connect(template_file()) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM deployment")}
        assert {"train", "spot", "on-demand", "verify-resume"} <= names
        assert connection.execute("SELECT count(*) FROM flow_run").fetchone() == (0,)


def test_where_there_is_no_database_no_template_is_kept_and_no_file_is_made(tmp_path):
    keep_template(tmp_path / "prefect.db", template=tmp_path / "cache" / "template.db")
    assert [path.name for path in tmp_path.rglob("*")] == ["cache"]


@pytest.mark.matrix
def test_a_server_whose_port_is_taken_ends_at_once_and_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "segue.deployments.local_stack.stack_server", str(port)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert ended.stderr == f"port {port} cannot be used: Address already in use\n"


@pytest.mark.matrix
def test_a_database_without_a_template_has_prefects_migrations_and_blocks(tmp_path, monkeypatch):
    code = (
        "import sys; from pathlib import Path\n"
        "from segue.deployments.local_stack import stack_server\n"
        "from prefect.server.database import dependencies\n"
        "folder = Path(sys.argv[1])\n"
        "url = f'sqlite+aiosqlite:///{folder}/home/prefect.db'\n"
        "dependencies.MODELS_DEPENDENCIES['database_config'] = stack_server.ImmediateSqlite(connection_url=url)\n"
        "stack_server.prepare(folder / 'home' / 'prefect.db', template=folder / 'template.db')\n"
    )
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{tmp_path}/home/prefect.db")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=600)
    assert {"flow_run", "alembic_version"} <= _tables(tmp_path / "home" / "prefect.db")
    with sqlite3.connect(tmp_path / "home" / "prefect.db") as connection:
        assert connection.execute("SELECT count(*) FROM block_type WHERE name = 'Secret'").fetchone() == (1,)


def test_a_work_queue_can_be_changed_though_its_event_is_read_in_a_session_within_the_transaction(stack):
    with get_client(sync_client=True) as client:
        queue = client.create_work_queue(name="changed", work_pool_name="spot")
        for is_paused in (True, False):
            # Otherwise the server waits for itself, for a minute, and all others with it.
            answer = httpx.patch(
                f"{client.api_url}work_queues/{queue.id}", json={"is_paused": is_paused}, timeout=30, trust_env=False
            )
            assert answer.status_code == 204
        assert client.read_work_queue(queue.id).is_paused is False
        client._client.delete(f"/work_queues/{queue.id}")
