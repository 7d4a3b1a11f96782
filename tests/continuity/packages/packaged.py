"""A recipe that imports an installed package, which a test replaces by another version between two attempts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from tests.recipes.faulty import build as faulty


def install(folder: Path, *, version: str, scale: float) -> None:
    """Install the package `segue_measured` as pip does."""
    for old in folder.glob("segue_measured-*/METADATA"):
        old.unlink()
        old.parent.rmdir()
    info = folder / f"segue_measured-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: segue-measured\nVersion: {version}\n")
    (folder / "segue_measured.py").write_text(f"SCALE = {scale!r}\n")


def build(config: dict[str, Any]) -> Recipe:
    """Config: packages (the folder it is installed in), and what `faulty` takes."""
    sys.path.insert(0, config["packages"])
    sys.dont_write_bytecode = True
    import segue_measured

    recipe = faulty({name: value for name, value in config.items() if name != "packages"})
    inner = recipe.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return inner(model, batch) * segue_measured.SCALE

    recipe.loss = loss
    return recipe
