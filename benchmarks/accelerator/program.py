"""A program for a drill on a device: a compiled GPT with bf16, two batches in each step, and a scaler."""

from __future__ import annotations

import sys

import torch

import segue
from benchmarks.accelerator import gpt


def main(steps: int, size: str) -> None:
    """Train to step `steps`, or to the goal of the run."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = gpt.GPT(gpt.SIZES[size]).to(device)
    optimizer, scaler = gpt.optimizer_of(model), torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    fast = torch.compile(model, backend="aot_eager")
    run = segue.session()
    run.track(model=model, optimizer=optimizer, scaler=scaler)
    batches = run.batches(gpt.loader_of(gpt.SIZES[size]))
    for _ in run.steps(steps):
        losses = []
        for _ in range(2):
            loss = gpt.loss_of(fast, [tensor.to(device, non_blocking=True) for tensor in next(batches)])
            scaler.scale(loss / 2).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        run.report(loss=torch.stack(losses).mean())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
