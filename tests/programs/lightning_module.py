"""A LightningModule on noisy data, with a validation after each epoch."""

from __future__ import annotations

import argparse
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from segue.integrations.lightning import ResumableLoader, SegueCallback


class Noisy(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        x = torch.full((4,), float(index) / 48)
        return x + 0.1 * torch.randn(4), x.sum(0, keepdim=True)


class Module(lightning.LightningModule):
    def __init__(self, hang_at, has_plateau=False):
        super().__init__()
        self.hang_at, self.has_plateau = hang_at, has_plateau
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, _):
        while self.global_step == self.hang_at:
            time.sleep(1)
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("error", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if self.has_plateau:  # No error is as much smaller as this asks for.
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.99, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "error"}}
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--stop-early", action="store_true")
    parser.add_argument("--plateau", action="store_true")
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--forget-checkpoint", action="store_true")
    parser.add_argument("--hang-after", action="store_true", help="hang when training is over")
    parser.add_argument("--save-to", default="")
    options = parser.parse_args()
    lightning.seed_everything(3)
    loader = DataLoader(Noisy(), batch_size=6 // options.accumulate, shuffle=True)
    validation = DataLoader(Noisy(), batch_size=48)
    model = Module(options.hang_at, options.plateau)
    callback = SegueCallback()
    callbacks = [callback]
    if options.stop_early:  # No error is as much smaller as this asks for.
        callbacks.append(lightning.pytorch.callbacks.EarlyStopping("error", min_delta=100.0, patience=1))
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        accumulate_grad_batches=options.accumulate,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(
        model, ResumableLoader(loader), validation, ckpt_path=None if options.forget_checkpoint else callback.checkpoint
    )
    while options.hang_after:
        time.sleep(1)
    if options.save_to:
        torch.save(model.state_dict(), options.save_to)


if __name__ == "__main__":
    main()
