"""The commit that the leader makes alone after another rank was lost in the middle of a step."""

from __future__ import annotations

import random
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from segue.checkpoints.format.snapshot import take
from segue.checkpoints.loading.live_digest import digest
from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import open_run
from segue.launch.assignment import Assignment
from segue.launch.registry import launch
from segue.records import StopReason, VerdictKind
from segue.reports.tables import checkpoint_rows
from segue.runlog.history import read_history
from segue.spec import RunSpec
from segue.trainer.ranks.group import RankGroup
from segue.trainer.survivors import StepStart, Survivors, is_too_dear
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.state import capture, components_of
from tests.recipes.ranked import noisy
from tests.support.forked_trainers import next_plan
from tests.support.single_rank import read_all

STEPS = 14
LOST_IN = 9
"""The step in which a rank is lost."""
PAUSE_SECONDS = 0.03


def spec_in(folder, run_id, *, every_steps=1000, rank_seconds=20, **config):
    return RunSpec.parse(
        {
            "run_id": run_id,
            "recipe": "tests.recipes.ranked:interrupted",
            "config": config,
            "steps": STEPS,
            "threads": 1,
            "store": {"url": str(folder / "store")},
            "checkpoints": {"every_steps": every_steps},
            "liveness": {"heartbeat_seconds": 0.05, "rank_seconds": rank_seconds},
            "continuity": {"rehearsal": "off"},
        }
    )


@pytest.fixture(scope="module")
def undisturbed(ranks_fork_server, tmp_path_factory):
    """The last state of an undisturbed run, by component."""
    known = {}

    def last_state(ranks, **config):
        key = (ranks, *config.items())
        if key not in known:
            spec = spec_in(tmp_path_factory.mktemp("undisturbed"), "undisturbed", **config)
            runlog = open_run(spec, clock=SystemClock())
            ranks_fork_server.run_to_the_end(runlog, spec, ranks=ranks)
            known[key] = read_history(runlog).newest.manifest.components
        return known[key]

    return last_state


class Disturbed:
    """A run of which one attempt is disturbed. The next attempts are not."""

    def __init__(self, server, spec, *, ranks):
        self._server, self.spec, self.ranks = server, spec, ranks
        self.runlog = open_run(spec, clock=SystemClock())
        self.logs = ""

    def lose(self, *, observer=lambda group, log, plan: True, **config):
        def watch(group, log, plan):
            end = group.end

            def end_with_logs():
                self.logs = group.logs()
                return end()

            if "end" not in vars(group):
                group.end = end_with_logs
            return observer(group, log, plan)

        spec = self.spec.model_copy(update={"config": self.spec.config | {"pause_seconds": PAUSE_SECONDS} | config})
        return self._server.run_attempt(self.runlog, spec, ranks=self.ranks, observer=watch)

    def finish(self):
        """Resume to the end; return the report and the last state, by component."""
        report = self._server.run_attempt(self.runlog, self.spec, ranks=self.ranks)
        assert report.stop_reason is StopReason.FINISHED, report.failure
        assert len(read_all(self.runlog)) == len(read_history(self.runlog).usable)
        return report, read_history(self.runlog).newest.manifest.components

    @property
    def newest(self):
        return read_history(self.runlog.reload()).newest


@pytest.fixture
def disturbed(ranks_fork_server, tmp_path):
    def make(*, ranks=2, **fields):
        return Disturbed(ranks_fork_server, spec_in(tmp_path, "disturbed", **fields), ranks=ranks)

    return make


@pytest.mark.parametrize(
    ("ranks", "what", "after_draws", "accumulate"),
    [
        (2, "die", True, 1),
        pytest.param(3, "die", False, 1, marks=pytest.mark.matrix),
        pytest.param(3, "die", True, 2, marks=pytest.mark.matrix),
        pytest.param(2, "raise", True, 1, marks=pytest.mark.matrix),
    ],
)
def test_a_rank_that_is_lost_in_a_step_costs_only_this_step_and_the_resume_changes_no_bit(
    disturbed, undisturbed, ranks, what, after_draws, accumulate
):
    run = disturbed(ranks=ranks, accumulate=accumulate)
    report = run.lose(at=[1, LOST_IN, what], after_draws=after_draws)
    assert report.stop_reason is (StopReason.LOST if what == "die" else StopReason.FAILED), run.logs
    assert report.checkpoint == run.newest.ref, run.logs
    assert (run.newest.manifest.step, run.newest.manifest.lost_ranks) == (LOST_IN - 1, (1,))
    assert (report.to_step, report.lost_steps) == (LOST_IN - 1, 0)
    assert (
        checkpoint_rows(read_history(run.runlog))[-1]["reason"] == "committed by rank 0 alone after the loss of rank 1"
    )

    report, last_state = run.finish()
    assert report.from_step == LOST_IN - 1
    verdict = read_history(run.runlog).attempts[-1].verdict
    assert (verdict.kind, verdict.rows_compared, verdict.findings) == (VerdictKind.UNVERIFIED, 0, ())
    assert last_state == undisturbed(ranks, accumulate=accumulate)


@pytest.mark.matrix
def test_a_rank_that_hangs_in_a_step_costs_only_this_step(disturbed, undisturbed):
    run = disturbed(rank_seconds=3)
    report = run.lose(at=[1, LOST_IN, "hang"])
    assert (report.stop_reason, report.checkpoint.step) == (StopReason.HUNG, LOST_IN - 1), run.logs
    assert run.finish()[1] == undisturbed(2)


@pytest.mark.matrix
def test_two_ranks_that_are_lost_in_a_step_cost_only_this_step(disturbed, undisturbed):
    run = disturbed(ranks=3)

    def kill_both(group, log, plan):
        if all(process.is_alive() for process in group.processes[1:]):
            return False
        group.signal(1, signal.SIGKILL)
        group.signal(2, signal.SIGKILL)
        return True

    report = run.lose(at=[1, LOST_IN, "die"], observer=kill_both)
    assert report.stop_reason is StopReason.LOST
    assert report.checkpoint.step == LOST_IN - 1, run.logs
    assert run.finish()[1] == undisturbed(3)


@pytest.mark.matrix
@pytest.mark.parametrize("at", [[0, LOST_IN, "die"], [0, LOST_IN, "raise"]])
def test_nothing_is_committed_after_the_leader_itself_was_lost_or_raised(disturbed, undisturbed, at):
    run = disturbed(every_steps=5)
    run.lose(at=at)
    report, last_state = run.finish()
    assert report.from_step in (0, 5), "0: on a busy machine, the save was still being written"
    assert not any(c.manifest.lost_ranks for c in read_history(run.runlog).checkpoints)
    assert last_state == undisturbed(2)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"after_step": [1, LOST_IN, "die"]}, "is not known"),
        ({"touches": LOST_IN}, "changed weights outside the optimizer"),
        ({"most_share": 0.0}, "copies at each step take too long"),
    ],
)
def test_nothing_is_committed_if_the_state_before_the_step_is_not_known(disturbed, undisturbed, config, reason):
    run = disturbed()
    run.lose(**{"at": None if "after_step" in config else [1, LOST_IN, "die"], "after_draws": True} | config)
    assert run.newest is None, run.logs
    assert reason in run.logs
    assert run.finish()[1] == undisturbed(2)


@pytest.mark.matrix
def test_an_object_that_cannot_be_copied_between_saves_does_not_end_the_attempt(disturbed):
    run = disturbed()
    report = run.lose(unreadable_after=3, at=[1, LOST_IN, "die"])
    assert (report.stop_reason, report.to_step, report.checkpoint) == (StopReason.LOST, LOST_IN - 1, None), run.logs
    assert "the state of the recipe could not be copied" in run.logs


@pytest.mark.matrix
@pytest.mark.parametrize("stalled", [LOST_IN - 1, LOST_IN - 3])
def test_a_save_of_which_the_lost_rank_has_not_stored_its_part_does_not_delay_the_commit(
    disturbed, undisturbed, stalled
):
    run = disturbed(every_steps=stalled)
    report = run.lose(at=[1, LOST_IN, "die"], after_draws=True, stalls_writer=1)
    assert report.checkpoint.step == LOST_IN - 1, run.logs
    assert [c.manifest.step for c in read_history(run.runlog).checkpoints] == [LOST_IN - 1]
    assert run.finish()[1] == undisturbed(2)


@pytest.mark.matrix
@pytest.mark.parametrize("after_seconds", [0.0, 0.005, 0.02])
def test_a_leader_that_is_killed_while_it_commits_alone_leaves_a_run_that_resumes(
    disturbed, undisturbed, after_seconds
):
    run = disturbed(every_steps=5, width=20_000)

    def kill_leader(group, log, plan):
        if group.processes[1].is_alive():
            return False
        time.sleep(after_seconds)
        group.signal(0, signal.SIGKILL)
        return True

    run.lose(at=[1, LOST_IN, "die"], observer=kill_leader)
    report, last_state = run.finish()
    assert report.from_step in (0, 5, LOST_IN - 1)
    assert last_state == undisturbed(2, width=20_000)


@pytest.mark.matrix
def test_the_leader_commits_before_torchrun_ends_it(disturbed, undisturbed):
    run = disturbed()
    config = run.spec.config | {"pause_seconds": PAUSE_SECONDS, "at": [1, LOST_IN, "die"], "after_draws": True}
    spec, plan = run.spec.model_copy(update={"config": config, "ranks": 2}), next_plan(run.runlog, run.spec)
    lines = []
    code = launch(Assignment(spec=spec, plan=plan), on_line=lambda line, *_: lines.append(line)).wait()
    assert report_or_lost(run.runlog, plan, TrainerEnd(code)).checkpoint.step == LOST_IN - 1, lines
    assert run.finish()[1] == undisturbed(2)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_is_killed_at_a_random_moment_changes_no_bit(disturbed, undisturbed, seed):
    chance = random.Random(seed)
    run = disturbed()
    began, after_seconds = [], chance.uniform(0.3, 0.9)

    def kill(group, log, plan):
        if not began and read_history(log).attempt_of(plan.segment, plan.attempt) is not None:
            began.append(time.monotonic())
        if not began or time.monotonic() < began[0] + after_seconds:
            return False
        group.signal(1, signal.SIGKILL)
        return True

    report = run.lose(observer=kill, pause_seconds=0.1)
    newest = run.newest
    # In the first step there is nothing to commit; while the optimizer makes its step, the state is not whole.
    assert newest is None or newest.manifest.step == report.to_step
    assert newest is not None or report.to_step == 0 or "is not known" in run.logs
    assert run.finish()[1] == undisturbed(2)


def test_all_state_that_a_forward_pass_may_change_is_set_back_to_the_start_of_the_step():
    recipe = noisy({})
    model, optimizer = recipe.model, recipe.optimizer
    model.register_parameter("codebook", nn.Parameter(torch.zeros(4), requires_grad=False))
    live = SimpleNamespace(recipe=recipe, components=components_of(recipe, Progress(), name="noisy"))
    before = digest(take(capture(live.components))).components
    start = StepStart(live)
    start.keep()
    torch.rand(1), np.random.rand(), random.random()
    model.train(False)
    model.codebook.data.add_(1.0)
    model[0].weight.requires_grad_(False)
    model[1].running_mean.data.add_(1.0)
    optimizer.param_groups[0]["lr"] = 7.0
    recipe.scheduler.last_epoch = 7
    next(iter(recipe.extra["average"].state_dict()["values"].values())).add_(1.0)
    assert {n for n, each in digest(take(capture(live.components))).components.items() if each == before[n]} == {
        "progress"
    }
    start.restore()
    assert digest(take(capture(live.components))).components == before


def started(recipe):
    """The start of a step of a recipe that has made one."""
    recipe.loss(recipe.model, next(iter(recipe.data))).backward()
    recipe.optimizer.step()
    start = StepStart(SimpleNamespace(recipe=recipe, components=components_of(recipe, Progress(), name="noisy")))
    start.keep()
    assert start.is_optimizer_unchanged()
    return start


def test_weights_and_optimizer_state_that_a_forward_pass_changes_are_noticed():
    recipe = noisy({})
    start = started(recipe)
    weights = recipe.optimizer.param_groups[0]["params"][0]
    with torch.no_grad():
        weights.mul_(1.0)
    assert not start.is_optimizer_unchanged()
    start.keep()
    next(iter(recipe.optimizer.state[weights].values())).add_(1.0)
    assert not start.is_optimizer_unchanged()


def test_frozen_weights_that_an_optimizer_holds_are_set_back_because_a_forward_pass_may_move_them():
    recipe = noisy({})
    frozen = recipe.optimizer.param_groups[0]["params"][0].requires_grad_(False)
    start, before = started(recipe), frozen.detach().clone()
    frozen.data.mul_(0.999)
    assert start.is_optimizer_unchanged()
    start.restore()
    assert torch.equal(frozen, before)


def test_all_ranks_read_the_users_objects_at_the_same_steps_because_these_may_need_all_ranks():
    recipe, asked = noisy({}), []
    recipe.extra["meter"] = SimpleNamespace(state_dict=lambda: asked.append(1) or {}, load_state_dict=asked.append)
    start = StepStart(SimpleNamespace(recipe=recipe, components=components_of(recipe, Progress(), name="noisy")))
    start.keep(copies=False)
    start.keep(copies=True)
    assert len(asked) == 2


def test_a_process_that_trains_alone_copies_and_registers_nothing():
    hooks = dict(_global_optimizer_pre_hooks)
    alone = Survivors(SimpleNamespace(group=RankGroup(), device=torch.device("cpu")), SimpleNamespace())
    assert alone.publish() == ()
    alone.keep(())
    assert dict(_global_optimizer_pre_hooks) == hooks


@pytest.mark.parametrize(("share", "is_dear"), [(0.0019, False), (0.0021, True)])
def test_copies_are_too_dear_if_they_take_more_than_a_five_hundredth_of_a_step(share, is_dear):
    begins = (0.0, 1.0, 3.0, 5.0, 30.0)  # The first step, and one with an evaluation.
    costs = (0.1, 2.0 * share, 0.1, 0.1, 0.1)
    assert is_too_dear(list(zip(begins, costs, strict=True))) is is_dear
