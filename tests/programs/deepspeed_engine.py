"""A DeepSpeed engine with ZeRO, in one process on the CPU: its checkpoint folder is the run's state."""

from __future__ import annotations

import argparse
import os
import socket
import time
from pathlib import Path

import deepspeed
import torch
from torch import nn

import segue

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 40, "warmup_num_steps": 5}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--folder", default="state")
    parser.add_argument("--save-to", required=True)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    run = segue.session()
    folder = run.restore_folder(options.folder)
    if folder is not None:
        engine.load_checkpoint(folder)
    for step in run.steps(40):
        while step == options.hang_at:
            time.sleep(1)
        loss = engine(torch.randn(8, 4)).square().mean()
        engine.backward(loss)
        engine.step()
        run.report(loss=loss)
        if run.should_save:
            engine.save_checkpoint(options.folder)
            run.commit_folder(options.folder)
    torch.save(model.state_dict(), Path(options.save_to))


if __name__ == "__main__":
    main()
