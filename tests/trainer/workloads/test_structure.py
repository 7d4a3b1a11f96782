"""Changes of the structure in mid-run: what a resume builds again is restored, all else is refused at once."""

from __future__ import annotations

import timeit

import pytest
import torch
from torch import nn

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.trainer.workloads.components import StatefulComponent
from segue.trainer.workloads.structure import Structure
from tests.trainer.workloads.interrupted import assert_exact, killed_once, undisturbed
from tests.trainer.workloads.reshaped import REFUSED, RESTORED

ROWS = 4


@pytest.fixture
def make_reshaped(make_spec, tmp_path):
    def make(kind, **config):
        return make_spec(
            run_id="reshaped",
            recipe="tests.trainer.workloads.reshaped:reshaped",
            config={"kind": kind, "once": str(tmp_path / "hung")} | config,
            continuity={"rehearsal": "off", "witness_steps": ROWS},
        )

    return make


@pytest.mark.matrix
@pytest.mark.parametrize("kind", RESTORED)
def test_a_change_that_a_resume_builds_again_is_saved_and_restored(fork_server, make_reshaped, kind):
    spec = make_reshaped(kind, hang_at=27)
    history = killed_once(fork_server, spec, at=20, rows=ROWS)
    assert_exact(history, undisturbed(fork_server, spec), rows=ROWS)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if number < 3 else pytest.mark.matrix) for number, kind in enumerate(REFUSED)]
)
def test_any_other_change_is_refused_at_the_first_save_after_it(fork_server, make_reshaped, open_log, kind):
    spec = make_reshaped(kind)
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "StructureChangedError")
    said = report.failure.message
    assert said.startswith(
        "The structure of the model or an optimizer changed during training; a resume would lack the change: "
    )
    assert REFUSED[kind] in said
    assert "Nothing was saved at step 20; the run keeps its checkpoints up to step 10. Fix: build the structure" in said
    assert read_history(runlog.reload()).committed_step == 10
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert decision.plan is None, "another attempt would train the same steps and be refused at the same step"
    assert REFUSED[kind] in decision.reason


def test_a_look_at_300_tensors_that_have_not_changed_costs_less_than_a_walk_over_their_names():
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(75)]
    model = nn.Sequential(*blocks)
    structure = Structure({"": model}, {"optimizer": torch.optim.AdamW(model.parameters())})
    assert len([*model.parameters()]) == 300

    def walk():
        return [*model.named_parameters()]

    # The shortest of many, in turn: another process may take the processor from any of them.
    seconds = [(timeit.timeit(structure.changes, number=1), timeit.timeit(walk, number=1)) for _ in range(1000)]
    look, names = map(min, zip(*seconds, strict=True))
    assert look < names


def test_a_look_is_short_again_after_a_change_that_is_restored():
    model = nn.Sequential(nn.Linear(2, 2))
    structure = Structure({"": model}, {})
    model[0].weight = nn.Parameter(torch.ones(2, 2))
    assert not structure._watched.is_unchanged()
    assert structure.changes() == (), "no optimizer holds the former one, and the checkpoint has its values"
    assert structure._watched.is_unchanged()


def test_a_parameter_of_the_same_name_in_another_module_is_seen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    structure = Structure({"": model}, {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})
    model[0].weight, model[1].weight = model[1].weight, model[0].weight
    changes = structure.changes()
    assert [change.partition(" ")[0] for change in changes] == ["0.weight", "1.weight"]


def test_a_module_in_extra_gets_buffers_of_other_shapes_back():
    def average():
        module = nn.Linear(2, 2)
        module.register_buffer("history", torch.zeros(1))
        module.register_buffer("late", None)
        return module

    before, after = average(), average()
    before.history, before.late = torch.arange(3.0), torch.ones(2, dtype=torch.int64)
    StatefulComponent(after).restore(StatefulComponent(before).capture())
    assert torch.equal(after.history, before.history)
    assert torch.equal(after.late, before.late)


def test_new_buffers_of_a_module_in_extra_are_refused_because_its_own_load_state_dict_knows_none():
    model, average = nn.Linear(2, 2), nn.Linear(2, 2)
    structure = Structure({"": model, "extra.average": average}, {}, plain=("extra.average",))
    for module in (model, average):
        module.register_buffer("late", torch.zeros(1))
    assert structure.changes() == ("extra.average.late is a new buffer",)


def test_a_layer_without_parameters_in_a_container_is_seen():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    structure = Structure({"": model}, {})
    model.append(nn.Dropout(0.2))
    assert structure.changes() == ("module 2 (Dropout(p=0.2, inplace=False)) is new",)
    del model[2], model[1]
    assert structure.changes() == ("module 1 is gone",)
