"""Judges the version, the database, the deployment `recover` and the limits of a Prefect server. The module is pure."""

from __future__ import annotations

from enum import StrEnum

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from segue.doctor.check import Result, fail, ok, skipped, warn

SERVERS = SpecifierSet(">=3.4,<4")
"""Versions of the Prefect server with which segue works."""
_SQLALCHEMY = SpecifierSet("<2.0.38")
"""The versions of SQLAlchemy with which a Prefect server works.

With version 2.0.38 or later, a server on SQLite stops for a minute at a time. With version 2.1 or later, the server
creates no scheduled flow runs.
"""
_SQLITE_PARENTS, _SQLITE_MOST_PARENTS = 10, 80
"""Numbers of open runs, as measured with SQLite.

Up to the first number, SQLite was sufficient. Above the second number, SQLite locked up.
"""


_NO_LIMIT = (
    "delete `concurrency_limit` and the lines below it from the deployment {} in prefect.yaml "
    "(`segue init --diff` shows them), and run `prefect --no-prompt deploy --all`."
)


class Database(StrEnum):
    """The kind of database that a server uses."""

    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"


class Recovery(StrEnum):
    """The state of the deployment `recover`, which restarts dead parents."""

    MISSING = "missing"
    PAUSED = "paused"
    INACTIVE = "inactive"
    IDLE = "idle"
    """The schedule is active, but the server creates no flow runs for it."""
    LIMITED = "limited"
    """The deployment has a concurrency limit.

    If a flow run of `recover` dies together with the server, the dead flow run keeps its slot of the limit.
    """
    ALIVE = "alive"


def judge_version(found: str | None) -> Result:
    """Judge the server's version.

    The value None means Prefect Cloud. The check accepts a version that it cannot parse.
    """
    if found is None:
        return ok("Prefect Cloud works with every version of Prefect 3")
    try:
        version = Version(found)
    except InvalidVersion:
        return ok(f"the server's version {found!r} cannot be compared")
    if not SERVERS.contains(version, prereleases=True):
        return fail(
            f"the Prefect server has version {found}; segue works with {SERVERS}",
            fix="use a server of the same version as the installed prefect.",
        )
    return ok(f"the server has version {found}")


def judge_database(kind: Database | None, *, open_parents: int) -> Result:
    """Judge whether the server's database suffices for one more open run."""
    if kind is None:
        return skipped("the server does not show the kind of its database")
    runs = f"{kind}, {open_parents} open runs"
    if kind is not Database.SQLITE or open_parents < _SQLITE_PARENTS:
        return ok(runs)
    reason = f"{runs}: SQLite is too small for more than {_SQLITE_PARENTS}, and locks up at 85 to 90"
    fix = "give the Prefect server PostgreSQL (PREFECT_SERVER_DATABASE_CONNECTION_URL)."
    return fail(reason, fix=fix) if open_parents >= _SQLITE_MOST_PARENTS else warn(reason, fix=fix)


def judge_refusals(refused: int, *, of: int) -> Result:
    """Judge whether the server accepts writes while its workers poll it for flow runs."""
    if not refused:
        return ok(f"{of} of {of} writes were accepted at the first try")
    return warn(
        f"{refused} of {of} writes were refused with HTTP 503, because of other writes to SQLite at the same time: "
        "Prefect's own workers repeat such a request after 2 to 32 s, and give up the flow run after a minute",
        fix="start every worker with `segue worker --pool POOL`, which repeats it at once, or give the Prefect server "
        "PostgreSQL (PREFECT_SERVER_DATABASE_CONNECTION_URL).",
    )


def judge_sqlalchemy(found: str) -> Result:
    """Judge the installed version of SQLAlchemy, which a Prefect server in this environment would use."""
    if _SQLALCHEMY.contains(Version(found), prereleases=True):
        return ok(f"sqlalchemy {found} is installed here")
    return warn(
        f"sqlalchemy {found} is installed here: a Prefect server with it stops for a minute at a time on SQLite, and "
        "from 2.1 on creates no flow run of any schedule",
        fix="install `sqlalchemy<2.0.38` beside the Prefect server.",
    )


def judge_recovery(found: Recovery) -> Result:
    """Judge whether the Prefect server starts a dead parent again."""
    lost = "a parent that dies is not started again"
    match found:
        case Recovery.MISSING:
            return warn(
                f"there is no deployment recover/recover: {lost}",
                fix="run `prefect --no-prompt deploy --all` in the folder of prefect.yaml.",
            )
        case Recovery.PAUSED:
            return warn(
                f"the deployment recover/recover is paused: {lost}", fix="resume it on its page in Prefect's UI."
            )
        case Recovery.INACTIVE:
            return warn(
                f"the schedule of recover/recover is not active: {lost}",
                fix="`prefect deployment schedule resume recover/recover ID`, or deploy again.",
            )
        case Recovery.IDLE:
            return fail(
                f"the server creates no flow runs for the schedule of recover/recover: {lost}",
                fix="if the server's log contains `bulk DML`, install `sqlalchemy<2.0.38` beside the server.",
            )
        case Recovery.LIMITED:
            return fail(
                "the deployment recover/recover has a concurrency limit: a flow run that dies together with the server "
                f"keeps its slot, every later one is cancelled, and {lost}",
                fix=_NO_LIMIT.format("recover"),
            )
        case Recovery.ALIVE:
            return ok("the server starts recover/recover on its schedule")


def judge_verifications(is_limited: bool | None) -> Result:
    """Judge whether the next scheduled verification starts after a verification has died.

    If the deployment `verify-resume` does not exist, `is_limited` is None.
    """
    if is_limited is None:
        return skipped("there is no deployment verify-resume/verify-resume")
    if not is_limited:
        return ok("no verification prevents the start of another one")
    return warn(
        "the deployment verify-resume/verify-resume has a concurrency limit: a verification that dies together with "
        "the server keeps its slot, and no later verification begins",
        fix=_NO_LIMIT.format("verify-resume"),
    )
