"""A checkpoint from Python in one call: as plain values, or as plain files."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from segue.errors import QuarantinedCheckpointError, RunNotFoundError, UnknownStepError
from segue.interop.export import export_checkpoint
from segue.interop.load import load_checkpoint
from segue.testing.recipes import tiny
from tests.support.trained_run import WIDTH, names_in


@pytest.mark.matrix
def test_every_component_loads_into_the_object_that_it_came_from(trained):
    state = load_checkpoint("tiny", store=trained.store)
    recipe = tiny({"width": WIDTH})
    recipe.model.load_state_dict(state["model"])
    recipe.optimizer.load_state_dict(state["optimizer"])
    recipe.scheduler.load_state_dict(state["scheduler"])
    recipe.extra["average"].load_state_dict(state["extra.average"])
    stored = trained.state(40)
    assert all(torch.equal(recipe.model.state_dict()[name], value) for name, value in stored["model"]["state"].items())
    assert recipe.scheduler.last_epoch == 40
    assert (state["progress"]["step"], state["progress"]["samples_seen"]) == (40, 40 * 32)
    assert not any(name.startswith(("setup.", "data.")) or name == "loose" for name in state)


def test_all_values_are_tensors_and_plain_ones(trained):
    def kinds(tree):
        if isinstance(tree, dict):
            return set().union(*map(kinds, tree.values()))
        if isinstance(tree, (list, tuple)):
            return set().union(*map(kinds, tree))
        return {type(tree)}

    found = kinds(load_checkpoint("tiny", store=str(trained.store), step=10))
    assert found <= {torch.Tensor, int, float, bool, str, bytes, type(None)}


def test_loading_draws_from_no_random_stream(trained):
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    load_checkpoint("tiny", store=trained.store)
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize(
    ("run", "step", "refused"),
    [("nightly", None, RunNotFoundError), ("tiny", 11, UnknownStepError), ("tiny", 30, QuarantinedCheckpointError)],
)
def test_what_is_not_there_or_not_sound_is_refused(trained, tmp_path, run, step, refused):
    with pytest.raises(refused):
        load_checkpoint(run, store=trained.store, step=step)
    with pytest.raises(refused):
        export_checkpoint(run, tmp_path / "out", store=trained.store, step=step)
    assert names_in(tmp_path) == set()


def test_an_export_of_the_newest_checkpoint_is_one_call(trained, tmp_path):
    report = export_checkpoint("tiny", tmp_path / "out", store=trained.store, file_format="safetensors")
    assert (report.run_id, report.step, report.format) == ("tiny", 40, "safetensors")
    assert {file.name for file in report.files} == names_in(tmp_path / "out")
    assert "model.safetensors" in names_in(tmp_path / "out")


def test_a_quarantined_checkpoint_is_exported_on_request(trained, tmp_path):
    assert (
        export_checkpoint("tiny", str(tmp_path / "out"), store=trained.store, step=30, take_quarantined=True).step == 30
    )
