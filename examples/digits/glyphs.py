"""Images of digits: drawn from a 5 x 7 font, moved, blurred and noisy. The same in every process."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

_ROWS = {
    0: "01110 10001 10011 10101 11001 10001 01110",
    1: "00100 01100 00100 00100 00100 00100 01110",
    2: "01110 10001 00001 00110 01000 10000 11111",
    3: "11111 00010 00100 00010 00001 10001 01110",
    4: "00010 00110 01010 10010 11111 00010 00010",
    5: "11111 10000 11110 00001 00001 10001 01110",
    6: "00110 01000 10000 11110 10001 10001 01110",
    7: "11111 00001 00010 00100 01000 01000 01000",
    8: "01110 10001 10001 01110 10001 10001 01110",
    9: "01110 10001 10001 01111 00001 00010 01100",
}


def digits(count: int, *, seed: int) -> TensorDataset:
    """`count` images of shape (1, 16, 16) with values around 0 to 1, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    font = torch.tensor([[[float(pixel) for pixel in row] for row in _ROWS[n].split()] for n in range(10)])
    large = nn.functional.interpolate(font[:, None], size=(12, 9), mode="bilinear")
    labels = torch.randint(10, (count,), generator=generator)
    down, right = (torch.randint(limit, (count,), generator=generator).tolist() for limit in (5, 8))
    images = torch.randn(count, 1, 16, 16, generator=generator) * 0.2
    for image, label, top, left in zip(images, labels.tolist(), down, right, strict=True):
        image[:, top : top + 12, left : left + 9] += large[label]
    return TensorDataset(images, labels)
