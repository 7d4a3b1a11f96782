"""`segue models`, `segue retrain slots` and `segue data`: what the store knows of a model, and changes by a person."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from segue.retraining.gate.docs import store_docs
from segue.retraining.gate.record import GateResult
from segue.retraining.gate.window_check import check_window
from segue.retraining.model_record import Candidate, Comparison, Interval, SlotEnd, SlotStart, Training
from segue.retraining.slots import run_id_of, run_of
from segue.retraining.versions.version_files import put_artifact, weights_bytes
from segue.retraining.window import window_of
from segue.stores import open_store
from tests.retraining.monthly import Monthly, slot_of_month

PASSED = GateResult(outcome="passed", expectations=3, rows=600)


@pytest.fixture
def monthly(desk) -> Monthly:
    made = Monthly(desk.folder / "points")
    made.write(1, 2, 3, 4, 5)
    open_store(made.store_folder).check()
    return made


def version(
    monthly: Monthly,
    month: int,
    *,
    error: float,
    promoted: bool = True,
    against: int | None = None,
    decide_by: datetime | None = None,
) -> None:
    """A version of the slot of a month, as a flow run would record it."""
    import torch

    spec, slot, store = monthly.spec, slot_of_month(month), open_store(monthly.store_folder)
    window, _ = window_of(spec, slot)
    run = run_of(spec, slot, window, now=slot)
    monthly.log.open_slot(SlotStart(slot=slot, window=window, gate=PASSED, run=run))
    value = Interval(value=error, low=error - 0.1, high=error + 0.1)
    gain = None if against is None else Interval(value=0.25, low=0.2, high=0.3)
    other = None if against is None else value
    scores = Comparison(metric="absolute_error", candidate=value, in_service=other, gain=gain, groups={"x=1": -0.01})
    data = weights_bytes({"weight": torch.full((1, 1), float(month))}, component="model")
    monthly.log.add(
        Candidate(
            slot=slot,
            run_id=run.run_id,
            step=40,
            attempt_id="seg000-a1-e1",
            weights=put_artifact(store, spec.name, "model.safetensors", data),
            config={"lr": month / 10},
            training=Training(segments=2, preemptions=1, verdicts={"exact": 1}, cost=1.25, hashes={"code": "abc"}),
            comparisons=(scores,),
            compared_with=against,
            is_promoted=promoted,
            why="better" if promoted else "no better",
            decide_by=decide_by,
        )
    )
    if decide_by is not None:
        return
    outcome = "promoted" if promoted else "not_promoted"
    monthly.log.end_slot(SlotEnd(slot=slot, outcome=outcome, why=f"version of {month}"))


@pytest.fixture
def store(monthly) -> tuple[str, str]:
    version(monthly, 4, error=1.0)
    version(monthly, 5, error=0.75, against=1)
    return "--store", str(monthly.store_folder)


def test_models_and_versions_are_listed(desk, store):
    row = desk.told("models", "ls", *store, "--json")["models"][0]
    assert (row["model"], row["in_service"], row["versions"], row["outcome"]) == ("points", 2, 2, "promoted")
    listed = desk.told("models", "ls", "points", *store, "--json")
    assert listed["in_service"] == 2
    assert [each["status"] for each in listed["versions"]] == ["was in service", "in service"]
    newest = listed["versions"][1]
    assert (newest["metric"], newest["value"]) == ("absolute_error", 0.75)
    assert newest["gain_share"] == pytest.approx(0.25)
    assert "absolute_error" in desk.run("models", "ls", "points", *store).out


def test_the_card_of_a_version_tells_where_it_comes_from(desk, store, monthly):
    card = desk.run("models", "show", "points", *store).out
    for part in (
        "# points, version 2",
        "**in service**: better.",
        "`points-20130501t0600`, step 40, attempt `seg000-a1-e1`",
        f"| 2013-03 | `{monthly.folder}/2013-03.parquet` | 200 |",
        "| evaluation |",
        "| absolute_error | 0.75 (0.65 to 0.85) | 0.75 (0.65 to 0.85) | +25.00 % (+20.00 % to +30.00 %) |",
        "| x=1 | - | -1.00 % |",
        "passed: 3 expectations over 600 rows",
        "| cost | 1.25 USD |",
        "2, 1 preemptions",
        "1 exact",
        "| hash of code | `abc` |",
    ):
        assert part in card
    assert "version 1" in desk.run("models", "show", "points", "--version", "1", *store).out
    facts = desk.told("models", "show", "points", "--version", "1", *store, "--json")
    assert (facts["status"], facts["data"]["gate"]["outcome"]) == ("was in service", "passed")


def test_two_versions_differ_in_what_is_listed(desk, store, monthly):
    found = desk.told("models", "diff", "points", "1", "2", *store, "--json")["differences"]
    facts = {each["what"]: (each["one"], each["other"]) for each in found}
    assert facts["config.lr"] == ("0.4", "0.5")
    assert facts["absolute_error"] == ("1", "0.75")
    held_back, trained = facts[f"file {monthly.folder}/2013-03.parquet"]
    assert held_back.startswith("evaluation ")
    assert trained.startswith("training ")
    assert facts[f"file {monthly.folder}/2013-04.parquet"][0] is None
    assert "hash of code" not in facts


def test_a_person_rolls_back_and_promotes_with_a_reason(desk, store, monthly):
    assert "version 1 of points is in service" in desk.run("models", "rollback", "points", "--why", "slow", *store).out
    assert monthly.models.in_service == 1
    assert monthly.models.events[-1].record.why == "slow"
    assert "version 2 of points" in desk.run("models", "promote", "points", "2", "--why", "fixed", *store).out
    path = desk.run("models", "serve-path", "points", *store).out.strip()
    assert path == f"{monthly.store_folder}/{monthly.models.version(2).weights.key}"
    assert desk.told("models", "ls", "points", *store, "--json")["in_service"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "boats"), "there is no model 'boats'"),
        (("show", "points", "--version", "7"), "has no version 7"),
        (("promote", "points", "7", "--why", "x"), "has no version 7"),
        (("serve-path", "points", "--program"), "version 2 was published without one"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_changes(desk, store, monthly, arguments, message):
    outcome = desk.run("models", *arguments, *store)
    assert outcome.code == 2
    assert message in outcome.err.replace("\n", " ")
    assert monthly.models.in_service == 2


@pytest.fixture
def waits(monthly, store) -> tuple[str, str]:
    """A third version, which waits for a decision."""
    until = datetime.now(UTC) + timedelta(hours=1)
    version(monthly, 6, error=0.5, promoted=False, against=2, decide_by=until)
    return store


def test_a_person_approves_a_version_that_waits_and_another_one_is_told(desk, waits, monthly):
    assert (
        "waits for a decision until" in desk.told("models", "ls", "points", *waits, "--json")["versions"][2]["status"]
    )
    assert desk.told("retrain", "slots", str(monthly.file), "--json")["slots"][2]["why"].startswith("until ")
    done = desk.run("models", "approve", "points", "--why", "seen", "--by", "anna", *waits)
    assert (done.code, monthly.models.in_service) == (0, 3)
    assert "version 3 of points is promoted: approved by anna: seen" in done.out
    again = desk.run("models", "approve", "points", "3", "--why", "too", "--by", "ben", *waits)
    assert (again.code, "approved by anna: seen" in again.out) == (0, True)
    other = desk.run("models", "reject", "points", "3", "--why", "no", "--by", "ben", *waits)
    assert (other.code, "approved by anna: seen" in other.out) == (1, True)
    found = desk.told("models", "show", "points", "--version", "3", *waits, "--json")["decisions"]
    assert [(each["answer"], each["by"], each["why"]) for each in found] == [("approved", "anna", "seen")]
    assert datetime.fromisoformat(found[0]["at"]) > datetime.now(UTC) - timedelta(hours=1)


def test_a_person_rejects_a_version_that_waits(desk, waits, monthly):
    done = desk.run("models", "reject", "points", "--why", "not now", *waits)
    assert (done.code, monthly.models.in_service) == (0, 2)
    assert "version 3 of points is not promoted: rejected by " in done.out
    assert desk.run("models", "approve", "points", "3", "--why", "yes", *waits).code == 1


def test_a_version_that_waits_is_kept_when_its_run_is_gone_and_not_approved_when_its_weights_are(desk, waits, monthly):
    run = monthly.store_folder / run_id_of(monthly.spec, slot_of_month(6))
    assert not run.exists()  # The weights are files of the model's own.
    weights = Path(monthly.store_folder, monthly.models.version(3).weights.key)
    weights.unlink()
    refused = desk.run("models", "approve", "points", "--why", "seen", *waits)
    assert (refused.code, "it is missing" in refused.err.replace("\n", " ")) == (1, True)
    assert [*monthly.models.waiting] == [3]
    assert desk.run("models", "reject", "points", "--why", "its file is gone", *waits).code == 0


def test_an_approval_that_comes_too_late_promotes_nothing(desk, store, monthly):
    version(monthly, 6, error=0.5, promoted=False, against=2, decide_by=datetime.now(UTC) - timedelta(seconds=1))
    late = desk.run("models", "approve", "points", "--why", "seen", *store)
    assert (late.code, "not promoted: nobody decided by" in late.out) == (1, True)
    assert (monthly.models.in_service, monthly.models.waiting) == (2, {})


@pytest.mark.parametrize("option", ["--why", "--by"])
def test_a_decision_needs_a_name_and_a_reason(desk, waits, monthly, option):
    given = {"--why": "seen", "--by": "anna"} | {option: " "}
    refused = desk.run("models", "approve", "points", *(part for pair in given.items() for part in pair), *waits)
    assert (refused.code, f"{option}: empty" in refused.err) == (2, True)
    assert [*monthly.models.waiting] == [3]


def test_nothing_that_waits_is_said_with_what_to_do(desk, store):
    refused = desk.run("models", "approve", "points", "--why", "seen", *store)
    assert refused.code == 2
    assert "no version of model points waits for a decision" in refused.err.replace("\n", " ")


def test_a_store_without_models_is_no_error(desk, tmp_path):
    open_store(tmp_path / "empty").check()
    assert desk.run("models", "ls", "--store", str(tmp_path / "empty")).out.strip() == "none"


def test_a_first_rollback_needs_a_version_before(desk, monthly):
    version(monthly, 4, error=1.0)
    outcome = desk.run("models", "rollback", "points", "--why", "slow", "--store", str(monthly.store_folder))
    assert outcome.code == 2
    assert "no other version was in service before" in outcome.err.replace("\n", " ")


def test_the_slots_of_a_retraining_are_listed_with_their_outcome(desk, store, monthly):
    rows = desk.told("retrain", "slots", str(monthly.file), "--json")["slots"]
    assert [(row["run"], row["outcome"], row["version"]) for row in rows] == [
        (run_id_of(monthly.spec, slot_of_month(4)), "promoted", 1),
        (run_id_of(monthly.spec, slot_of_month(5)), "promoted", 2),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("start", "nowhere.toml"), "nowhere.toml is not valid: the file cannot be read"),
        (("start", "points/retrain.toml", "--slot", "July"), "--slot: 'July' is not an ISO time"),
        (
            ("backfill", "points/retrain.toml", "--from", "2013-04-02", "--to", "2013-04-20"),
            "has no past slot between these two times",
        ),
        (("deploy", "points/retrain.toml"), "needs a Prefect server that outlives this command"),
    ],
)
def test_a_retraining_that_cannot_be_started_as_asked_is_refused(desk, monthly, monkeypatch, arguments, message):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    outcome = desk.run("retrain", *arguments)
    assert outcome.code == 2, outcome
    assert message in outcome.err.replace("\n", " ")


@pytest.mark.matrix
def test_a_first_suite_is_met_by_its_data_and_not_by_other_data(desk, monthly):
    out = desk.run("data", "profile", f"{monthly.folder}/*.parquet", "--to", "points/expectations/new.json").out
    assert "wrote 5 expectations from 5 files" in out.replace("\n", " ")
    monthly.write_spec(gate={"suite": "expectations/new.json"})
    passed = desk.run("data", "check", str(monthly.file), "--slot", "2013-05-01T06:00")
    assert (passed.code, "passed: 6 expectations over 600 rows" in passed.out) == (0, True)
    monthly.write(4, slope=50.0, nulls=3)
    failed = desk.run("data", "check", str(monthly.file), "--slot", "2013-05-01T06:00")
    assert failed.code == 1
    facts = json.loads(desk.run("data", "check", str(monthly.file), "--slot", "2013-05-01T06:00", "--json").out)
    assert facts["outcome"] == "failed"
    assert {each["about"] for each in facts["findings"]} == {"y"}
    assert not (monthly.store_folder / "_model-points").exists()  # A check records nothing.
    again = desk.run("data", "profile", f"{monthly.folder}/*.parquet", "--to", "points/expectations/new.json")
    assert (again.code, "exists; name a new file" in again.err) == (2, True)


def test_the_data_docs_of_a_slot_are_written_into_a_folder(desk, monthly, tmp_path):
    spec, slot, store = monthly.spec, slot_of_month(4), open_store(monthly.store_folder)
    window, local = window_of(spec, slot)
    docs = tmp_path / "docs"
    gate = check_window(spec, window, local, slot=slot, folder=monthly.folder, docs=docs)
    place = store_docs(store, spec.name, "20130401t0600", docs)
    monthly.log.open_slot(SlotStart(slot=slot, window=window, gate=gate, docs=place))
    written = desk.run("data", "docs", str(monthly.file), "--to", "site").out.replace("\n", "")
    assert written.endswith("site/index.html")
    there, found = files_in(docs), files_in(desk.folder / "site")
    assert found == there
    assert any(name.startswith("validations/points/2013-04-01T0600Z/") for name in found)
    unknown = desk.run("data", "docs", str(monthly.file), "--slot", "2013-09-01")
    assert (unknown.code, "there are no Data Docs at points" in unknown.err.replace("\n", " ")) == (2, True)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
