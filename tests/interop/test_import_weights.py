"""A run that begins with somebody's weights is the run that a recipe with those weights would have made."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from segue.checkpoints.format.state_tree import decode_tree
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.controller.steps import decide_next
from segue.curves.frame import curve
from segue.data.order import SampleOrder
from segue.interop.export import ExportFormat, write_export
from segue.interop.import_weights import import_weights
from segue.policy.estimates import situation
from segue.records import Capacity, StopReason, VerdictKind
from segue.reports.tables import checkpoint_rows, segment_rows
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import open_store
from segue.testing.clock import FakeClock
from segue.testing.recipes import tiny

TIED, HALF = "tests.recipes.imported:tied", "tests.recipes.imported:half"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def weights(tmp_path) -> Path:
    """The tiny model, trained a little by somebody else."""
    torch.manual_seed(11)
    recipe = tiny({})
    for _ in range(5):
        recipe.optimizer.zero_grad()
        recipe.loss(recipe.model, next(iter(recipe.data))).backward()
        recipe.optimizer.step()
    torch.save(recipe.model.state_dict(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def log_of(spec) -> RunLog:
    return RunLog(open_store(spec.store), spec.run_id).reload()


def state_of(spec, checkpoint=None) -> dict:
    log = log_of(spec)
    manifest = (checkpoint or read_history(log).newest).manifest
    snapshot = read_checkpoint(log.store, run_id=spec.run_id, manifest=manifest)
    return {name: decode_tree(skeleton, snapshot.tensors) for name, skeleton in snapshot.skeletons.items()}


def assert_same_tensors(one, other):
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), name


def by_hand(weights: Path, *, steps: int):
    """The same training as anybody would write it, without a checkpoint."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    recipe = tiny({})
    recipe.model.load_state_dict(torch.load(weights, weights_only=True))
    features, targets = recipe.data.dataset.tensors
    order, seen = SampleOrder(count=256, batch_size=32, seed=0, shuffle=True, drop_last=False), 0
    for _ in range(steps):
        ids = order.batch(seen).tolist()
        seen += len(ids)
        recipe.optimizer.zero_grad()
        nn.functional.mse_loss(recipe.model(features[ids]), targets[ids]).backward()
        nn.utils.clip_grad_norm_(recipe.model.parameters(), 5.0)
        recipe.optimizer.step()
        recipe.scheduler.step()
    return recipe


@pytest.mark.matrix
def test_an_import_trained_to_the_end_is_bit_for_bit_the_loop_written_by_hand(
    fork_server, make_spec, open_log, weights
):
    spec = make_spec()
    report = import_weights(spec, weights)
    assert (report.step, report.prefix, report.kept_as_built) == (0, "", ())
    first = state_of(spec)
    assert_same_tensors(first["model"]["state"], torch.load(weights, weights_only=True))
    assert (first["progress"], first["optimizer"]["state"]) == ({"step": 0, "samples_seen": 0}, {})
    assert all(first["modes"]["training"].values())
    fork_server.run_to_the_end(open_log(spec), spec)
    hand, trained = by_hand(weights, steps=40), state_of(spec)
    assert_same_tensors(trained["model"]["state"], hand.model.state_dict())
    moments = hand.optimizer.state_dict()["state"]
    for number, slots in trained["optimizer"]["state"].items():
        assert_same_tensors(slots, moments[number])


@pytest.mark.matrix
def test_an_import_is_the_run_of_a_recipe_that_loads_the_weights_itself(fork_server, make_spec, open_log, weights):
    imported = make_spec()
    itself = make_spec(run_id="itself", recipe="tests.recipes.imported:pretrained", config={"weights": str(weights)})
    import_weights(imported, weights)
    digests = []
    for spec in (imported, itself):
        fork_server.run_to_the_end(open_log(spec), spec)
        components = read_history(log_of(spec)).newest.manifest.components
        digests.append({name: components[name] for name in components if name != "loose" and name[:6] != "setup."})
    assert digests[0] == digests[1]
    assert {"model", "optimizer", "scheduler", "extra.average", "rng.torch", "progress"} <= digests[0].keys()


@pytest.mark.matrix
def test_the_log_says_where_the_weights_came_from_and_the_run_goes_on_as_from_any_commit(
    fork_server, make_spec, open_log, weights
):
    spec = make_spec()
    import_weights(spec, weights)
    before = read_history(log_of(spec))
    assert (before.open_plan, before.committed_step, before.newest.manifest.parent) == (None, 0, None)
    source = before.newest.manifest.imported_from
    assert (source.name, source.size_bytes) == ("weights.pt", weights.stat().st_size)
    assert before.decisions[-1].reason.startswith(f"import of weights.pt (SHA-256 {source.sha256})")
    assert before.last_reports()[0].stop_reason is StopReason.BOUND
    fork_server.run_to_the_end(open_log(spec), spec)
    history = read_history(log_of(spec))
    assert [(a.claim.segment, a.claim.attempt, a.claim.epoch) for a in history.attempts] == [(0, 1, 1), (1, 1, 2)]
    resume = history.attempts[1]
    assert (resume.verdict.kind, resume.verdict.findings) == (VerdictKind.UNVERIFIED, ())
    assert history.resumes[0].parent == before.newest.ref
    rows = segment_rows(history)
    assert [(r["segment"], r["pool"], r["steps"], r["verdict"]) for r in rows] == [
        ("0", "import", "0-0", "-"),
        ("1", "spot", "0-40", "unverified, 0 steps"),
    ]
    assert checkpoint_rows(history)[0]["reason"].startswith("imported from weights.pt (SHA-256 ")
    assert list(curve(log_of(spec))["step"]) == list(range(1, 41))


def test_an_import_charges_no_budget_and_no_seconds(make_spec, weights):
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    spec = make_spec()
    import_weights(spec, weights, clock=clock)
    log = RunLog(open_store(spec.store), spec.run_id, clock=clock)
    history = read_history(log)
    assert [history.seconds_on(capacity) for capacity in Capacity] == [0, 0]
    # Days later somebody starts it with a deadline: the probes have all of their share of that time.
    now = datetime.now(UTC) + timedelta(days=4)
    hurried = spec.model_copy(update={"deadline": now + timedelta(seconds=10_000)})
    here = situation(hurried, history, now=now)
    assert here.probe_seconds == pytest.approx(1_000)
    assert decide_next(log, hurried, clock=FakeClock(now)).plan.capacity is Capacity.SPOT


@pytest.mark.parametrize(
    "file_format", [ExportFormat.TORCH, pytest.param(ExportFormat.SAFETENSORS, marks=pytest.mark.matrix)]
)
def test_an_export_is_imported_bit_for_bit(fork_server, make_spec, open_log, tmp_path, file_format):
    spec = make_spec(steps=10)
    log = open_log(spec)
    fork_server.run_to_the_end(log, spec)
    write_export(log, read_history(log).newest, file_format=file_format, folder=tmp_path / "out")
    ending = "pt" if file_format is ExportFormat.TORCH else "safetensors"
    again = make_spec(run_id="again")
    report = import_weights(again, tmp_path / "out" / f"model.{ending}")
    there, here = state_of(spec)["model"], state_of(again)["model"]
    assert_same_tensors(here["state"], there["state"])
    assert here["metadata"] == there["metadata"]
    assert report.file.name == f"model.{ending}"


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module.model."])
def test_what_a_wrapper_put_before_every_name_is_taken_off_and_told(make_spec, weights, prefix):
    plain = torch.load(weights, weights_only=True)
    torch.save({f"{prefix}{name}": value for name, value in plain.items()}, weights)
    report = import_weights(make_spec(), weights)
    assert report.prefix == prefix
    assert f"the prefix '{prefix}' was removed from every name in the file" in report.notes
    assert_same_tensors(state_of(make_spec())["model"]["state"], plain)


def test_names_that_the_model_itself_begins_so_are_left_alone_and_tied_weights_are_there_once(make_spec, tmp_path):
    weight = torch.arange(16.0).view(4, 4)
    safetensors.torch.save_file({"model.weight": weight}, tmp_path / "tied.safetensors")
    report = import_weights(make_spec(recipe=TIED), tmp_path / "tied.safetensors")
    assert (report.prefix, report.kept_as_built) == ("", ())
    state = state_of(make_spec(recipe=TIED))["model"]["state"]
    assert torch.equal(state["head.weight"], weight)
    assert torch.equal(state["model.weight"], weight)


def test_a_file_that_lacks_some_is_taken_with_partial_and_the_rest_is_as_a_fresh_run_has_it(make_spec, weights):
    given = torch.load(weights, weights_only=True)
    head = ("4.weight", "4.bias")
    torch.save({name: value for name, value in given.items() if name not in head}, weights)
    report = import_weights(make_spec(), weights, partial=True)
    assert report.kept_as_built == head
    assert (
        "the recipe's initial values are used for weights that the file does not contain: 4.weight, 4.bias"
        in report.notes
    )
    torch.manual_seed(0)
    expected = dict(tiny({}).model.state_dict()) | {name: given[name] for name in given if name not in head}
    assert_same_tensors(state_of(make_spec())["model"]["state"], expected)


def test_another_element_type_is_converted_and_told(make_spec, tmp_path):
    wide = {"weight": torch.rand(4, 4), "bias": torch.rand(4)}
    safetensors.torch.save_file(wide, tmp_path / "wide.safetensors")
    report = import_weights(make_spec(recipe=HALF), tmp_path / "wide.safetensors")
    assert report.notes == ("converted to the model's element type: weight, bias",)
    expected = {name: value.half() for name, value in wide.items()}
    assert_same_tensors(state_of(make_spec(recipe=HALF))["model"]["state"], expected)


def test_a_run_can_count_from_a_later_step(fork_server, make_spec, open_log, weights):
    spec = make_spec(steps=30)
    import_weights(spec, weights, step=20)
    newest = read_history(log_of(spec)).newest.manifest
    assert (newest.step, newest.samples_seen, newest.epoch) == (20, 640, 2)
    fork_server.run_to_the_end(open_log(spec), spec)
    history = read_history(log_of(spec))
    assert history.newest.manifest.samples_seen == 960
    assert [(row["pool"], row["steps"], row["verdict"]) for row in segment_rows(history)] == [
        ("import", "20-20", "-"),
        ("spot", "20-30", "unverified, 0 steps"),
    ]
    assert list(curve(log_of(spec))["step"]) == list(range(21, 31))


@pytest.mark.parametrize("count", [9, 10, 12])
@pytest.mark.parametrize("batch_size", [3, 4, 9, 20])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_samples_before_a_step_are_those_of_its_batches(count, batch_size, drop_last):
    order, seen = SampleOrder(count=count, batch_size=batch_size, seed=1, shuffle=True, drop_last=drop_last), 0
    if order.samples_per_epoch == 0:
        return  # No recipe has such data.
    for step in range(30):
        assert order.position_after(step) == seen
        seen += len(order.batch(seen))


def test_an_old_log_without_the_new_field_is_read_as_trained_here(make_spec, weights):
    spec = make_spec()
    import_weights(spec, weights)
    manifest = read_history(log_of(spec)).newest.manifest
    old = json.loads(manifest.model_dump_json())
    del old["imported_from"]
    assert type(manifest).model_validate(old).imported_from is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_import_holds_no_stream_of_this_machines_accelerator_and_is_trained_on_one(
    fork_server, make_spec, open_log, weights
):
    spec = make_spec(device="cuda")
    import_weights(spec, weights)
    assert "rng.cuda" not in state_of(spec)
    fork_server.run_to_the_end(open_log(spec), spec)
    history = read_history(log_of(spec))
    assert (history.committed_step, history.resumes[0].verdict.kind) == (40, VerdictKind.UNVERIFIED)
