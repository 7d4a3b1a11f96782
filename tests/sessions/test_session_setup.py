"""The setup of a program, compared at a resume: its code, its arguments, and what it builds and tracks."""

from __future__ import annotations

import signal

import pytest

from segue.errors import CodeChangedError
from segue.interop.code_check import refuse_changed_code
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

SCRIPT = """
import json, sys, time
from pathlib import Path
import torch
from torch import nn
import segue
import loss_of_a_program

settings = json.loads((Path(__file__).parent / "settings.json").read_text())
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(settings["dropout"]), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])
if settings["only_last"]:
    optimizer.param_groups[0]["params"][:2] = list(nn.Linear(4, 4).parameters())
with segue.session() as run:
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(60):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        loss = loss_of_a_program.loss(model(torch.randn(8, 4)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
        if step == 19 and settings["hangs"]:
            time.sleep(600)
"""
LOSS = "def loss(x):\n    return x.square().mean()\n"
SETTINGS = '{"dropout": 0.1, "lr": 0.01, "weight_decay": 0.1, "only_last": false, "hangs": true}'
FILES = {"train.py": SCRIPT, "loss_of_a_program.py": LOSS, "settings.json": SETTINGS}
ARGUMENT = ("--an-argument",)


@pytest.fixture
def resumed(fork_server, make_spec, open_log, tmp_path, monkeypatch):
    """Kill the program after a commit, change its files, and resume it: the second report and the verdict."""
    monkeypatch.chdir(tmp_path)

    def run(file, old, new, *options, **fields):
        write = {name: (tmp_path / name).write_text for name in FILES}
        for name, text in FILES.items():
            write[name](text)
        common = {"recipe": None, "steps": 60, "checkpoints": {"every_steps": 10}}
        spec = make_spec(program={"command": ["python", str(tmp_path / "train.py")]}, **common)
        runlog = open_log(spec)
        fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
        (tmp_path / "settings.json").write_text(SETTINGS.replace("true", "false"))
        text = (tmp_path / file).read_text()
        assert old in text
        write[file](text.replace(old, new))
        command = ["python", str(tmp_path / "train.py"), *options]
        again = make_spec(program={"command": command}, **common | fields)
        report = fork_server.run_attempt(runlog, again)
        return report, read_history(runlog.reload()).attempts[1].verdict, runlog, again

    return run


def test_a_program_that_did_not_change_is_exact_and_its_data_not_compared(resumed):
    report, verdict, runlog, spec = resumed("train.py", "import loss", "# a comment\nimport loss")
    assert report.stop_reason is StopReason.FINISHED
    assert (verdict.kind, verdict.findings) == (VerdictKind.EXACT, ())
    assert verdict.not_compared == ("the data set", "which samples a batch has", "the content of batches")
    refuse_changed_code(runlog, spec, None)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("file", "old", "new", "component", "named"),
    [
        ("train.py", "run.report(loss=loss)", "run.report(loss=loss, twice=2 * loss)", "setup.code", "train.py is"),
        ("loss_of_a_program.py", ".mean()", ".sum()", "setup.code", "loss_of_a_program.py: loss is changed"),
        (
            "settings.json",
            '"weight_decay": 0.1',
            '"weight_decay": 0.2',
            "setup.hyperparameters",
            "weight_decay was 0.1",
        ),
        ("settings.json", '"dropout": 0.1', '"dropout": 0.2', "setup.model", "modules.model.1 was"),
        ("settings.json", '"only_last": false', '"only_last": true', "setup.binding", "not a parameter"),
    ],
)
def test_a_changed_program_breaks_the_resume_and_is_named(resumed, file, old, new, component, named):
    report, verdict, _, _ = resumed(file, old, new)
    assert (report.stop_reason, verdict.kind) == (StopReason.FAILED, VerdictKind.BROKEN)
    found = [finding for finding in verdict.findings if finding.component == component]
    assert len(found) == 1
    assert named in found[0].sentence
    assert f"accept it by naming {component} in continuity.accept" in found[0].fix


@pytest.mark.matrix
def test_a_learning_rate_that_the_loop_sets_is_no_setting(resumed):
    report, verdict, _, _ = resumed("settings.json", '"lr": 0.01', '"lr": 0.5')
    assert (report.stop_reason, verdict.kind) == (StopReason.FINISHED, VerdictKind.EXACT)


def test_changed_code_is_refused_before_anything_starts_unless_it_is_accepted(resumed, make_spec):
    fields = {"continuity": {"accept": ["setup.code"]}}
    report, verdict, runlog, accepted = resumed("loss_of_a_program.py", "mean()", "mean() * 1.0", **fields)
    assert (report.stop_reason, verdict.kind) == (StopReason.FINISHED, VerdictKind.EXACT)
    refuse_changed_code(runlog, accepted, None)


@pytest.mark.matrix
def test_the_refusal_names_the_function(resumed, tmp_path):
    _, _, runlog, spec = resumed("train.py", "import loss", "import loss")
    (tmp_path / "loss_of_a_program.py").write_text(LOSS.replace("mean", "sum"))
    with pytest.raises(CodeChangedError) as caught:
        refuse_changed_code(runlog, spec, None)
    assert caught.value.names == ("loss_of_a_program.py: loss",)


@pytest.mark.matrix
def test_with_other_arguments_the_setup_may_differ(resumed):
    report, verdict, _, _ = resumed("loss_of_a_program.py", "mean()", "sum()", *ARGUMENT)
    assert (report.stop_reason, verdict.kind) == (StopReason.FINISHED, VerdictKind.UNVERIFIED)
