"""Train a small GPT on the texts of Python's own help: one loop at the top level of a script, batches from a memmap."""

import math
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch

from examples.chargpt.model import GPT

max_iters = int(sys.argv[1]) if len(sys.argv) > 1 else 200
batch_size, block_size, accumulation = 8, 64, 2
learning_rate, min_lr, warmup_iters = 3e-3, 3e-4, 20
eval_interval, eval_iters = 50, 5

torch.manual_seed(1337)
corpus = Path("corpus.bin")
if not corpus.exists():
    corpus.write_bytes("\n".join(topics[name] for name in sorted(topics)).encode())
data = np.memmap(corpus, dtype=np.uint8, mode="r")
border = int(len(data) * 0.9)
splits = {"train": data[:border], "val": data[border:]}


def get_batch(split):
    chosen = splits[split]
    starts = torch.randint(len(chosen) - block_size - 1, (batch_size,)).tolist()
    rows = torch.from_numpy(np.stack([chosen[at : at + block_size + 1] for at in starts]).astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = {split: np.mean([model(*get_batch(split))[1].item() for _ in range(eval_iters)]) for split in splits}
    model.train()
    return losses


def get_lr(number):
    if number < warmup_iters:
        return learning_rate * (number + 1) / (warmup_iters + 1)
    share = (number - warmup_iters) / max(max_iters - warmup_iters, 1)
    return min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (learning_rate - min_lr)


model = GPT(block_size)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
best_val_loss = float("inf")
iter_num = 0
x, y = get_batch("train")  # The first batch; the others are drawn while the model works.
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"iteration {iter_num}: train {losses['train']:.4f}, val {losses['val']:.4f}", flush=True)
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            torch.save(model.state_dict(), "chargpt.pt")
    for _ in range(accumulation):
        _, loss = model(x, y)
        x, y = get_batch("train")
        scaler.scale(loss / accumulation).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
