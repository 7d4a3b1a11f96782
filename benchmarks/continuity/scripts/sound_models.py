"""Sound scripts with unusual models, optimizers, schedulers and data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import Dataset

from benchmarks.continuity.scripts.base import SAMPLES, WIDTH, Batch, Config, loader, mse, net, recipe, samples, sound
from segue.recipe import Recipe


class _LazyMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self._mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._mask is None or len(self._mask) < len(x):
            self._mask = torch.linspace(0.9, 1.1, 8)
        found: torch.Tensor = self.body(x * self._mask)
        return found


@sound("mask built at the first call")
def lazy_mask(config: Config) -> Recipe:
    return recipe(_LazyMask())


class _Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.cached = net(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.cached:
            self.register_buffer("cos", torch.cos(torch.arange(64).float()), persistent=False)
            self.cached = 64
        found: torch.Tensor = self.body(x * self.cos[: x.shape[1]])  # type: ignore[index]
        return found


@sound("rotary cache registered at the first call")
def rotary(config: Config) -> Recipe:
    return recipe(_Rotary())


@sound("buffer that is in no state_dict")
def unsaved_buffer(config: Config) -> Recipe:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()
            self.register_buffer("mean", torch.zeros(8), persistent=False)
            self.mean: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            found: torch.Tensor = self.body(x - self.mean)
            return found

    return recipe(Scaled())


@sound("tied weights")
def tied(config: Config) -> Recipe:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(8, WIDTH, bias=False), nn.Linear(WIDTH, 8, bias=False)
            self.leave.weight = nn.Parameter(self.enter.weight.T)
            self.again = self.enter
            self.head = nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.leave(self.again(x).relu()))
            return found

    return recipe(Tied())


@sound("wrapper around a model")
def wrapped(config: Config) -> Recipe:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    return recipe(Wrapper(net()))


@sound("frozen backbone in eval mode")
def frozen_backbone(config: Config) -> Recipe:
    backbone, head = net()[:4], nn.Linear(WIDTH, 1)
    backbone.requires_grad_(False)

    class Tuned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, head

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.backbone(x))
            return found

    return recipe(Tuned(), optimizer=torch.optim.SGD(head.parameters(), lr=0.02))


@sound("recurrent network")
def recurrent(config: Config) -> Recipe:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(2, WIDTH, batch_first=True, num_layers=2, dropout=0.1), nn.Linear(WIDTH, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found, _ = self.cell(x.reshape(len(x), 4, 2))
            answer: torch.Tensor = self.head(found[:, -1])
            return answer

    return recipe(Recurrent())


@sound("spectral and weight norm")
def normed(config: Config) -> Recipe:
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, WIDTH))
    second = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 1))
    return recipe(nn.Sequential(first, nn.ReLU(), second))


@sound("variational network that draws from the global stream")
def variational(config: Config) -> Recipe:
    model = nn.ModuleDict({"mean": nn.Linear(8, 4), "log": nn.Linear(8, 4), "out": nn.Linear(4, 1)})

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        mean, log = model["mean"](batch[0]), model["log"](batch[0])
        z = mean + torch.randn_like(mean) * (0.5 * log).exp()
        return functional.mse_loss(model["out"](z), batch[1]) + 1e-3 * (log.exp() + mean**2 - 1 - log).mean()

    return recipe(model, loss)


@sound("embedding beside numbers")
def embedded(config: Config) -> Recipe:
    table = nn.Embedding(16, 8)
    model = nn.ModuleDict({"table": table, "body": net()})

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        ids = (batch[0][:, 0].abs() * 5).long().clamp(max=15)
        return functional.mse_loss(model["body"](batch[0] + model["table"](ids)), batch[1])

    return recipe(model, loss)


@sound("Adagrad with decay")
def adagrad(config: Config) -> Recipe:
    model = net()
    return recipe(model, optimizer=torch.optim.Adagrad(model.parameters(), lr=0.05, lr_decay=0.01))


@sound("NAdam and two groups")
def two_groups(config: Config) -> Recipe:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": list(model[1:].parameters())}]
    return recipe(model, optimizer=torch.optim.NAdam(groups, lr=3e-3))


@sound("RMSprop, centred, with momentum")
def rmsprop(config: Config) -> Recipe:
    model = net()
    return recipe(model, optimizer=torch.optim.RMSprop(model.parameters(), lr=1e-3, centered=True, momentum=0.9))


class _LazyMomentum(torch.optim.Optimizer):
    """An optimizer that creates its state when a parameter first has a gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["m"], state["steps"] = torch.zeros_like(p), 0
                    state["steps"] += 1
                    state["m"].lerp_(p.grad, 0.1)
                    p.sub_(group["lr"] * state["m"] / (1 - 0.9 ** state["steps"]))


@sound("optimizer of one's own with lazy state")
def lazy_optimizer(config: Config) -> Recipe:
    model = net()
    return recipe(model, optimizer=_LazyMomentum(model.parameters(), lr=0.02))


@sound("parameters that get gradients late")
def late_gradients(config: Config) -> Recipe:
    model = nn.ModuleDict({"body": net(), "gate": nn.Linear(8, 1)})

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        value = functional.mse_loss(model["body"](batch[0]), batch[1])
        return value + 0.1 * model["gate"](batch[0]).square().mean() if batch[0].mean() > 0.05 else value

    return recipe(model, loss)


@sound("GradScaler that grows and skips")
def scaler(config: Config) -> Recipe:
    return recipe(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**125, growth_interval=4))


@sound("schedulers in a sequence")
def sequential(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=26)
    then = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=7)
    return recipe(
        model, optimizer=optimizer, scheduler=lr_scheduler.SequentialLR(optimizer, [warm, then], milestones=[26])
    )


@sound("chained schedulers")
def chained(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    both = [lr_scheduler.ExponentialLR(optimizer, 0.99), lr_scheduler.StepLR(optimizer, 9, 0.7)]
    return recipe(model, optimizer=optimizer, scheduler=lr_scheduler.ChainedScheduler(both))


@sound("OneCycleLR")
def one_cycle(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return recipe(model, optimizer=optimizer, scheduler=lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=2_000_000))


@sound("LambdaLR of a closure")
def lambda_rate(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(step / 100)))
    return recipe(model, optimizer=optimizer, scheduler=schedule)


@sound("two optimizers by name")
def two_optimizers(config: Config) -> Recipe:
    model = nn.ModuleDict({"g": net(), "d": nn.Linear(1, 1)})
    optimizers = {
        "g": torch.optim.Adam(model["g"].parameters(), lr=1e-3),
        "d": torch.optim.SGD(model["d"].parameters(), lr=1e-2),
    }

    def step(model: Any, batch: Batch, optimizer: Any) -> dict[str, torch.Tensor]:
        fake = model["g"](batch[0])
        d_loss = (
            functional.softplus(model["d"](fake.detach())).mean() + functional.softplus(-model["d"](batch[1])).mean()
        )
        optimizer["d"].zero_grad()
        d_loss.backward()
        optimizer["d"].step()
        g_loss = functional.mse_loss(fake, batch[1]) + 0.1 * functional.softplus(-model["d"](fake)).mean()
        optimizer["g"].zero_grad()
        g_loss.backward()
        optimizer["g"].step()
        return {"loss": g_loss, "d": d_loss}

    return recipe(model, None, optimizer=optimizers, step=step)


@sound("accumulation over three batches")
def accumulated(config: Config) -> Recipe:
    return recipe(accumulate=3)


@sound("bf16 autocast")
def autocast(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(batch[0])
        return functional.mse_loss(found.float(), batch[1])

    return recipe(loss=loss)


@sound("batches of dicts and texts")
def dict_batches(config: Config) -> Recipe:
    class Rows(Dataset[Any]):
        def __init__(self) -> None:
            self.x, self.y = samples()

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return {"x": self.x[index], "y": self.y[index], "name": f"row {index}"}

    return recipe(loss=lambda model, batch: functional.mse_loss(model(batch["x"]), batch["y"]), data=loader(Rows()))


@sound("dropout drawn by hand from the global stream")
def own_dropout(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        kept = (torch.rand_like(batch[0]) > 0.2).float()
        return mse(model, [batch[0] * kept, batch[1]])

    return recipe(loss=loss)


@sound("network that checks its gradients")
def checkpointed(config: Config) -> Recipe:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = nn.Sequential(nn.Linear(8, WIDTH), nn.Dropout(0.2)), nn.Linear(WIDTH, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.rest(checkpoint(self.first, x, use_reentrant=False))
            return found

    return recipe(Checkpointed())


class _Endless:
    """An iterator over given values, which is kept, but never advanced."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@sound("iterator that is kept and not advanced")
def idle_iterator(config: Config) -> Recipe:
    idle = iter(_Endless())

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        if len(batch) > 2:
            next(idle)
        return mse(model, batch)

    return recipe(loss=loss)
