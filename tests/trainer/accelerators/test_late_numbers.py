"""Numbers that are read a step later: the host waits for no accelerator, and everything else is as if it had."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import segue
from segue.continuity.witness import Witness
from segue.recipe import Recipe
from segue.records import Skip, StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.programs.step_measures import Measures
from segue.trainer.workloads.steps import step_result
from segue.trainer.workloads.steps.step import begin_step
from tests.recipes.poisoned import sample_at_step
from tests.support.final_states import state_at_end
from tests.support.observers import stop_when_proven

LATE = "tests.trainer.accelerators.late:build"
TINY, POISONED, RICH = "segue.testing.recipes:tiny", "tests.recipes.poisoned:build", "tests.recipes.rich:rich"
BAD_STEP = 15
BAD_BATCH = Skip(samples_seen=14 * 32, sample_count=32)


class Transfers(TorchDispatchMode):
    """Counts what makes a host wait for an accelerator."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # Optimizers keep their counters of steps on the host, and reading these waits for nothing.
        reads = func is torch.ops.aten._local_scalar_dense.default and args[0].device.type != "cpu"
        result = func(*args, **kwargs or {})
        tensors = [each for each in (*args, result) if isinstance(each, torch.Tensor)]
        copies = len({tensor.device.type for tensor in tensors if tensor.dim()}) > 1
        self.count += reads or copies
        return result


@pytest.fixture
def copies(monkeypatch):
    """How many copies of numbers were asked for; they are never read."""
    asked = []
    monkeypatch.setattr(
        step_result, "on_its_way", lambda values: asked.append(values) or (lambda: torch.zeros(len(values)))
    )
    return asked


def elsewhere(**fields):
    """A recipe on torch's meta device, which cannot be read at all: a step that waited for it would raise."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=4)

    def loss(model, batch):
        found = model(batch).square().mean()
        return {"loss": found, "part": found.detach() * 2}

    return Recipe(model=model, optimizer=optimizer, data=data, loss=loss, clip_grad_norm=1.0, **fields)


@pytest.mark.parametrize("with_norms", [True, False])
def test_a_step_on_an_accelerator_sends_its_numbers_in_one_copy_and_waits_for_nothing(copies, with_norms):
    recipe, batch = elsewhere(), torch.zeros(4, 4, device="meta")
    with Transfers() as transfers:
        for step in range(1, 4):
            begin_step(recipe, [batch], step=step, with_norms=with_norms)
    assert transfers.count == 0
    assert [len(values) for values in copies] == [4 if with_norms else 3] * 3


def test_a_step_of_its_own_does_so_as_well(copies):
    def own(model, batch, optimizer):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "other": 2 * loss}

    recipe = elsewhere()
    recipe = Recipe(model=recipe.model, optimizer=recipe.optimizer, data=recipe.data, step=own)
    with Transfers() as transfers:
        begin_step(recipe, [torch.zeros(4, 4, device="meta")], step=1)
    assert transfers.count == 0
    assert [len(values) for values in copies] == [4]


def test_only_an_after_step_that_takes_metrics_needs_another_copy(copies):
    seen = []
    recipe = elsewhere(after_step=lambda step, metrics: seen.append(metrics))
    begin_step(recipe, [torch.zeros(4, 4, device="meta")], step=1)
    assert [len(values) for values in copies] == [3, 1]
    assert seen == [{"loss": 0.0, "grad_norm": 0.0, "part": 0.0}]


def test_a_program_that_reports_its_loss_does_not_wait_either(copies):
    model = nn.Linear(4, 1).to("meta")
    optimizer, measures = torch.optim.SGD(model.parameters(), lr=0.1), Measures()
    measures.watch({"model": model, "optimizer": optimizer}, measured={})
    with Transfers() as transfers:
        measures.begin(with_norms=True)
        loss = model(torch.zeros(2, 4, device="meta")).mean()
        loss.backward()
        optimizer.step()
        measures.report(loss, lr=None, grad_norm=None, metrics={"other": loss * 2})
        measures.outcome(1)
    measures.close()
    assert transfers.count == 0
    assert [len(values) for values in copies] == [4]


@pytest.fixture
def run(fork_server, make_spec, open_log):
    """Runs a recipe whose numbers come late, or at once, to its end; returns its log."""

    def go(inner, *, is_late, is_killed=False, config=None, **fields):
        common = {"recipe": LATE, "run_id": "late" if is_late else "now", "continuity": {"witness_steps": 3}}
        common["continuity"]["rehearsal"] = "off"
        config = {"inner": inner, "is_late": is_late} | (config or {})
        spec = make_spec(**common | fields, config=config)
        log = open_log(spec)
        if is_killed:
            fork_server.run_attempt(log, spec, observer=stop_when_proven(signal.SIGKILL))
        reports = fork_server.run_to_the_end(log, spec)
        assert reports[-1].stop_reason is StopReason.FINISHED, reports[-1].failure
        return log

    return go


@pytest.mark.matrix
@pytest.mark.parametrize("inner", [TINY, RICH])
@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_state_curve_and_witness_are_those_of_numbers_read_at_once(run, inner, is_killed):
    logs = [run(inner, is_late=is_late, is_killed=is_killed, steps=60) for is_late in (False, True)]
    now, late = map(read_history, logs)
    assert state_at_end(late) == state_at_end(now)
    curves = [segue.curve(log).drop(columns=["step_seconds", "wall_time"]) for log in logs]
    exact = ["step", "epoch", "samples_seen", "loss", "lr"]
    assert curves[0][exact].equals(curves[1][exact])
    assert list(curves[1]["step"]) == list(range(1, 61))
    # A save that is late on a busy machine has its witness, and the norms with it, at other steps.
    for norm in ("grad_norm", "param_norm"):
        both = curves[0][norm].notna() & curves[1][norm].notna()
        assert both.sum() >= 6
        assert curves[0][norm][both].equals(curves[1][norm][both])
    losses = dict(zip(curves[0]["step"], curves[0]["loss"], strict=True))
    rows = [row for checkpoint in late.checkpoints for row in checkpoint.rows]
    assert len(rows) >= 6
    assert all(row.loss == losses[row.step] for row in rows if row.step <= 60)
    marks = [{row.step: row.state for each in of.checkpoints for row in each.rows if row.state} for of in (now, late)]
    same = marks[0].keys() & marks[1].keys()
    assert same
    assert all(marks[0][step] == marks[1][step] for step in same)
    verdicts = [attempt.verdict.kind for attempt in late.attempts[1:]]
    assert set(verdicts) <= {VerdictKind.EXACT}, [attempt.verdict.sentence for attempt in late.attempts[1:]]
    assert len(verdicts) >= is_killed


def test_a_witness_wants_the_steps_after_a_save_also_while_the_ones_before_are_unread():
    witness = Witness(3)
    witness.open(10)
    assert [step for step in range(8, 16) if witness.wants(step)] == [11, 12, 13]
    assert witness.completes(13)
    witness.open(12)
    assert [step for step in range(8, 18) if witness.wants(step)] == [11, 12, 13, 14, 15]


# The save that follows the bad step, one step later and two; and an end there.
@pytest.mark.parametrize("every_steps", [15, *(pytest.param(steps, marks=pytest.mark.matrix) for steps in (8, 14, 16))])
@pytest.mark.parametrize("goes_bad", ["loss", "spike", "gradient"])
def test_a_poisoned_step_is_never_committed_and_named_as_itself(
    fork_server, make_spec, open_log, every_steps, goes_bad
):
    config = {"inner": POISONED, "goes_bad": goes_bad, "sample": sample_at_step(BAD_STEP)}
    anomalies = {"spike_window_steps": 8, "spike_factor": 10.0, "spikes": "rollback" if goes_bad == "spike" else "off"}
    fields = {"checkpoints": {"every_steps": every_steps}, "anomalies": anomalies, "steps": 30}
    spec = make_spec(recipe=LATE, config=config, continuity={"witness_steps": 1, "rehearsal": "off"}, **fields)
    log = open_log(spec)
    report = fork_server.run_attempt(log, spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "PoisonedStepError")
    assert (report.to_step, report.samples_seen) == (BAD_STEP - 1, BAD_BATCH.samples_seen)
    assert (report.anomaly.step, report.anomaly.batch) == (BAD_STEP, BAD_BATCH)
    history = read_history(log)
    assert history.committed_step == (BAD_STEP - 1) // every_steps * every_steps
    assert all(row.step < BAD_STEP for each in history.checkpoints for row in each.rows)


def test_a_poisoned_last_step_is_never_committed(fork_server, make_spec, open_log):
    config = {"inner": POISONED, "goes_bad": "loss", "sample": sample_at_step(BAD_STEP)}
    spec = make_spec(recipe=LATE, config=config, steps=BAD_STEP, continuity={"witness_steps": 1, "rehearsal": "off"})
    log = open_log(spec)
    report = fork_server.run_attempt(log, spec)
    assert (report.stop_reason, report.anomaly.step) == (StopReason.FAILED, BAD_STEP)
    assert read_history(log).committed_step == 10


def test_what_a_later_step_raises_because_of_it_is_no_news(fork_server, make_spec, open_log):
    config = {"inner": POISONED, "goes_bad": "loss", "sample": sample_at_step(BAD_STEP), "raises_after_nan": True}
    spec = make_spec(recipe=LATE, config=config, steps=30, continuity={"witness_steps": 1, "rehearsal": "off"})
    log = open_log(spec)
    report = fork_server.run_attempt(log, spec)
    assert (report.failure.type, report.anomaly.step) == ("PoisonedStepError", BAD_STEP)


def test_a_step_that_raises_after_a_sound_one_is_reported_as_such(fork_server, make_spec, open_log, tmp_path):
    marker = {"fine_until_it_raised": str(tmp_path / "raised"), "goes_bad": "never", "sample": 0}
    spec = make_spec(recipe=LATE, config={"inner": POISONED} | marker, steps=30)
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.failure.type, report.to_step) == ("ArithmeticError", 18)


RANKED, BAD_EVEN = "tests.recipes.ranked:even", "tests.recipes.poisoned:even_with_a_bad_sample"


@pytest.mark.matrix
def test_ranks_exchange_late_numbers_as_they_do_others(ranks_fork_server, make_spec, open_log):
    found = []
    for is_late in (False, True):
        config = {"inner": RANKED, "is_late": is_late}
        spec = make_spec(
            run_id="late" if is_late else "now", recipe=LATE, config=config, continuity={"witness_steps": 2}
        )
        log = open_log(spec)
        stopping = spec.model_copy(update={"config": config | {"at": [1, 25, "notice"]}})
        assert ranks_fork_server.run_attempt(log, stopping, ranks=2).stop_reason is StopReason.NOTICE
        report = ranks_fork_server.run_attempt(log, spec, ranks=2)
        assert report.stop_reason is StopReason.FINISHED, report.failure
        history = read_history(log.reload())
        assert history.attempts[1].verdict.kind is VerdictKind.EXACT
        curve = segue.curve(log)
        found.append((state_at_end(history), list(curve["loss"]), list(curve["grad_norm"])))
    assert found[0] == found[1]


@pytest.mark.matrix
def test_of_several_ranks_a_poisoned_step_is_never_committed_either(ranks_fork_server, make_spec, open_log):
    reports = []
    for is_late in (False, True):
        config = {"inner": BAD_EVEN, "is_late": is_late, "sample": 3}
        spec = make_spec(
            run_id="late" if is_late else "now", recipe=LATE, config=config, continuity={"witness_steps": 1}
        )
        log = open_log(spec)
        reports.append(ranks_fork_server.run_attempt(log, spec, ranks=2))
        assert read_history(log.reload()).committed_step <= reports[-1].to_step
    now, late = reports
    assert (late.failure.type, late.to_step) == ("PoisonedStepError", now.to_step)
    assert (late.anomaly.step, late.anomaly.batch, late.anomaly.sample_ids) == (
        now.anomaly.step,
        now.anomaly.batch,
        now.anomaly.sample_ids,
    )
