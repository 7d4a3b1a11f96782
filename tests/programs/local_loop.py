"""A script that trains with a local session, or bare."""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import nn

import segue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause-after", type=int, default=1 << 30)
    parser.add_argument("--save-at", type=int, default=-1)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--break-at", type=int, default=-1)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()

    torch.manual_seed(1)
    inputs = torch.randn(64, 8)
    targets = inputs.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=8, shuffle=True)
    losses: dict[str, float] = {}

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with segue.session(local=options.folder) if options.folder else segue.session() as run:
        run.track(model=model, optimizer=optimizer, losses=losses)
        if options.epochs:
            for _ in run.epochs(options.epochs):
                for x, y in run.batches(data):
                    run.report(loss=train(x, y))
        else:
            for step in run.steps(options.steps):
                chosen = torch.randint(0, 64, (8,))
                loss = train(inputs[chosen], targets[chosen])
                if step == options.raise_at:
                    raise ArithmeticError("this script raises here, as asked")
                if step == options.break_at:
                    break
                if step >= options.pause_after:
                    time.sleep(0.1)
                run.report(loss=loss)
                if step == options.save_at:
                    run.save_best(float(loss))
    sys.stdout.write(f"{run.step} steps, {sum(p.double().sum() for p in model.parameters()).item():.15f}\n")


if __name__ == "__main__":
    main()
