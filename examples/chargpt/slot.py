"""Train the small GPT on the texts of a slot: a loop of its own, which gets files and options as `run.config`."""

from __future__ import annotations

import numpy as np
import torch

import segue
from examples.chargpt.published import LENGTH, model


def main() -> None:
    """Config: data (files with a column text), lr (3e-3), batch_size (8), width, layers."""
    with segue.session() as run:
        config = run.config
        text = "\n\n".join(segue.data_frame(config)["text"])
        data = np.frombuffer(text.encode(), np.uint8)
        torch.manual_seed(1337)
        net = model(config)
        optimizer = torch.optim.AdamW(net.parameters(), lr=config.get("lr", 3e-3))
        run.track(model=net, optimizer=optimizer)
        for _ in run.steps():
            starts = torch.randint(len(data) - LENGTH, (config.get("batch_size", 8),)).tolist()
            rows = torch.from_numpy(np.stack([data[at : at + LENGTH + 1] for at in starts]).astype(np.int64))
            _, loss = net(rows[:, :-1], rows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss=loss)


if __name__ == "__main__":
    main()
