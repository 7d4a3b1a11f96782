"""Creates the SQLite database of a local Prefect server as a copy of a template without flow runs.

The copy saves ten seconds of a core: seven for Prefect's migrations, and three for segue's deployments.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path


def template_file() -> Path:
    """Return the path of this user's template for the installed version of Prefect."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "segue" / f"prefect-{version('prefect')}.db"


def copy_template(database: Path, *, template: Path) -> bool:
    """Create a database from the template. If the template cannot be read or copied, return False."""
    database.parent.mkdir(parents=True, exist_ok=True)
    partial = database.with_name(f"{database.name}.new")
    try:
        shutil.copyfile(template, partial)
        with closing(sqlite3.connect(partial)) as connection:
            connection.execute("SELECT version_num FROM alembic_version").fetchall()
        partial.replace(database)
    except (OSError, sqlite3.Error):
        partial.unlink(missing_ok=True)
        return False
    return True


def keep_template(database: Path, *, template: Path) -> None:
    """Copy a database to the template, even while a server uses the database.

    The function ignores failures, because without a template only the next start is slower.
    """
    own = template.with_name(f"{template.name}.{os.getpid()}")
    try:
        template.parent.mkdir(parents=True, exist_ok=True)
        # A server on PostgreSQL has no such file, and this function must not create it.
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute("VACUUM INTO ?", (str(own),))  # This writes one file without a write-ahead log.
        own.replace(template)
    except (OSError, sqlite3.Error):
        with suppress(OSError):
            own.unlink(missing_ok=True)
