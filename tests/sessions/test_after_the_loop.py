"""What follows the loop of a program is part of its run: it runs until the program has ended by itself."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime

import pytest

from segue.policy.decide import decide
from segue.records import StopReason
from segue.runlog.history import read_history

STEPS = 12
PROGRAM = """
import sys, time
import torch
import segue

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = segue.session()
run.track(model=model, optimizer=optimizer)
for _ in run.steps():
    loss = model(torch.randn(6, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
while "hang" in sys.argv:
    time.sleep(0.1)
if "raise" in sys.argv:
    raise ValueError("no place to publish")
torch.save(model.state_dict(), sys.argv[1])
"""


@pytest.fixture
def make_program(make_spec, tmp_path):
    (tmp_path / "publishes.py").write_text(PROGRAM)

    def make(*options):
        command = ["python", str(tmp_path / "publishes.py"), str(tmp_path / "published.pt"), *options]
        return make_spec(recipe=None, program={"command": command}, steps=STEPS, grace_seconds=2.0)

    return make


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("option", "number", "reason"),
    [
        ("hang", signal.SIGKILL, StopReason.LOST),
        ("hang", signal.SIGTERM, StopReason.NOTICE),
        ("raise", None, StopReason.FAILED),
    ],
    ids=["killed", "cut off by a notice", "raised"],
)
def test_another_attempt_makes_no_step_and_runs_it_again(
    fork_server, make_program, open_log, tmp_path, option, number, reason
):
    def stop_after_the_loop(pid, log, plan):
        is_there = number is not None and read_history(log.reload()).committed_step == STEPS
        if is_there:
            os.kill(pid, number)
        return is_there

    broken, whole = make_program(option), make_program()
    runlog = open_log(broken)
    first = fork_server.run_attempt(runlog, broken, observer=stop_after_the_loop)
    assert (first.stop_reason, first.to_step, first.lost_steps) == (reason, STEPS, 0)
    if first.notice is not None:
        assert first.notice.phase == "end"
        assert first.note == "the notice came during the code after the program's loop, which did not end in time"
    decision = decide(whole, read_history(runlog.reload()), now=datetime.now(UTC))
    assert decision.action == "run"
    assert decision.reason.startswith("the code after the program's loop was cut off, and must run; ")
    assert not (tmp_path / "published.pt").exists()

    report = fork_server.run_attempt(runlog, whole)
    assert (report.failure, report.stop_reason, report.train_steps) == (None, StopReason.FINISHED, 0)
    assert (tmp_path / "published.pt").exists()
    assert decide(whole, read_history(runlog.reload()), now=datetime.now(UTC)).action == "finished"
