"""A machine without the accelerator that the run had: the machine's fault, unless the user asks for the processor."""

from __future__ import annotations

import pytest
import torch

from segue.controller.segment import TrainerEnd, report_or_lost
from segue.errors import AcceleratorGoneError, MachineError
from segue.launch.assignment import Assignment
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.trainer.claim import claim_run
from segue.trainer.process.environment import refuse_lost_accelerator
from tests.support.forked_trainers import next_plan
from tests.support.histories import ENVIRONMENT, Logbook, make_spec

GPU = ENVIRONMENT.model_copy(update={"device": "NVIDIA H100"})
CPU = ENVIRONMENT.model_copy(update={"device": "cpu"})


def book_of(*environments):
    book = Logbook(make_spec())
    for environment in environments:
        plan = book.plan()
        book.report(plan, StopReason.NOTICE, attempt_id=book.claim(plan, environment=environment))
    return book


@pytest.mark.parametrize(
    ("environments", "asked", "device", "is_refused"),
    [
        ((), "auto", "cpu", False),
        ((CPU,), "auto", "cpu", False),
        ((GPU,), "auto", "cpu", True),
        ((GPU, CPU), "auto", "cpu", True),
        ((GPU,), "cpu", "cpu", False),
        ((GPU,), "auto", "cuda:0", False),
    ],
)
def test_a_missing_accelerator_is_the_machines_fault_where_the_device_was_left_to_choose(
    environments, asked, device, is_refused
):
    history = book_of(*environments).history
    spec = make_spec().model_copy(update={"device": asked})
    if not is_refused:
        refuse_lost_accelerator(spec, history, device=torch.device(device))
        return
    with pytest.raises(AcceleratorGoneError, match="NVIDIA H100") as caught:
        refuse_lost_accelerator(spec, history, device=torch.device(device))
    assert isinstance(caught.value, MachineError)
    assert 'device = "cpu"' in caught.value.fix


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator")
def test_an_attempt_without_it_is_lost_and_the_next_one_on_the_processor_trains(fork_server, make_spec, open_log):
    spec = make_spec(steps=20, device="auto")
    runlog = open_log(spec)
    plan = next_plan(runlog, spec)
    claim_run(runlog, Assignment(spec=spec, plan=plan), environment=GPU)
    assert report_or_lost(runlog, plan, TrainerEnd(None)).stop_reason is StopReason.LOST
    lost = fork_server.run_attempt(runlog, spec)
    assert (lost.stop_reason, lost.attempt_id) == (StopReason.LOST, None), "nothing was claimed"
    assert len(read_history(runlog.reload()).attempts) == 1
    report = fork_server.run_attempt(runlog, spec.model_copy(update={"device": "cpu"}))
    assert report.stop_reason is StopReason.FINISHED, report.failure
