"""Classify digits with Lightning: a LightningModule, a validation after each epoch."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.digits.glyphs import digits


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(0.25), nn.Linear(784, 10))

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.head(self.features(images)), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (self.head(self.features(images)).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    lightning.seed_everything(1)
    loader = DataLoader(digits(2400, seed=2), batch_size=48, shuffle=True)
    validation = DataLoader(digits(480, seed=3), batch_size=240)
    model = Classifier()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=options.epochs, accelerator="cpu", **quiet)
    trainer.fit(model, loader, validation)
    torch.save(model.state_dict(), "lightning.pt")


if __name__ == "__main__":
    main()
