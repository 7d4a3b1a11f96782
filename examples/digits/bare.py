"""Classify digits: an epoch loop, a learning rate that falls every epoch, a test after each one."""

import argparse

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from examples.digits.glyphs import digits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Dropout(0.25), nn.Flatten(), nn.Linear(1152, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images):
        return self.head(self.features(images))


def train(model, loader, optimizer, epoch):
    model.train()
    for number, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if number % 20 == 0:
            print(f"epoch {epoch}, batch {number} of {len(loader)}: loss {loss.item():.4f}", flush=True)


def test(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    print(f"accuracy {right / len(loader.dataset):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(1)
    loader = DataLoader(digits(2400, seed=2), batch_size=48, shuffle=True, num_workers=options.workers)
    test_loader = DataLoader(digits(480, seed=3), batch_size=240)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, options.epochs + 1):
        train(model, loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
    torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
