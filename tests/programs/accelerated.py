"""A loop with Hugging Face Accelerate, which accumulates gradients and iterates its loader in its own way."""

from __future__ import annotations

import argparse
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import segue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--hang-after", action="store_true", help="hang when training is over")
    parser.add_argument("--save-to", default="")
    options = parser.parse_args()
    set_seed(3)
    inputs = torch.randn(48, 4)
    loader = DataLoader(TensorDataset(inputs), batch_size=6, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run = segue.session()
    run.track(model=model, optimizer=optimizer)
    run.track_variables(vars(accelerator), "step")
    for _ in run.epochs(5):
        for (x,) in run.batches(loader):
            while run.step == options.hang_at:
                time.sleep(1)
            with accelerator.accumulate(model):
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            run.report(loss=loss)
    while options.hang_after:
        time.sleep(1)
    if options.save_to:
        torch.save(accelerator.unwrap_model(model).state_dict(), options.save_to)


if __name__ == "__main__":
    main()
