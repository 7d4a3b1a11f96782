"""A small training script with a loop of its own: accumulation, a hand-made learning rate, batches drawn with RNG."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import segue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause-seconds", type=float, default=0.0)
    parser.add_argument("--forget", default="")
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--notes", type=Path)
    parser.add_argument("--nan-at", type=int, default=-1)
    options = parser.parse_args()

    torch.manual_seed(1)
    inputs = torch.randn(256, 8)
    targets = inputs.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = np.random.default_rng(3)
    best = {"loss": float("inf"), "step": -1}
    tracked = {"model": model, "optimizer": optimizer, "generator": generator, "best": best}
    with segue.session() as run:
        run.track(**{name: each for name, each in tracked.items() if name != options.forget})
        if options.notes:
            run.on_notice(lambda notice: options.notes.write_text(notice.kind))
        for step in run.steps(options.steps):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (1 - step / options.steps)
            total = 0.0
            for _ in range(2):
                chosen = torch.from_numpy(generator.integers(0, 256, 16))
                loss = nn.functional.mse_loss(model(inputs[chosen]), targets[chosen]) / 2
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            if total < best["loss"]:
                best.update(loss=total, step=step)
            if step == options.raise_at:
                raise ArithmeticError("this program raises here, as asked")
            if step == options.nan_at:
                total = float("nan")
            time.sleep(options.pause_seconds)
            run.report(loss=total)
    sys.stdout.write(f"done at {run.step} with {sum(p.sum() for p in model.parameters()).item():.9f}\n")


if __name__ == "__main__":
    main()
