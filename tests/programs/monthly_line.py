"""A script that a schedule retrains: one line through the points of its slot's files."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

import segue


def main() -> None:
    with segue.session() as run:
        frame = segue.data_frame(run.config)
        points = torch.tensor(frame[["x", "y"]].to_numpy(np.float32))
        torch.manual_seed(1)
        line = nn.Linear(1, 1)
        if run.config.get("compiled"):
            line = torch.compile(line, backend="eager")
        optimizer = torch.optim.SGD(line.parameters(), lr=run.config.get("lr", 0.1))
        run.track(line=line, optimizer=optimizer)
        for _ in run.steps(40):
            chosen = points[torch.randint(len(points), (20,))]
            loss = nn.functional.mse_loss(line(chosen[:, :1]), chosen[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(run.config.get("pause_seconds", 0.0))
            run.report(loss=loss)


if __name__ == "__main__":
    main()
