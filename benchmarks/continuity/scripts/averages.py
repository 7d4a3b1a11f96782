"""Unregistered second networks: teachers, averages, momentum encoders, target networks, frozen copies."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.continuity.blind.cases import UNREGISTERED
from benchmarks.continuity.scripts.base import FEATURES, Batch, Config, mse, net, recipe, samples, unregistered
from segue.recipe import Recipe

_METRIC = UNREGISTERED | {"evaluate", "metric"}


def _follow(teacher: nn.Module, model: nn.Module, decay: float) -> None:
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
            old.lerp_(new, 1 - decay)


@unregistered("teacher in a closure", "teacher")
def teacher(config: Config) -> Recipe:
    model = net()
    teacher = copy.deepcopy(model).eval()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            target = teacher(batch[0])
        return mse(model, batch) + 0.3 * functional.mse_loss(model(batch[0]), target)

    return recipe(model, loss, after_step=lambda step: _follow(teacher, model, 0.95))


@unregistered("AveragedModel in a closure", "averaged")
def averaged_model(config: Config) -> Recipe:
    model = net()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            target = averaged(batch[0])
        return mse(model, batch) + 0.3 * functional.mse_loss(model(batch[0]), target)

    return recipe(model, loss, after_step=lambda step: averaged.update_parameters(model))


@unregistered("dict of averaged weights", "shadow")
def shadow_weights(config: Config) -> Recipe:
    model = net()
    shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        pull = torch.stack([(p - shadow[n]).square().sum() for n, p in model.named_parameters()])
        return mse(model, batch) + 0.1 * pull.sum()

    def after_step(step: int) -> None:
        for name, parameter in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * parameter.detach()

    return recipe(model, loss, after_step=after_step)


class _Moco:
    """A momentum encoder with a queue of keys."""

    def __init__(self, model: nn.Module) -> None:
        self.encoder = copy.deepcopy(model)
        self.queue = functional.normalize(torch.randn(32, 1, generator=torch.Generator().manual_seed(1)), dim=0)
        self.pointer = 0

    def push(self, keys: torch.Tensor) -> None:
        self.queue[self.pointer : self.pointer + len(keys)] = keys
        self.pointer = (self.pointer + len(keys)) % len(self.queue)


@unregistered("queue of a momentum encoder", "queue", "encoder", "moco")
def momentum_queue(config: Config) -> Recipe:
    model = net()
    moco = _Moco(model)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        found = model(batch[0])
        with torch.no_grad():
            keys = moco.encoder(batch[0])
        value = mse(model, batch) + 0.1 * torch.logsumexp(found @ moco.queue.T.clone(), dim=1).mean()
        moco.push(keys)
        return value

    return recipe(model, loss, after_step=lambda step: _follow(moco.encoder, model, 0.99))


@unregistered("target network, copied every five steps", "target")
def target_network(config: Config) -> Recipe:
    model, target = net(), net()
    target.load_state_dict(model.state_dict())

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        with torch.no_grad():
            bootstrapped = y + 0.5 * target(x.roll(1, 0))
        return functional.mse_loss(model(x), bootstrapped)

    def after_step(step: int) -> None:
        if step % 5 == 0:
            target.load_state_dict(model.state_dict())

    return recipe(model, loss, after_step=after_step)


@unregistered("EMA that only evaluate uses", "ema", components=_METRIC, acts_on="metric")
def evaluated_average(config: Config) -> Recipe:
    model = net()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    x, y = samples()

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float(functional.mse_loss(ema(x), y))

    return recipe(model, evaluate=evaluate, after_step=lambda step: ema.update_parameters(model))


@unregistered("SWA average that only evaluate uses", "swa", components=_METRIC, acts_on="metric")
def stochastic_average(config: Config) -> Recipe:
    model = net()
    swa = {"weights": None, "count": 0}  # type: dict[str, Any]
    x, y = samples()

    def after_step(step: int) -> None:
        flat = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        swa["count"] += 1
        swa["weights"] = flat if swa["weights"] is None else swa["weights"] + (flat - swa["weights"]) / swa["count"]

    def evaluate(model: nn.Module) -> float:
        if swa["weights"] is None:
            return 0.0
        trial = copy.deepcopy(model)
        nn.utils.vector_to_parameters(swa["weights"], trial.parameters())
        with torch.no_grad():
            return float(functional.mse_loss(trial(x), y))

    return recipe(model, evaluate=evaluate, after_step=after_step)


@unregistered("threshold of evaluate, raised by after_step", "best", components=_METRIC, acts_on="metric")
def evaluated_best(config: Config) -> Recipe:
    x, y = samples()
    best = [0.0]

    def after_step(step: int) -> None:
        best[0] += 0.01

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float(functional.mse_loss(model(x), y)) + best[0]

    return recipe(evaluate=evaluate, after_step=after_step)


class _Vq(nn.Module):
    """A codebook that is learned by moving averages."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, 4), nn.Linear(4, 1)
        self.codes = torch.randn(16, 4)
        self.sizes = torch.ones(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.enter(x)
        chosen = torch.cdist(z, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                for code in chosen.unique().tolist():
                    self.codes[code].lerp_(z[chosen == code].mean(0).to(self.codes.dtype), 0.1)
        found: torch.Tensor = self.leave(z + (self.codes[chosen] - z).detach())
        return found


@unregistered("codebook that is no buffer", "codes", components=UNREGISTERED | {"model", "buffers"})
def codebook(config: Config) -> Recipe:
    return recipe(_Vq())


@unregistered("initial weights kept for a penalty", "anchor")
def moving_anchor(config: Config) -> Recipe:
    model = net()
    anchor = [parameter.detach().clone() for parameter in model.parameters()]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        pull = sum((p - a).square().sum() for p, a in zip(model.parameters(), anchor, strict=True))
        return mse(model, batch) + 0.05 * pull

    def after_step(step: int) -> None:
        if step % 10 == 0:
            for kept, parameter in zip(anchor, model.parameters(), strict=True):
                kept.copy_(parameter.detach())

    return recipe(model, loss, after_step=after_step)


class _Distillation:
    """An algorithm with the model that it trains, its teacher, and the number of updates."""

    def __init__(self, student: nn.Module) -> None:
        self.student, self.teacher, self.updates = student, copy.deepcopy(student), 0

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher(batch[0])
        return mse(model, batch) + 0.3 * functional.mse_loss(model(batch[0]), target)

    def update(self, step: int) -> None:
        self.updates += 1
        _follow(self.teacher, self.student, min(0.95, self.updates / 10))


@unregistered("teacher in an object that also holds the model", "teacher", "updates")
def teacher_of_an_algorithm(config: Config) -> Recipe:
    model = net()
    algorithm = _Distillation(model)
    return recipe(model, algorithm.loss, after_step=algorithm.update)
