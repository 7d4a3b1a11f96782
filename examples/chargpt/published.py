"""What retrain.toml names: the model alone, and what it is judged by. Importing this trains nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from examples.chargpt.model import GPT

LENGTH = 64


def model(config: dict[str, Any]) -> GPT:
    """The model without weights. Config: width (64), layers (3)."""
    return GPT(LENGTH, width=int(config.get("width", 64)), layers=int(config.get("layers", 3)))


def scores(model: Callable[..., Any], frame: pd.DataFrame) -> dict[str, Any]:
    """How many bits the model needs for a byte of each paragraph, from its first 65 bytes."""
    rows = np.stack([np.frombuffer(text.encode()[: LENGTH + 1], np.uint8) for text in frame["text"]])
    tokens = torch.from_numpy(rows.astype(np.int64))
    logits, _ = model(tokens[:, :-1])
    nats = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return {"bits_per_byte": (nats.mean(1) / math.log(2)).numpy()}
