"""The checks of the Prefect server fail where runs cannot rely on it."""

from __future__ import annotations

import pytest

from segue.doctor.server_judgement import (
    Database,
    Recovery,
    judge_database,
    judge_recovery,
    judge_refusals,
    judge_sqlalchemy,
    judge_verifications,
    judge_version,
)
from tests.doctor.showing import bad, good, makes_fail


@makes_fail("prefect.version")
@pytest.mark.parametrize("version", ["2.20.1", "3.3.9", "4.0.0"])
def test_a_server_of_another_version_is_found(version):
    good(judge_version("3.8.8"))
    good(judge_version("odd"))
    good(judge_version(None))
    bad("prefect.version", judge_version(version), "fail", f"has version {version}", "same version")


@makes_fail("prefect.database")
@pytest.mark.parametrize(("parents", "outcome"), [(10, "warn"), (79, "warn"), (80, "fail")])
def test_sqlite_is_too_small_for_many_runs_at_once(parents, outcome):
    good(judge_database(Database.SQLITE, open_parents=9))
    good(judge_database(Database.POSTGRESQL, open_parents=200))
    result = judge_database(Database.SQLITE, open_parents=parents)
    bad("prefect.database", result, outcome, f"{parents} open runs", "PostgreSQL")
    assert judge_database(None, open_parents=100).outcome == "skipped"


@makes_fail("prefect.refusals")
def test_refused_writes_are_found():
    good(judge_refusals(0, of=30))
    bad("prefect.refusals", judge_refusals(4, of=30), "warn", "4 of 30 writes were refused", "segue worker --pool")


@makes_fail("prefect.sqlalchemy")
@pytest.mark.parametrize("version", ["2.0.38", "2.1.0", "2.1.0b1"])
def test_a_version_of_sqlalchemy_that_harms_the_server_is_found(version):
    good(judge_sqlalchemy("2.0.37"))
    bad("prefect.sqlalchemy", judge_sqlalchemy(version), "warn", version, "sqlalchemy<2.0.38")


@makes_fail("prefect.verify-resume")
def test_a_limit_that_a_dead_verification_holds_is_found():
    good(judge_verifications(False))
    assert judge_verifications(None).outcome == "skipped"
    bad(
        "prefect.verify-resume",
        judge_verifications(True),
        "warn",
        "no later verification begins",
        "deployment verify-resume in",
    )


@makes_fail("prefect.recover")
@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (Recovery.MISSING, "warn"),
        (Recovery.PAUSED, "warn"),
        (Recovery.INACTIVE, "warn"),
        (Recovery.IDLE, "fail"),
        (Recovery.LIMITED, "fail"),
    ],
)
def test_parents_that_nobody_would_start_again_are_found(found, outcome):
    good(judge_recovery(Recovery.ALIVE))
    bad("prefect.recover", judge_recovery(found), outcome, "a parent that dies is not started again")
