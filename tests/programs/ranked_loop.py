"""A program of several ranks, as torchrun starts them: it makes its own process group, and spreads its own model."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import segue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pause-seconds", type=float, default=0.0)
    parser.add_argument("--raise-at", type=int, nargs=2, default=(-1, -1), metavar=("RANK", "STEP"))
    parser.add_argument("--finish-at", type=int, nargs=2, default=(-1, -1), metavar=("RANK", "STEP"))
    parser.add_argument("--finish-before", type=int, default=-1, metavar="RANK")
    parser.add_argument("--break-at", type=int, nargs=2, default=(-1, -1), metavar=("RANK", "STEP"))
    parser.add_argument("--notice-at", type=int, nargs=2, default=(-1, -1), metavar=("RANK", "STEP"))
    parser.add_argument("--notice-after-seconds", type=float, default=0.0)
    parser.add_argument("--late-rank", type=int, default=-1, help="takes 0.4 s before each report")
    parser.add_argument("--metric-at", type=int, nargs=2, default=(-1, -1), metavar=("RANK", "STEP"))
    parser.add_argument("--silent-rank", type=int, default=-1)
    parser.add_argument("--drifting-rank", type=int, default=-1)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--default-buckets", action="store_true")
    options = parser.parse_args()

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    inputs = torch.randn(160, 8)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    if options.sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
        spread = model
    else:
        spread = DistributedDataParallel(model, find_unused_parameters=not options.default_buckets)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(100 + rank)
    draws, seen = torch.Generator().manual_seed(rank), {"largest": 0.0}

    run = segue.session()
    run.track(model=spread, optimizer=optimizer, scheduler=scheduler, draws=draws, seen=seen)
    if rank == options.finish_before:
        run.finish("this rank asked for the end")
    for epoch in run.epochs(options.epochs):
        sampler.set_epoch(epoch)
        for x, y in run.batches(loader):
            noise = torch.randn(x.shape, generator=draws) * 0.01
            seen["largest"] = max(seen["largest"], noise.max().item())
            loss = nn.functional.mse_loss(spread(x + noise), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == options.drifting_rank:
                with torch.no_grad():
                    model[0].weight.add_(0.1)
            if (rank, run.step) == tuple(options.raise_at):
                raise ArithmeticError("this rank raises here, as asked")
            time.sleep(options.pause_seconds)
            if (rank, run.step) == tuple(options.notice_at):
                give_notice(after_seconds=options.notice_after_seconds)
            if rank == options.late_rank:
                time.sleep(0.4)
            if (rank, run.step) == tuple(options.metric_at):
                run.save_best(loss.item())
            if (rank, run.step) == tuple(options.finish_at):
                run.finish("this rank asked for the end")
            if rank != options.silent_rank:
                run.report(loss=loss, largest=seen["largest"])
            if (rank, run.step) == tuple(options.break_at):
                break
        scheduler.step()
    dist.destroy_process_group()


def give_notice(*, after_seconds: float) -> None:
    send = partial(os.kill, os.getpid(), signal.SIGTERM)
    threading.Timer(after_seconds, send).start() if after_seconds else send()


if __name__ == "__main__":
    main()
