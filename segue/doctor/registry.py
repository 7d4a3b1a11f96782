"""The list of all checks, in the order in which they are made and shown; add new kinds of checks here."""

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
"""The checks that need a Prefect server. `segue.prefect.doctor` makes them, because only the pack imports Prefect."""

PARTS = (stores.items, launchers.items, recipe.items, notices.items, machine.items)
"""Functions that return the checks of each part; checks whose failure causes other failures come first."""


def all_items(subject: Subject, of_server: Sequence[Item]) -> list[Item]:
    """Every check of the subject; the caller passes the checks of the Prefect server."""
    of_parts = (item for part in PARTS for item in part(subject))
    return [*recipe.first_items(subject), *of_server, *of_parts]


def unusable_server(why: str, *, fix: str) -> list[Item]:
    """The checks of a server that cannot be used: the first check fails with this reason, the others are skipped."""
    first, *others = OF_SERVER
    failed = Item(first, lambda: fail(" ".join(why.split()), fix=fix))
    return [failed, *(Item(name, lambda: skipped(f"{first} failed")) for name in others)]


def without_server(why: str) -> list[Item]:
    """The checks of the server if there is no server: all are skipped."""
    return [Item(name, lambda: skipped(why)) for name in OF_SERVER]
