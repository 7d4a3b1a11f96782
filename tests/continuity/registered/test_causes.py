"""What a resume knows is named: of hooks, settings, modules, registered values that build reads, and batches."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.continuity.blind.cases import Axis, Case
from benchmarks.continuity.blind.trial import Bench, outcome_of, parent_of
from benchmarks.continuity.faults import Fault
from benchmarks.continuity.scripts.base import mse, net, recipe
from segue.continuity.naming import NO_BATCHES_FIX
from segue.continuity.recipe_diff import HYPERPARAMETERS, SURROUNDINGS, SetupChanges
from segue.continuity.verdict import Digests, judge
from segue.records import Finding, VerdictKind, WitnessRow
from tests.continuity.test_untracked import recipe_with, trained

ACT = {}


@pytest.fixture(autouse=True)
def quiet():
    log = logging.getLogger("segue")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def test_a_dict_of_a_hook_with_the_names_of_layers_is_named():
    model = nn.Sequential()
    model.add_module("l1", nn.Linear(4, 4))
    model.add_module("l2", nn.Linear(4, 1))
    kept = {"l1": torch.zeros(4)}
    ACT.clear()
    model.l1.register_forward_hook(lambda module, given, found: kept.update(l1=found.detach().mean(0)))
    model.l2.register_forward_hook(lambda module, given, found: ACT.update(l2=found.detach().mean(0)))
    model.means = {"l1": 0.0}

    def step(model):
        model.means["l1"] += 1.0

    said = " ".join(finding.sentence for finding in trained(recipe_with(step, model=model)))
    assert all(name in said for name in ("kept", "ACT", "means"))


def test_a_variable_of_a_hook_with_the_name_of_a_parameter_is_named():
    model, bias = nn.Linear(4, 1), [0.0]
    model.register_forward_hook(lambda module, given, found: bias.append(1.0))
    (finding,) = trained(recipe_with(lambda _: None, model=model))
    assert "hook.bias" in finding.sentence


def of_plain(config):
    return recipe(net())


def resumed(tmp_path, change, *, recipe_path=f"{__name__}:of_plain"):
    """What a resume says where somebody makes this change to the live recipe after the restore."""
    case = Case("changed", Axis.DRIFT, recipe_path)
    bench = Bench(case, tmp_path)
    first = bench.attempt("store", number=0, stop_step=36)
    parent = parent_of(first.history)
    fault = Fault(checked=lambda live: change(live.recipe.model))
    return outcome_of(case, bench.attempt("store", number=1, stop_step=parent.step + 8, parent=parent, fault=fault))


def _set(index, name, value):
    return lambda model: setattr(model[index], name, value)


CHANGES = {
    "p of a dropout": (_set(3, "p", 0.6), "model.3.p was 0.1 as built, now 0.6"),
    "eps of a batch norm": (_set(1, "eps", 0.5), "model.1.eps was 1e-05 as built, now 0.5"),
    "momentum of a batch norm": (_set(1, "momentum", 0.9), "model.1.momentum was 0.1 as built, now 0.9"),
    "forward hook": (
        lambda model: model[2].register_forward_hook(lambda module, given, found: found * 1.5),
        "model.2 (forward hooks): 0 as built, now 1",
    ),
    "hook of a gradient": (
        lambda model: model[0].weight.register_hook(lambda grad: grad * 1.5),
        "model.0.weight (hooks of its gradient): 0 as built, now 1",
    ),
    "module": (lambda model: model.__setitem__(2, nn.Tanh()), "model.2 was a ReLU, now a Tanh"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", CHANGES)
def test_what_somebody_changes_after_the_restore_is_named_as_the_cause(name, tmp_path):
    change, said = CHANGES[name]
    outcome = resumed(tmp_path, change)
    assert outcome.verdict == "broken"
    assert said in outcome.sentence, outcome.sentence
    assert outcome.component.startswith("setup.")
    assert "after the restore" in outcome.fix


def of_file(config):
    """Begins with the best loss that the attempt before has written."""
    path = Path(os.environ["BEST_LOSS_FILE"])
    best = {"loss": json.loads(path.read_text())["loss"] if path.exists() else 9.0}

    def loss(model, batch):
        value = mse(model, batch)
        best["loss"] = min(best["loss"], value.item())
        path.write_text(json.dumps(best))
        return value * (1 + 0.01 * best["loss"])

    return recipe(net(), loss, extra={"best": best})


@pytest.mark.matrix
def test_a_registered_value_that_build_reads_from_a_file_is_no_changed_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("BEST_LOSS_FILE", str(tmp_path / "best.json"))
    outcome = resumed(tmp_path, lambda model: None, recipe_path=f"{__name__}:of_file")
    assert outcome.verdict == "exact", outcome.sentence


DIGESTS = Digests({"model": "a"}, {})


def row(**fields):
    common = {
        "step": 5,
        "batch_fingerprint": "b",
        "input_fingerprint": "i",
        "lr": (0.1,),
        "loss": 1.0,
        "grad_norm": 1.0,
    }
    return WitnessRow.model_validate(common | {"param_norm": 1.0} | fields)


def verdict_of(witness, replay, **fields):
    return judge(committed=DIGESTS, restored=DIGESTS, witness=witness, replay=replay, environment_changes=(), **fields)


def test_a_resume_without_a_replayed_row_names_what_is_not_as_recorded():
    files = Finding(component=HYPERPARAMETERS, channel="setup", sentence="a setting changed: files.0 was 'a', now 'b'")
    seen = Finding(component=SURROUNDINGS, channel="setup", sentence="what the code reads changed: file x")
    verdict = verdict_of([row()], [], setup=SetupChanges(noted=(files, seen)))
    assert verdict.kind is VerdictKind.UNVERIFIED
    assert all(finding.sentence in verdict.sentence for finding in (files, seen))
    assert verdict_of([row()], []).findings == ()
    assert verdict_of([row()], [row()], setup=SetupChanges(noted=(files,))).kind is VerdictKind.EXACT


def test_where_no_batch_is_seen_the_sentence_says_so():
    unseen = {"batch_fingerprint": "", "input_fingerprint": ""}
    verdict = verdict_of([row(**unseen)], [row(**unseen, loss=2.0)])
    assert "same batch" not in verdict.sentence
    assert "a batch that segue cannot see" in verdict.sentence
    assert NO_BATCHES_FIX in verdict.findings[0].fix
    assert "on the same batch" in verdict_of([row()], [row(loss=2.0)]).sentence
