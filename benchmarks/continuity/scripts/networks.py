"""State in and around a network: hooks, plain attributes, tensors in lists, buffers that a state_dict leaves out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.continuity.blind.cases import UNREGISTERED
from benchmarks.continuity.scripts.base import FEATURES, WIDTH, Config, net, recipe, unregistered
from segue.recipe import Recipe

_MODEL = UNREGISTERED | {"model", "buffers", "modes"}


@unregistered("forward hook with a counter", "calls")
def forward_hook(config: Config) -> Recipe:
    model, calls = net(), 0

    def scaled(module: nn.Module, given: Any, found: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return found * (0.5 + min(calls / 100, 0.5))

    model.register_forward_hook(scaled)
    return recipe(model)


@unregistered("forward pre-hook with a running mean", "seen")
def forward_pre_hook(config: Config) -> Recipe:
    model, seen = net(), {"mean": torch.zeros(FEATURES)}

    def centred(module: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        seen["mean"] = 0.9 * seen["mean"] + 0.1 * given[0].detach().mean(0)
        return (given[0] - seen["mean"],)

    model.register_forward_pre_hook(centred)
    return recipe(model)


class _GradientNoise:
    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        self.scale *= 0.995
        return grad * self.scale


@unregistered("hook of a parameter's gradient", "scale")
def parameter_hook(config: Config) -> Recipe:
    model = net()
    for parameter in model.parameters():
        parameter.register_hook(_GradientNoise())  # type: ignore[no-untyped-call]
    return recipe(model)


@unregistered("full backward hook", "backward_calls")
def backward_hook(config: Config) -> Recipe:
    model, backward_calls = net(), [0]

    def damped(module: nn.Module, grads: Any, outputs: Any) -> Any:
        backward_calls[0] += 1
        return tuple(None if grad is None else grad / (1 + 0.01 * backward_calls[0]) for grad in grads)

    model[4].register_full_backward_hook(damped)
    return recipe(model)


@unregistered("hook before the optimizer's step", "clip")
def optimizer_pre_hook(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    clip = {"norm": 1.0}

    def clipped(self: Any, args: Any, kwargs: Any) -> None:
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip["norm"]))
        clip["norm"] = 0.9 * clip["norm"] + 0.1 * norm

    optimizer.register_step_pre_hook(clipped)
    return recipe(model, optimizer=optimizer)


@unregistered("hook after the optimizer's step", "pulls")
def optimizer_post_hook(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pulls = [0]

    def pulled(self: Any, args: Any, kwargs: Any) -> None:
        pulls[0] += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 - 1e-4 * pulls[0])

    optimizer.register_step_post_hook(pulled)
    return recipe(model, optimizer=optimizer)


class _WarmNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.steps = net(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
        found: torch.Tensor = self.body(x)
        return found * min(1.0, 0.2 + self.steps / 100)


@unregistered("plain number of a module", "steps", components=_MODEL)
def module_attribute(config: Config) -> Recipe:
    return recipe(_WarmNet())


class _PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.running = torch.zeros(FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.running = 0.9 * self.running + 0.1 * x.mean(0)
        found: torch.Tensor = self.body(x - self.running)
        return found


@unregistered("tensor of a module that is no buffer", "running", components=_MODEL)
def module_tensor(config: Config) -> Recipe:
    return recipe(_PlainTensor())


class _Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.past: list[torch.Tensor] = []
        self.by_name = {"scale": torch.ones(1)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.past = [*self.past[-7:], x.mean(0)]
        found: torch.Tensor = self.body(x - torch.stack(self.past).mean(0) if self.past else x)
        return found


@unregistered("list of tensors of a module", "past", components=_MODEL)
def module_list(config: Config) -> Recipe:
    return recipe(_Memory())


class _Scaled(_Memory):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.by_name["scale"].mul_(0.99)
        found: torch.Tensor = self.body(x) * self.by_name["scale"]
        return found


@unregistered("dict of tensors of a module", "by_name", components=_MODEL)
def module_dict(config: Config) -> Recipe:
    return recipe(_Scaled())


class _Quiet(nn.Module):
    """A layer that leaves its running mean out of checkpoints, so that it can load old checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.register_buffer("running", torch.zeros(FEATURES))
        self.running: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.running.mul_(0.9).add_(0.1 * x.mean(0))
        found: torch.Tensor = self.body(x - self.running)
        return found

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        return {name: value for name, value in found.items() if name != "running"}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


@unregistered("buffer that state_dict leaves out", "running", components=_MODEL)
def hidden_buffer(config: Config) -> Recipe:
    return recipe(_Quiet())


class _StochasticDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 1)
        self.middle = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.drop_rate = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for layer in self.middle:
            if not self.training or torch.rand(1).item() > self.drop_rate:
                x = x + functional.relu(layer(x))
        if self.training:
            self.drop_rate *= 0.97
        found: torch.Tensor = self.leave(x)
        return found


@unregistered("rate of stochastic depth", "drop_rate", components=_MODEL)
def stochastic_depth(config: Config) -> Recipe:
    return recipe(_StochasticDepth())


@unregistered("schedule of a dropout's p", "p", "Dropout", components=_MODEL)
def dropout_schedule(config: Config) -> Recipe:
    model = net()
    dropout = model[3]
    assert isinstance(dropout, nn.Dropout)

    def after_step(step: int) -> None:
        dropout.p = min(0.5, dropout.p + 0.01)

    return recipe(model, after_step=after_step)


@unregistered("momentum of a BatchNorm that a script anneals", "momentum", components=_MODEL)
def norm_schedule(config: Config) -> Recipe:
    model = net()
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    model.eval()

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        model.train()
        x, y = batch
        value = functional.mse_loss(model(x), y)
        model.eval()
        # The running statistics count from the next line on.
        return value + 0.1 * functional.mse_loss(model(x), y)

    def after_step(step: int) -> None:
        assert norm.momentum is not None
        norm.momentum = 0.97 * norm.momentum

    return recipe(model, loss=loss, after_step=after_step)


class _Tau(nn.Module):
    """Gumbel softmax with a temperature that it lowers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(FEATURES, 4), nn.Linear(FEATURES, 4)
        self.tau = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = functional.gumbel_softmax(self.gate(x), tau=self.tau)
        if self.training:
            self.tau = max(0.1, self.tau * 0.98)
        return (weight * self.experts(x)).sum(1, keepdim=True)


@unregistered("temperature of a Gumbel softmax", "tau", components=_MODEL)
def gumbel_temperature(config: Config) -> Recipe:
    return recipe(_Tau())


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(FEATURES, WIDTH), nn.Linear(WIDTH, 1)
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(len(x), WIDTH) if self.hidden is None else self.hidden
        found = self.cell(x, hidden)
        if self.training:
            self.hidden = found.detach()
        answer: torch.Tensor = self.head(found)
        return answer


@unregistered("hidden state carried over batches", "hidden", components=_MODEL)
def carried_hidden(config: Config) -> Recipe:
    return recipe(_Recurrent())


class _InList(nn.Module):
    """A network that keeps its normalisations where torch does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 1)
        self.norms = [nn.BatchNorm1d(WIDTH, affine=False, momentum=0.2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.enter(x)
        for norm in self.norms:
            norm.train(self.training)
            norm(found)
            found = (found - norm.running_mean) / (1e-3 + norm.running_var) ** 0.5  # type: ignore[operator]
        answer: torch.Tensor = self.leave(found)
        return answer


@unregistered("normalisation in a plain list of the model", "norms", "running_mean", components=_MODEL)
def module_in_list(config: Config) -> Recipe:
    return recipe(_InList())


@unregistered("forward hook that keeps activations by the name of their layer", "activations")
def activations_by_name(config: Config) -> Recipe:
    model = net()
    activations: dict[str, torch.Tensor] = {}

    def keep(module: nn.Module, given: Any, found: torch.Tensor) -> torch.Tensor:
        before = activations.get("0")
        activations["0"] = found.detach().mean(0)
        return found if before is None else found - 0.1 * before

    model[0].register_forward_hook(keep)
    return recipe(model)
