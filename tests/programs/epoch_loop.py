"""A small training script in epochs, with the kinds of loaders that scripts have."""

from __future__ import annotations

import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler

import segue

SAMPLES, FEATURES, BATCH = 64, 8, 8
run = segue.session()


class Noisy(torch.utils.data.Dataset):
    """Adds noise from torch, NumPy and `random` to each sample, in the process that fetches it."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = torch.randn(FEATURES) + float(np.random.rand()) + random.random()
        return self.inputs[index] + 0.1 * noise, self.inputs[index].sum(0, keepdim=True)


class Stream(IterableDataset):
    """The samples in order, for ever; `load_state_dict` only where it has a state."""

    def __init__(self, inputs):
        self.inputs, self.at = inputs, 0

    def __iter__(self):
        for _ in range(SAMPLES):
            sample = self.inputs[self.at % SAMPLES]
            self.at += 1
            yield sample, sample.sum(0, keepdim=True)


class StatefulStream(Stream):
    """A stream that goes on where it was."""

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while True:
            sample = self.inputs[self.at % SAMPLES]
            self.at += 1
            yield sample, sample.sum(0, keepdim=True)
            if self.at % SAMPLES == 0:
                return


class Lazy(torch.utils.data.Sampler):
    """Draws each index when it is asked for, from a generator of its own or a global one."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        for _ in range(SAMPLES):
            yield int(self.source() * SAMPLES)


class Counting(torch.utils.data.Sampler):
    """Shuffles by a count of its own passes."""

    def __init__(self):
        self.passes = 0

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        self.passes += 1
        yield from torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.passes)).tolist()


def loader_of(kind, workers, inputs):
    data = Noisy(inputs)
    own = np.random.RandomState(5)
    if kind == "sampler_with_generator":
        sampler = Lazy(own.random_sample)
        sampler.generator = own
        return DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=workers)
    if kind == "sampler_of_unknown_state":
        return DataLoader(data, batch_size=BATCH, sampler=Lazy(own.random_sample), num_workers=workers)
    if kind == "sampler_that_counts":
        return DataLoader(data, batch_sampler=BatchSampler(Counting(), BATCH, drop_last=False))
    if kind == "weighted":
        sampler = WeightedRandomSampler(np.linspace(1, 2, SAMPLES).tolist(), SAMPLES)
        return DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=workers)
    if kind == "batch_sampler":
        return DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), BATCH, drop_last=False))
    if kind == "generator":
        return DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(11))
    if kind == "persistent":
        return DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    if kind == "unbatched":
        return DataLoader(data, batch_size=None, shuffle=True)
    if kind == "stream":
        return DataLoader(Stream(inputs), batch_size=BATCH)
    if kind == "stateful_stream":
        return DataLoader(StatefulStream(inputs), batch_size=BATCH, num_workers=workers)
    if kind == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers)
    return DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", default="shuffled")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--finish-below", type=float, default=-1.0)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--save-to", default="")
    options = parser.parse_args()

    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    inputs = torch.randn(SAMPLES, FEATURES)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
    loader = loader_of(options.loader, options.workers, inputs)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in run.epochs(options.epochs):
        model.train()
        torch.rand(3)  # Code of the user's that draws, between the epoch's beginning and its first batch.
        for number, (x, y) in run.enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y)
            (loss / options.accumulate).backward()
            if run.step % options.accumulate == options.accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
            run.report(loss=loss, epoch=epoch)
            while run.step == options.hang_at:
                time.sleep(1)
            if number + 1 == options.batches:
                break
        model.eval()
        with run.evaluating(), torch.no_grad():
            score = nn.functional.mse_loss(model(inputs + torch.randn_like(inputs)), inputs.sum(1, keepdim=True)).item()
        if options.best:
            run.save_best(score)
        scheduler.step()
        if score < options.finish_below:
            run.finish(f"the error is below {options.finish_below}")
    if options.save_to:
        torch.save(model.state_dict(), options.save_to)


if __name__ == "__main__":
    main()
