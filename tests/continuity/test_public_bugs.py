"""Bugs of resumes that public projects had, replayed: segue finds each before it commits, and names what was lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from segue.continuity.naming import UNREGISTERED
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.recipes.public_bugs import BUGS

pytestmark = pytest.mark.matrix

# Where it was reported, what it does (tests/public_bugs), component named, channel, first step that differs.
FOUND = [
    ("mosaicml/composer#1376", "scaler_made_after_the_load", "scaler", "digest", None),
    ("facebookresearch/metaseq#3", "growth_counter_not_saved", UNREGISTERED, "loss_scale", 15),
    ("KempnerInstitute/KempnerForge#115", "moments_filled_into_a_fresh_optimizer", "optimizer", "digest", None),
    ("m2lines/Samudra#313", "average_started_anew", "extra.average", "digest", None),
    ("atomistic-machine-learning/schnetpack#785", "average_loaded_as_the_weights", "model", "digest", None),
    ("karpathy/nanoGPT#325", "prefix_of_compile_and_not_strict", "model", "digest", None),
    ("torch-points3d/torch-points3d#630", "scheduler_resets_the_rate", "optimizer", "digest", None),
    ("huggingface/nanotron#256", "schedule_from_the_current_rate", UNREGISTERED, "lr", 12),
    ("pytorch/pytorch#1489", "parameters_in_another_order", "setup.binding", "setup", None),
    ("TensorAuto/OpenTau#185", "masters_rebuilt_from_bf16", UNREGISTERED, "param_norm", 11),
    ("huggingface/accelerate#1204", "tie_lost", "modes", "digest", None),
    ("modelscope/ms-swift#9935", "seeded_at_the_first_batch", UNREGISTERED, "streams", None),
    ("ai2cm/ace#690", "generator_of_the_data_set", UNREGISTERED, "input_fingerprint", None),
    ("huggingface/transformers#25956", "batch_size_found_anew", "setup.hyperparameters", "setup", None),
]

NAMED = {
    "growth_counter_not_saved": "scaler (NoCounter): _growth_tracker",
    "schedule_from_the_current_rate": "scheduler._base (attribute): was 0.01, now None",
    "masters_rebuilt_from_bf16": "optimizer (Masters): _masters",
    "seeded_at_the_first_batch": "data.dataset.ready",
    "generator_of_the_data_set": "data.dataset._generator",
}
"""What the sentence must name where no component holds the state."""

# These cannot happen: what those projects forgot is a component of every checkpoint.
OF_MODES = [
    ("Lightning-AI/pytorch-lightning#21901", "frozen_again_by_the_build"),
    ("pgniewko/gt-pyg#112", "norm_trained_again_by_train"),
]


def resumed(fork_server, make_spec, open_log, tmp_path, bug):
    """Train to step 18, where the commit of step 10 has all its witness rows, raise, and resume from there."""
    config = {"bug": bug, "marker": str(tmp_path / "built-before"), "raise_at_step": 19}
    spec = make_spec(recipe="tests.recipes.public_bugs:build", config=config, steps=24)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    assert read_history(runlog).committed_step == 10
    # Its 19th step would be beyond the goal: the second attempt is the same recipe with the same config.
    report = fork_server.run_attempt(runlog, spec)
    return report, read_history(runlog)


@pytest.mark.parametrize(("source", "bug", "component", "channel", "step"), FOUND, ids=[row[0] for row in FOUND])
def test_a_bug_that_a_project_had_is_broken_and_named(
    fork_server, make_spec, open_log, tmp_path, source, bug, component, channel, step
):
    report, history = resumed(fork_server, make_spec, open_log, tmp_path, bug)
    verdict = history.attempts[-1].verdict
    assert verdict.kind is VerdictKind.BROKEN, source
    finding = verdict.findings[0]
    assert (finding.component, finding.channel, finding.step) == (component, channel, step)
    assert NAMED.get(bug, "") in finding.sentence
    assert finding.fix
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "BrokenResumeError")
    assert history.committed_step == 10


def assert_exact(report, history):
    verdict = history.attempts[-1].verdict
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 8)
    assert report.stop_reason is StopReason.FINISHED


def barely_built(bug):
    recipe = SimpleNamespace(model=nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), after_step=lambda step: None)
    BUGS[bug](recipe, {})
    return recipe


def modes(model):
    return [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize(("source", "bug"), OF_MODES, ids=[row[0] for row in OF_MODES])
def test_modes_that_a_script_loses_come_back(fork_server, make_spec, open_log, tmp_path, source, bug):
    trained, again = barely_built(bug), barely_built(bug)
    trained.after_step(5)
    # What a script restores that knows of the weights only.
    again.model.load_state_dict(trained.model.state_dict())
    again.model.train()
    assert modes(again.model) != modes(trained.model)
    assert_exact(*resumed(fork_server, make_spec, open_log, tmp_path, bug))


def test_state_that_torch_rounds_when_it_loads_comes_back(fork_server, make_spec, open_log, tmp_path):
    """pytorch/pytorch#43706: floating point state is cast to its parameter's type."""
    assert_exact(*resumed(fork_server, make_spec, open_log, tmp_path, "fp32_state_cast_to_bf16"))
