"""What a slot's run trained: published, compared with the model in service, loaded again by its bytes."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime

import pytest
import torch
from torch import nn

import segue
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.errors import (
    DamagedVersionError,
    NoProgramError,
    NotInServiceError,
    PublishError,
    RetrainJobError,
    UnknownModelError,
    UnknownVersionError,
)
from segue.retraining.gate.record import GateResult
from segue.retraining.history import Models
from segue.retraining.model_record import SlotStart
from segue.retraining.slots import run_of
from segue.retraining.versions.candidate_jobs import BeginJob, EvaluateJob, run_job
from segue.retraining.versions.job_main import evaluated
from segue.retraining.versions.scoring import nan_predictions, nan_weights
from segue.retraining.versions.version_files import state_of, weights_bytes
from segue.retraining.window import window_of
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.stores import open_store
from tests.retraining.monthly import Monthly, slot_of_month

PASSED = GateResult(outcome="passed", expectations=1, rows=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def monthly(tmp_path, fork_server) -> Monthly:
    made = Monthly(tmp_path / "points")
    made.trainers = fork_server
    return made


def begun(monthly: Monthly, month: int, *, start_version: int | None = None) -> SlotStart:
    """The slot of a month, whose data passed."""
    spec, slot = monthly.spec, slot_of_month(month)
    open_store(monthly.store_folder).check()
    window, _ = window_of(spec, slot)
    run = run_of(spec, slot, window, now=NOW)
    start = SlotStart(slot=slot, window=window, gate=PASSED, run=run, start_version=start_version)
    return monthly.log.open_slot(start)


def train(monthly: Monthly, start: SlotStart) -> None:
    monthly.trainers.run_to_the_end(open_run(start.run, clock=SystemClock()), start.run)


def trained(monthly: Monthly, month: int) -> EvaluateJob:
    start = begun(monthly, month)
    train(monthly, start)
    return EvaluateJob(spec=monthly.spec, start=start)


def added(monthly: Monthly, job: EvaluateJob) -> Models:
    return monthly.log.add(evaluated(job))


def test_the_first_version_is_promoted_and_loads_bit_for_bit(monthly):
    monthly.write(1, 2, 3)
    job = trained(monthly, 4)
    models = added(monthly, job)
    candidate = models.version(1)
    assert (models.in_service, candidate.why, candidate.compared_with) == (1, "no model was in service", None)
    assert [each.metric for each in candidate.comparisons] == ["absolute_error", "squared_error"]
    state = segue.load_model("points", store=monthly.store_folder)
    there = segue.load_checkpoint(candidate.run_id, store=monthly.store_folder)["model"]
    assert state.keys() == there.keys()
    assert all(torch.equal(state[name], there[name]) for name in state)
    assert set(candidate.training.hashes) == {"code", "config"}
    assert (candidate.training.segments, candidate.training.preemptions) == (1, 0)


@pytest.mark.matrix
def test_a_worse_candidate_is_kept_out_of_service_with_the_reason(monthly):
    monthly.write(1, 2, 3, 4)
    added(monthly, trained(monthly, 4))
    monthly.write_spec(run=monthly.spec.run | {"config": {"lr": 1e-4}})
    models = added(monthly, trained(monthly, 5))
    assert (models.in_service, [*models.candidates]) == (1, [1, 2])
    second = models.version(2)
    assert not second.is_promoted
    assert "the gain in absolute_error is -" in second.why
    assert second.comparisons[0].gain.high < 0


@pytest.mark.matrix
def test_a_candidate_is_better_when_the_world_changed(monthly):
    monthly.write(1, 2, 3)
    added(monthly, trained(monthly, 4))
    monthly.write(4, 5, 6, slope=-1.0)
    models = added(monthly, trained(monthly, 7))
    assert models.in_service == 2
    assert models.version(2).comparisons[0].gain.low > 0.5


@pytest.mark.matrix
def test_a_candidate_of_an_earlier_slot_never_replaces_one_of_a_later_slot(monthly):
    monthly.write(1, 2, 3, 4)
    added(monthly, trained(monthly, 5))
    models = added(monthly, trained(monthly, 4))
    assert (models.in_service, models.version(2).why) == (1, "version 1 was trained for a later slot")


@pytest.mark.matrix
def test_a_version_with_a_program_is_served_and_compared_without_the_users_code(monthly):
    monthly.write(1, 2, 3, 4)
    publish = {"model": "tests.recipes.monthly:model", "example": "tests.recipes.monthly:example"}
    monthly.write_spec(publish=publish)
    models = added(monthly, trained(monthly, 4))
    program = segue.load_model("points", store=monthly.store_folder, form="program").module()
    state = segue.load_model("points", store=monthly.store_folder)
    line = nn.Linear(1, 1)
    line.load_state_dict(state)
    points = torch.linspace(-1, 1, 7)[:, None]  # Another number of rows than in the example.
    assert torch.allclose(program(points), line(points))
    # The next candidate has another model, and the one in service is compared all the same.
    monthly.write_spec(publish={"model": "tests.recipes.monthly:wide"}, run=monthly.spec.run | {"recipe": WIDE})
    models = added(monthly, trained(monthly, 5))
    assert models.version(2).comparisons[0].in_service is not None


WIDE = "tests.recipes.monthly:build_wide"


@pytest.mark.matrix
def test_a_version_whose_weights_fit_no_model_any_more_is_named(monthly):
    monthly.write(1, 2, 3, 4)
    added(monthly, trained(monthly, 4))
    monthly.write_spec(publish={"model": "tests.recipes.monthly:wide"}, run=monthly.spec.run | {"recipe": WIDE})
    job = trained(monthly, 5)
    with pytest.raises(PublishError, match=r"monthly:wide cannot be published: the weights do not fit its model: .*"):
        evaluated(job)
    assert monthly.models.in_service == 1


def test_a_damaged_file_of_a_version_is_refused(monthly):
    monthly.write(1, 2, 3)
    candidate = added(monthly, trained(monthly, 4)).version(1)
    file = monthly.store_folder / candidate.weights.key
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedVersionError, match=r"model.safetensors in the store is damaged: its SHA-256 is "):
        segue.load_model("points", store=monthly.store_folder)
    file.unlink()
    with pytest.raises(DamagedVersionError, match="it is missing"):
        segue.load_model("points", store=monthly.store_folder)


def test_what_is_not_there_is_named(monthly):
    with pytest.raises(UnknownModelError, match="there is no model 'points'"):
        segue.load_model("points", store=monthly.store_folder)
    monthly.write(1, 2, 3)
    monthly.write_spec(evaluation={"min_gain": 0.1})
    job = trained(monthly, 4)
    monthly.log.add(evaluated(job).model_copy(update={"is_promoted": False}))
    with pytest.raises(NotInServiceError, match="no version of model points is in service"):
        segue.load_model("points", store=monthly.store_folder)
    with pytest.raises(UnknownVersionError, match="model points has no version 3: its versions are 1 to 1"):
        segue.load_model("points", store=monthly.store_folder, version=3)
    with pytest.raises(NoProgramError, match=r"version 1 of model points was published without a torch\.export"):
        segue.load_model("points", store=monthly.store_folder, version=1, form="program")


@pytest.mark.matrix
def test_a_run_may_begin_with_the_weights_in_service(monthly):
    monthly.write(1, 2, 3, 4)
    added(monthly, trained(monthly, 4))
    start = begun(monthly, 5, start_version=1)
    job = BeginJob(spec=monthly.spec, start=start)
    for _ in range(2):  # A slot that is started again has begun already.
        run_job(job, what="begin", on_line=lambda line: None)
    history = read_history(open_log(start.run))
    assert history.newest.manifest.imported_from.name == "version-1.safetensors"
    first = segue.load_checkpoint(start.run.run_id, store=monthly.store_folder)["model"]
    in_service = segue.load_model("points", store=monthly.store_folder)
    assert all(torch.equal(first[name], in_service[name]) for name in first)
    train(monthly, start)
    assert added(monthly, EvaluateJob(spec=monthly.spec, start=start)).version(2).run_id == start.run.run_id


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("evaluation", "why"),
    [
        pytest.param({"scores": "tests.recipes.monthly:nothing"}, "has no function 'nothing'", marks=pytest.mark.soak),
        ({"scores": "tests.recipes.monthly:wrong"}, r"ZeroDivisionError: division by zero \(tests/recipes/monthly.py"),
        (
            {"scores": "tests.recipes.monthly:drops"},
            r"missed has the shape .*; it dropped 2: 2013-\d\d.parquet, row 1; 2013-\d\d.parquet, row 3",
        ),
        ({"scores": "tests.recipes.monthly:dies"}, "its process ended without a result"),
        pytest.param(
            {"metric": "accuracy"},
            "it returned no accuracy; it returned absolute_error, squared_error",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_the_users_functions_do_wrong_is_named_and_promotes_nothing(monthly, evaluation, why):
    monthly.write(1, 2, 3)
    monthly.write_spec(evaluation=evaluation)
    job = trained(monthly, 4)
    with pytest.raises(RetrainJobError, match=why):
        run_job(job, what="evaluation", on_line=lambda line: None)
    assert monthly.models.candidates == {}


@pytest.mark.matrix
def test_nan_in_weights_and_predictions_counts_although_the_score_hides_it(monthly):
    monthly.write(1, 2, 3)
    places = {name: f"tests.recipes.monthly:{name}" for name in ("build_blank", "blank", "hides")}
    run = monthly.spec.run | {"recipe": places["build_blank"]}
    monthly.write_spec(run=run, publish={"model": places["blank"]}, evaluation={"scores": places["hides"]})
    rows = begun(monthly, 4).window.held_back[0].rows
    candidate = evaluated(trained(monthly, 4))
    assert not candidate.is_promoted
    faults = ["its weights are nan in 1 of 3 tensors: scale", f"its predictions are nan in {rows:,} rows"]
    assert candidate.why == "; ".join(faults)


@pytest.mark.matrix
@pytest.mark.parametrize("program", [False, True], ids=["module", "program"])
def test_rows_with_a_nan_prediction_are_counted(program):
    model = nn.Linear(1, 2).eval()
    rows = torch.tensor([[1.0], [torch.nan], [2.0], [torch.nan]])
    callable_ = torch.export.export(model, (rows,)).module() if program else model
    with nan_predictions(callable_) as found:
        callable_(rows)
    callable_(rows)
    assert found.rows == 2


def test_outputs_that_are_no_dense_tensors_are_not_looked_at():
    odd = (torch.tensor(torch.nan), torch.zeros(0, 3), torch.ones(2, 2).to_sparse(), torch.tensor([1]), "text", None)
    with nan_predictions(nn.Identity()) as found:
        found.count(nn.Identity(), (), {"scores": odd, "hidden": [torch.zeros(2, 2, dtype=torch.complex64)]})
    assert found.rows == 1
    assert nan_weights({"a": torch.tensor([1.0, torch.nan]), "mask": torch.tensor([-torch.inf]), "n": 3}) == ("a",)


@pytest.mark.matrix
def test_a_file_of_the_held_back_rows_that_changed_is_refused(monthly):
    monthly.write(1, 2, 3)
    job = trained(monthly, 4)
    monthly.write(3, slope=5.0)
    with pytest.raises(RetrainJobError, match=r"2013-03.parquet has changed since the run began"):
        run_job(job, what="evaluation", on_line=lambda line: None)


def test_weights_keep_order_extra_state_and_shared_tensors():
    shared = torch.arange(6.0).reshape(2, 3)
    state = OrderedDict(b=shared, a=shared.t(), inner__extra_state={"calls": 3, "sum": torch.tensor([1.5])})
    found = state_of(weights_bytes(state, component="model"))
    assert [*found] == ["b", "a", "inner__extra_state"]
    assert torch.equal(found["a"], shared.t())
    assert found["inner__extra_state"]["calls"] == 3
    assert torch.equal(found["inner__extra_state"]["sum"], torch.tensor([1.5]))


@pytest.mark.parametrize("state", [{}, {"x": 1}, {"x": torch.zeros(1), "y": object()}])
def test_what_is_no_state_dict_is_not_published(state):
    with pytest.raises(PublishError, match=r"extra\.x cannot be published"):
        weights_bytes(state, component="extra.x")


@pytest.mark.matrix
def test_a_component_that_is_not_there_is_named(monthly):
    monthly.write(1, 2, 3)
    monthly.write_spec(publish={"component": "extra.average", "model": "tests.recipes.monthly:model"})
    job = trained(monthly, 4)
    with pytest.raises(PublishError, match=r"component extra.average .* it has .*model"):
        evaluated(job)
