"""The recipe of the store in `tests/fixtures/`: small, with a state of every kind that a checkpoint holds."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import segue


def build(config):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 4, generator=generator)
    y = x.sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    return segue.Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True),
        loss=lambda net, batch: nn.functional.mse_loss(net(batch[0]), batch[1]),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200),
    )
