"""A tracked model or optimizer whose structure changes in mid-run is refused at the first save after the change."""

from __future__ import annotations

import pytest

from segue.records import StopReason
from segue.runlog.history import read_history

SCRIPT = """
import torch
import torch.nn.utils.prune
from torch import nn
import segue

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model[0].parameters(), lr=0.01)
with segue.session() as run:
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(40):
        if step == 13:
            CHANGE
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
"""


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "optimizer.add_param_group({'params': list(model[2].parameters())})",
            "optimizer holds model.2.bias, model.2.weight since",
        ),
        ("model.add_module('more', nn.Linear(1, 1))", "module model.more (Linear(in_features=1"),
        ("nn.utils.prune.l1_unstructured(model[0], 'weight', 0.5)", "model.0.weight is no longer a parameter"),
        ("model[0].requires_grad_(True).eval()", None),
    ],
)
def test_a_change_that_no_resume_makes_ends_the_program_at_its_next_save(
    fork_server, make_spec, open_log, tmp_path, change, said
):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("CHANGE", change))
    spec = make_spec(program={"command": ["python", str(script)]}, recipe=None)
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    committed = read_history(runlog.reload()).committed_step
    if said is None:
        assert (report.stop_reason, report.failure, committed) == (StopReason.FINISHED, None, 40)
        return
    assert (report.stop_reason, report.failure.type, committed) == (StopReason.FAILED, "StructureChangedError", 10)
    assert said in report.failure.message
