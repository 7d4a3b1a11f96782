"""The two runs of a verification have the user's settings, names of their own, and stay on spot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from segue.spec import RunSpec
from segue.verification.runs import DrillRuns

SLOT = datetime(2026, 11, 8, 4, 0, 7, tzinfo=UTC)
SPEC = RunSpec.parse(
    {
        "run_id": "nightly",
        "recipe": "train:build",
        "steps": 500,
        "deadline": datetime(2026, 11, 9, tzinfo=UTC),
        "ranks": 2,
        "store": {"url": "s3://bucket/models", "endpoint_url": "http://127.0.0.1:9000"},
        "checkpoints": {
            "every_seconds": 120,
            "keep": 5,
            "staging": "overlapped",
            "staging_buffers": 2,
            "full_every": 4,
            "fast_folder": "/mnt/nvme",
        },
        "policy": {"name": "threshold", "parameters": {"preemptions": 1}, "max_preemptions": 2, "max_failures": 7},
        "pools": {"spot": [{"deployment": "segment/a", "price": 1.5}], "currency": "EUR"},
        "trackers": {"tensorboard": {"folder": "board"}},
    }
)


def test_everything_but_deadline_capacity_trackers_and_name_is_the_users_own():
    runs = DrillRuns.of(SPEC, slot=SLOT)
    kept = {"run_id", "deadline", "policy", "trackers", "continuity"}
    for run in (runs.undisturbed, runs.disturbed):
        assert run.model_dump(exclude=kept) == SPEC.model_dump(exclude=kept)
        assert (run.deadline, run.trackers) == (None, {})
        assert (run.policy.name, run.policy.preemption_bound, run.policy.max_failures) == ("spot_only", None, 7)
    assert runs.undisturbed.continuity == SPEC.continuity
    assert runs.disturbed.continuity == SPEC.continuity.model_copy(update={"disturbable": True})
    assert runs.undisturbed.identity() == runs.disturbed.identity() == SPEC.identity()


def test_the_names_follow_from_the_scheduled_time_alone():
    runs = DrillRuns.of(SPEC, slot=SLOT)
    assert runs.undisturbed.run_id == "nightly-verify-20261108t040007-undisturbed"
    assert runs.disturbed.run_id == "nightly-verify-20261108t040007-disturbed"
    elsewhere = SLOT.astimezone(timezone(timedelta(hours=9)))
    assert DrillRuns.of(SPEC, slot=elsewhere).disturbed == runs.disturbed


def test_long_names_are_cut_and_stay_apart():
    long = [SPEC.model_copy(update={"run_id": "x" * 62 + last}) for last in "ab"]
    names = [DrillRuns.of(spec, slot=SLOT).undisturbed for spec in long]
    assert len({run.run_id for run in names}) == 2
    assert all(RunSpec.model_validate(run.model_dump()).run_id == run.run_id for run in names)
    assert max(len(run.run_id) for run in names) <= 63
