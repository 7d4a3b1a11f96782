"""A script that measures its own weights after some steps, and asks for a checkpoint with that metric."""

from __future__ import annotations

import argparse
import time

import torch

import segue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rate-at", type=int, nargs="*", help="Steps that are measured; all of them if none is named.")
    parser.add_argument("--hang-at", type=int, default=-1)
    options = parser.parse_args()

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rated = range(1, options.steps + 1) if options.rate_at == [] else options.rate_at or ()
    with segue.session() as run:
        run.track(model=model, optimizer=optimizer)
        for number in run.steps(options.steps):
            if number == options.hang_at:
                time.sleep(600)
            loss = model(torch.ones(4, 3)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss=loss)
            if number + 1 in rated:
                run.save_best(model.weight.sum().item())


if __name__ == "__main__":
    main()
