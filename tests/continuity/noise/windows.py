"""Replays of one state under noise, in one process: clean ones, and ones with a loss that no digest shows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch

from segue.checkpoints.format.digests import Digests
from segue.checkpoints.format.snapshot import take
from segue.continuity.noise import Noise
from segue.continuity.verdict import judge
from segue.records import Verdict, WitnessRow
from segue.spec import RunSpec
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.live_recipe import LiveRecipe
from segue.trainer.workloads.state import capture

STEPS = 8
Rows = tuple[WitnessRow, ...]
Fault = Callable[[LiveRecipe], None]


class Windows:
    """A recipe with noise of a relative size, trained for some steps, and the steps after that as often as needed."""

    def __init__(self, *, eps: float, trained_steps: int) -> None:
        fields = {"run_id": "r", "recipe": "tests.continuity.noise.recipe:build", "steps": 10_000, "threads": 1}
        spec = RunSpec.parse(fields | {"config": {"kind": "perturbed", "eps": eps}})
        self._live = LiveRecipe(spec, device=torch.device("cpu"), ranks=Ranks())
        self._live.begin(is_resumed=False)
        # What was one step ago is a fault's to bring back.
        self._make(trained_steps - 1)
        self.before = take(capture(self._live.components), copy=True)
        self._make(1)
        self._state = take(capture(self._live.components), copy=True)

    def rows(self, fault: Fault | None = None) -> Rows:
        """The rows of the next steps, from the same state each time."""
        self._live.restore(self._state)
        if fault is not None:
            fault(self._live)
        return self._make(STEPS)

    def _make(self, count: int) -> Rows:
        live, made = self._live, []
        for number, group in enumerate(islice(live.groups(), count), 1):
            row, _ = live.step(group, live.prelude(group))
            if number == count:
                row = row._replace(state=live.state_marks())
            made.append(row.as_witness())
            live.advance(group.start, group.samples)
        return tuple(made)


def judged(witness: Rows, replay: Rows, noise: Noise) -> Verdict:
    """The verdict about rows alone: all digests agree."""
    same = Digests(components={"model": "1"}, tensors={})
    return judge(committed=same, restored=same, witness=witness, replay=replay, environment_changes=(), noise=noise)


def zero_moments(live: LiveRecipe) -> None:
    for slot in _slots(live):
        slot["exp_avg"].zero_()


def zero_second_moments(live: LiveRecipe) -> None:
    for slot in _slots(live):
        slot["exp_avg_sq"].zero_()


def forget_count(live: LiveRecipe) -> None:
    for slot in _slots(live):
        slot["step"].fill_(1.0)


def reset_statistics(live: LiveRecipe) -> None:
    for module in live.recipe.model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.reset_running_stats()


def halve_rate(live: LiveRecipe) -> None:
    for group in live.recipe.optimizers["optimizer"].param_groups:
        group["lr"] /= 2


def drop_decay(live: LiveRecipe) -> None:
    for group in live.recipe.optimizers["optimizer"].param_groups:
        group["weight_decay"] = 0.0


def eval_mode(live: LiveRecipe) -> None:
    live.recipe.model.eval()


def reseed(live: LiveRecipe) -> None:
    torch.manual_seed(1)


def lose_average(live: LiveRecipe) -> None:
    for value in live.recipe.extra["average"].state_dict()["values"].values():
        value.zero_()


def round_weights(live: LiveRecipe) -> None:
    """A copy of the weights in half the precision came back."""
    for parameter in live.recipe.model.parameters():
        parameter.data.copy_(parameter.data.bfloat16().float())


def older_weights(windows: Windows) -> Fault:
    """Weights of one step ago."""

    def fault(live: LiveRecipe) -> None:
        for name, tensor in live.recipe.model.named_parameters():
            tensor.data.copy_(windows.before.tensors[f"model.state.{name}"])

    return fault


def _slots(live: LiveRecipe) -> list[dict[str, torch.Tensor]]:
    return list(live.recipe.optimizers["optimizer"].state.values())


FAULTS: dict[str, Fault] = {
    each.__name__: each
    for each in (
        zero_moments,
        zero_second_moments,
        forget_count,
        reset_statistics,
        halve_rate,
        drop_decay,
        eval_mode,
        reseed,
        lose_average,
        round_weights,
    )
}
