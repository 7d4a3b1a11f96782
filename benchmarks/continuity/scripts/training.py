"""State of the training method: further optimizers, wrappers, manual learning rates, adaptive weights, gradients."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.continuity.blind.cases import UNREGISTERED
from benchmarks.continuity.scripts.base import FEATURES, Batch, Config, mse, net, recipe, unregistered
from segue.recipe import Recipe

_SCHEDULE = UNREGISTERED | {"scheduler"}
_OPTIMIZER = UNREGISTERED | {"optimizer"}


@unregistered("second optimizer in a closure", "side", "side_optimizer")
def second_optimizer(config: Config) -> Recipe:
    model, side = net(), nn.Linear(FEATURES, 1)
    model.side = side
    main = [p for name, p in model.named_parameters() if not name.startswith("side")]
    side_optimizer = torch.optim.Adam(side.parameters(), lr=1e-2)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        side_optimizer.zero_grad()
        functional.l1_loss(side(x), y).backward()
        side_optimizer.step()
        return functional.mse_loss(model[:5](x) + side(x).detach(), y)  # type: ignore[index]

    return recipe(model, loss, optimizer=torch.optim.AdamW(main, lr=3e-3))


@unregistered("critic that nobody hands over", "critic")
def own_critic(config: Config) -> Recipe:
    critic = nn.Linear(1, 1)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-2)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        found = model(x)
        critic_optimizer.zero_grad()
        (critic(found.detach()).mean() - critic(y).mean() + critic.weight.square().sum()).backward()
        critic_optimizer.step()
        return functional.mse_loss(found, y) + 0.1 * critic(found).mean()

    return recipe(loss=loss)


@unregistered("scheduler that after_step steps by hand", "warmup", components=_SCHEDULE)
def hidden_scheduler(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=200)
    return recipe(model, optimizer=optimizer, after_step=lambda step: warmup.step())


@unregistered("GradScaler used by hand", "scaler")
def hidden_scaler(config: Config) -> Recipe:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=5)

    def step(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        value = mse(model, batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        return value.detach() + 1e-9 * scaler.get_scale()

    return recipe(loss=None, step=step)


class _Lookahead:
    """Slow weights that follow the fast weights every five steps. The counter is not in the state_dict."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.counter = inner, 0
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def step(self) -> None:
        self.inner.step()
        self.counter += 1
        if self.counter % 5 == 0:
            fast = (p for group in self.inner.param_groups for p in group["params"])
            with torch.no_grad():
                for slow, parameter in zip(self.slow, fast, strict=True):
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)


@unregistered("slow weights of Lookahead", "slow", "counter", components=_OPTIMIZER)
def lookahead(config: Config) -> Recipe:
    model = net()
    return recipe(model, optimizer=_Lookahead(torch.optim.SGD(model.parameters(), lr=0.02)))


class _Sam(torch.optim.SGD):
    """An optimizer that searches for a flat minimum with a shrinking radius."""

    radius = 0.05

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.add_(self.radius * p)
        self.radius *= 0.98
        return super().step(closure)


@unregistered("attribute of an optimizer's subclass", "radius", components=_OPTIMIZER)
def optimizer_attribute(config: Config) -> Recipe:
    model = net()
    return recipe(model, optimizer=_Sam(model.parameters(), lr=0.02))


@unregistered("rate set from a counter", "updates", components=_SCHEDULE)
def rate_by_counter(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    updates = 0

    def after_step(step: int) -> None:
        nonlocal updates
        updates += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + 0.05 * updates)

    return recipe(model, optimizer=optimizer, after_step=after_step)


@unregistered("weights of losses that balance gradients", "weights")
def gradnorm(config: Config) -> Recipe:
    weights = torch.ones(2)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        found = model(x)
        parts = torch.stack([functional.mse_loss(found, y), functional.smooth_l1_loss(found, y)])
        weights.mul_(1 + 0.05 * (parts.detach() - parts.detach().mean()))
        return (weights * parts).sum()

    return recipe(loss=loss)


@unregistered("gradients summed over steps", "pending", "accumulated")
def own_accumulation(config: Config) -> Recipe:
    pending: dict[str, Any] = {"count": 0, "sums": None}

    def step(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        value = mse(model, batch)
        grads = torch.autograd.grad(value, list(model.parameters()))
        old = pending["sums"]
        pending["sums"] = grads if old is None else [a + b for a, b in zip(old, grads, strict=True)]
        pending["count"] += 1
        if pending["count"] % 5 == 0:
            for parameter, grad in zip(model.parameters(), pending["sums"], strict=True):
                parameter.grad = grad / 5
            optimizer.step()
            pending["sums"] = None
        return value

    return recipe(loss=None, step=step)


@unregistered("gradients left in .grad from step to step", "grad", components=UNREGISTERED | {"gradients", "optimizer"})
def gradients_left(config: Config) -> Recipe:
    def step(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        value = mse(model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        return value

    return recipe(loss=None, step=step)


class _Ema:
    """A registered object whose warm-up counter is in no state_dict."""

    def __init__(self, model: nn.Module) -> None:
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for name, parameter in model.named_parameters():
            self.values[name].lerp_(parameter.detach(), 1 - decay)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            self.values[name].copy_(value)


@unregistered("registered EMA without its counter", "updates", "extra.ema", components=UNREGISTERED | {"extra.ema"})
def average_without_counter(config: Config) -> Recipe:
    model = net()
    ema = _Ema(model)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        pull = sum((p - ema.values[n]).square().sum() for n, p in model.named_parameters())
        return mse(model, batch) + 0.1 * pull

    return recipe(model, loss, after_step=lambda step: ema.update(model), extra={"ema": ema})


@unregistered(
    "registered EMA without its counter, used by nothing",
    "updates",
    "extra.ema",
    components=UNREGISTERED | {"extra.ema"},
    acts_on="state",
)
def idle_average_without_counter(config: Config) -> Recipe:
    model = net()
    ema = _Ema(model)
    return recipe(model, after_step=lambda step: ema.update(model), extra={"ema": ema})


class _Queue:
    """A registered buffer whose position of the next entry is in no state_dict."""

    def __init__(self) -> None:
        self.entries, self.pointer = torch.zeros(20), 0

    def push(self, value: float) -> None:
        self.entries[self.pointer] = value
        self.pointer = (self.pointer + 1) % len(self.entries)

    def state_dict(self) -> dict[str, Any]:
        return {"entries": self.entries}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.entries.copy_(state_dict["entries"])


@unregistered(
    "registered queue without its pointer", "pointer", "extra.queue", components=UNREGISTERED | {"extra.queue"}
)
def queue_without_pointer(config: Config) -> Recipe:
    queue = _Queue()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        queue.push(value.item())
        decay = 0.9 ** torch.arange(20)
        return value * (1 + (queue.entries.roll(-queue.pointer) * decay).mean())

    return recipe(loss=loss, extra={"queue": queue})


class _Plateau:
    """A scheduler that lowers the learning rate if the loss does not improve. Its state is the best loss and the
    patience."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.best, self.bad = optimizer, float("inf"), 0

    def update(self, value: float) -> None:
        if value < self.best:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad >= 3:
            self.bad = 0
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.9


@unregistered("best loss that lowers the rate", "best", "bad", "plateau", components=_SCHEDULE)
def best_loss(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    plateau = _Plateau(optimizer)

    def after_step(step: int, metrics: dict[str, float]) -> None:
        plateau.update(metrics["loss"])

    return recipe(model, optimizer=optimizer, after_step=after_step)


@unregistered("copy of the model that is optimised too", "twin")
def deep_mutual_learning(config: Config) -> Recipe:
    model = net()
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        found, other = model(batch[0]), twin(batch[0])
        twin_optimizer.zero_grad()
        (functional.mse_loss(other, batch[1]) + 0.1 * functional.mse_loss(other, found.detach())).backward()
        twin_optimizer.step()
        return functional.mse_loss(found, batch[1]) + 0.1 * functional.mse_loss(found, other.detach())

    return recipe(model, loss)


@unregistered("strength of a penalty, adapted to its size", "beta", "controller")
def adaptive_penalty(config: Config) -> Recipe:
    class Controller:
        def __init__(self) -> None:
            self.beta = 0.1

        def update(self, size: float) -> None:
            self.beta *= 1.05 if size > 1.0 else 0.95

    controller = Controller()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        size = torch.stack([p.square().mean() for p in model.parameters()]).sum()
        controller.update(size.item())
        return mse(model, batch) + controller.beta * size

    return recipe(loss=loss)


class ByAddress(torch.optim.SGD):
    """An optimizer that stores its momenta by the addresses of the parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.02)
        self.momenta: dict[int, torch.Tensor] = {}

    def slot(self, parameter: torch.Tensor) -> torch.Tensor:
        return self.momenta.setdefault(id(parameter), torch.zeros_like(parameter))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.lerp_(self.slot(parameter), 0.5)
                self.slot(parameter).copy_(parameter.grad)
        return super().step(closure)


@unregistered("momenta by the id of a parameter", "momenta", components=_OPTIMIZER)
def momenta_by_id(config: Config) -> Recipe:
    model = net()
    return recipe(model, optimizer=ByAddress(model.parameters()))
