"""Recipes for tests on a device: small, and each with something that a device does in a way of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import Recipe

SAMPLES, WIDTH, LENGTH = 512, 64, 64


def build(config: dict[str, Any]) -> Recipe:
    """Config: kind; lost (the state of the optimizer is not restored from the second build on, told by `marker`)."""
    recipe: Recipe = KINDS[config["kind"]](config)
    if config.get("lost"):
        marker = Path(config["marker"])
        if marker.exists():
            recipe.optimizer.load_state_dict = lambda state: None
        marker.touch()
    return recipe


def _data() -> DataLoader[Any]:
    made = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, WIDTH, generator=made)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)


def _mse(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return functional.mse_loss(model(x).float(), y)


def _recipe(model: nn.Module, **fields: Any) -> Recipe:
    optimizer = fields.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Recipe(**{"model": model, "optimizer": optimizer, "data": _data(), "loss": _mse} | fields)


def mlp(config: dict[str, Any]) -> Recipe:
    return _recipe(
        nn.Sequential(nn.Linear(WIDTH, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 1))
    )


class _Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(x.view(-1, 1, 8, 8)).flatten(1))
        return found


def cnn(config: dict[str, Any]) -> Recipe:
    return _recipe(_Cnn())


class _Attention(nn.Module):
    """Self-attention over the features of a sample, by one of torch's kernels."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.enter, self.qkv, self.leave = nn.Linear(1, 64), nn.Linear(64, 192), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        hidden = self.enter(x.unsqueeze(-1))
        q, k, v = self.qkv(hidden).view(len(x), WIDTH, 3, 4, 16).permute(2, 0, 3, 1, 4)
        backends = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
        dtype = torch.bfloat16 if self.kernel == "flash" else torch.float32
        with sdpa_kernel([backends[self.kernel], SDPBackend.MATH]):
            mixed = functional.scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype), dropout_p=0.0)
        found: torch.Tensor = self.leave(mixed.float().transpose(1, 2).reshape(len(x), WIDTH, 64).mean(1))
        return found


def attention(config: dict[str, Any]) -> Recipe:
    return _recipe(_Attention("math"))


def flash(config: dict[str, Any]) -> Recipe:
    return _recipe(_Attention("flash"))


class _Scatter(nn.Module):
    """Sums many messages into few places, by atomic additions on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.leave = nn.Parameter(torch.randn(4096, 16) / 16), nn.Linear(WIDTH + 16, 1)
        self.register_buffer("places", torch.randint(8, (4096,), generator=torch.Generator().manual_seed(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = self.places.unsqueeze(1).expand(-1, 16)
        summed = torch.zeros(8, 16, device=x.device).scatter_add(0, index, torch.tanh(self.table))
        found: torch.Tensor = self.leave(torch.cat([x, summed.mean(0).expand(len(x), -1)], dim=1))
        return found


def scatter(config: dict[str, Any]) -> Recipe:
    return _recipe(_Scatter())


def averaged(config: dict[str, Any]) -> Recipe:
    """An average in `extra`, a loss with weights, an optimizer with state from the start.

    Config: by_hand (torch's own update of an average waits for the device since 2.11).
    """
    model = nn.Linear(WIDTH, 1)
    average = AveragedModel(model)

    def update(step: int) -> None:
        if config.get("by_hand"):
            with torch.no_grad():
                torch._foreach_lerp_(list(average.module.parameters()), list(model.parameters()), 0.1)
        else:
            average.update_parameters(model)

    loss = _Weighted()
    return _recipe(
        model,
        optimizer=torch.optim.Adagrad(model.parameters(), lr=1e-2),
        loss=loss,
        extra={"average": average},
        after_step=update,
    )


class _Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.linspace(0.5, 1.5, 1))

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return ((model(x) - y).square() * self.weights).mean()


def scaled(config: dict[str, Any]) -> Recipe:
    """A scaler whose first steps overflow, because its scale begins too high."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return _recipe(nn.Linear(WIDTH, 1), scaler=torch.amp.GradScaler(device, init_scale=2.0**60, growth_interval=5))


def bf16(config: dict[str, Any]) -> Recipe:
    """bf16, a fused optimizer, and a learning rate that is a tensor on the device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, 1)).to(device)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return functional.mse_loss(model(x).float(), y)

    return _recipe(model, optimizer=optimizer, loss=loss)


def compiled(config: dict[str, Any]) -> Recipe:
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, 1))
    fast = torch.compile(model, mode=config.get("mode"))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(fast(x), y)

    return _recipe(model, loss=loss)


def hungry(config: dict[str, Any]) -> Recipe:
    """Asks for more memory than any device has, in step 15."""

    def after_step(step: int) -> None:
        if step == 15:
            torch.empty(1 << 46, device="cuda" if torch.cuda.is_available() else "cpu")

    return _recipe(nn.Linear(WIDTH, 1), after_step=after_step)


def asserting(config: dict[str, Any]) -> Recipe:
    """An index beyond a table, in step 15: on a device this is an assert of a kernel, which ends its context."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        asserting.steps += 1
        index = torch.tensor([10**6 if asserting.steps == 15 else 0], device=batch[0].device)
        return _mse(model, batch) + 0 * functional.embedding(index, torch.zeros(4, 4, device=index.device)).sum()

    asserting.steps = 0
    return _recipe(nn.Linear(WIDTH, 1), loss=loss)


def precise(config: dict[str, Any]) -> Recipe:
    """Products of matrices in TF32 where the environment says so."""
    torch.set_float32_matmul_precision(os.environ.get("TEST_MATMUL", "highest"))
    return _recipe(nn.Sequential(nn.Linear(WIDTH, 1024), nn.Tanh(), nn.Linear(1024, 1)))


def spacious(config: dict[str, Any]) -> Recipe:
    """Holds three quarters of what the device has left, so that no second process has room for as much."""
    recipe = _recipe(nn.Linear(WIDTH, 1))
    if torch.cuda.is_available():
        held = torch.empty(int(0.75 * torch.cuda.mem_get_info()[0]), dtype=torch.uint8, device="cuda")
        recipe.after_step = lambda step: held[:1].zero_()
    return recipe


def sharded(config: dict[str, Any]) -> Recipe:
    """FSDP2 over a mesh of one. Config: reshard, offload."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = dist.init_device_mesh(device, (1,))
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, 1))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if config.get("offload") else OffloadPolicy()
    reshard = bool(config.get("reshard", True))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard)
    return _recipe(model)


KINDS = {
    each.__name__: each
    for each in (
        mlp,
        cnn,
        attention,
        flash,
        scatter,
        averaged,
        scaled,
        bf16,
        compiled,
        hungry,
        asserting,
        precise,
        spacious,
        sharded,
    )
}
