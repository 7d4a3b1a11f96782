"""A resume that lost nothing is exact, whatever the recipe is made of."""

from __future__ import annotations

import pytest
import torch

from segue.interop.export_readme import readme
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.workloads.components import UnsavedBuffers
from tests.recipes.clean import KINDS, Centred


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_that_lost_nothing_is_exact(fork_server, make_spec, open_log, kind):
    spec = make_spec(recipe="tests.recipes.clean:build", config={"kind": kind, "raise_at_step": 19}, steps=24)
    runlog = open_log(spec)
    assert fork_server.run_attempt(runlog, spec).failure.type == "ArithmeticError"
    assert fork_server.run_attempt(runlog, spec).stop_reason is StopReason.FINISHED
    verdict = read_history(runlog).attempts[-1].verdict
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 8)


def test_a_buffer_in_no_state_dict_comes_back_in_place_and_what_cannot_be_stored_is_made_anew():
    before, after = Centred(), Centred()
    before(torch.randn(4, 8))
    kept, held = UnsavedBuffers(before).capture(), after.mean
    assert kept.keys() == {"mean", "table"}
    UnsavedBuffers(after).restore({name: value.clone() for name, value in kept.items()})
    assert after.mean is held
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.table, before.table)
    assert after.links.is_sparse


def test_an_export_says_how_to_put_such_buffers_back():
    before, after = torch.nn.Sequential(Centred()), torch.nn.Sequential(Centred())
    before(torch.randn(4, 8))
    text = readme({"buffers": ("buffers.pt",)}, as_torch=True)
    lines = text[text.index('for name, buffer in component("buffers")') :].partition("```")[0]
    exec(lines, {"component": lambda name: UnsavedBuffers(before).capture(), "model": after})
    assert UnsavedBuffers(after).capture().keys() == {"0.mean", "0.table"}
    assert torch.equal(after[0].mean, before[0].mean)


def test_a_model_whose_buffers_are_all_saved_has_no_such_component():
    assert not UnsavedBuffers(torch.nn.BatchNorm1d(3)).is_needed()
    assert UnsavedBuffers(torch.nn.Sequential(Centred())).is_needed()
