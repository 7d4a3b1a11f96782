"""Lists all checks, in the order in which the doctor runs and shows them. Add new checks to this list."""

from __future__ import annotations

from collections.abc import Sequence

from segue.doctor import launchers, machine, notices, recipe, stores
from segue.doctor.check import Item, fail, skipped
from segue.doctor.pools.judgement import JUDGES
from segue.doctor.subject import Subject

OF_SERVER = (
    "prefect.server",
    "prefect.version",
    "prefect.database",
    "prefect.refusals",
    "prefect.sqlalchemy",
    "prefect.deployments",
    "prefect.recover",
    "prefect.verify-resume",
    *JUDGES,
)
"""The checks that need a Prefect server.

`segue.prefect.doctor` implements these checks, because only the package `segue.prefect` imports Prefect.
"""

PARTS = (stores.items, launchers.items, recipe.items, notices.items, machine.items)
"""Functions that return the checks of each part. If the failure of a check causes other failures, this check comes
first."""


def all_items(subject: Subject, of_server: Sequence[Item]) -> list[Item]:
    """Return all checks in order. The caller passes the checks of the Prefect server as `of_server`."""
    of_parts = (item for part in PARTS for item in part(subject))
    return [*recipe.first_items(subject), *of_server, *of_parts]


def unusable_server(why: str, *, fix: str) -> list[Item]:
    """Return the checks of a Prefect server that cannot be used.

    The first check fails with the reason `why`, and the other checks are skipped.
    """
    first, *others = OF_SERVER
    failed = Item(first, lambda: fail(" ".join(why.split()), fix=fix))
    return [failed, *(Item(name, lambda: skipped(f"{first} failed")) for name in others)]


def without_server(why: str) -> list[Item]:
    """Return the checks of the Prefect server as skipped checks, because there is no server."""
    return [Item(name, lambda: skipped(why)) for name in OF_SERVER]
