"""A goal in epochs is a number of steps, counted from the recipe that the run would build."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from segue.errors import RecipeError, SpecError
from segue.interop.epoch_length import steps_of_epochs
from segue.recipe import Recipe
from segue.spec import RunSpec

SAMPLES = TensorDataset(torch.arange(22.0).reshape(22, 1))


class Growing:
    """Batches of the same samples: two in epoch 0, three in epoch 1, four in epoch 2."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 2 + self.epoch

    def __iter__(self):
        return iter([list(part) for part in torch.arange(22).tensor_split(2 + self.epoch)])


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(1)


LOADERS = {
    "short last batch": lambda: DataLoader(SAMPLES, batch_size=5, shuffle=True),
    "no short batch": lambda: DataLoader(SAMPLES, batch_size=5, drop_last=True),
    "own batches": lambda: DataLoader(SAMPLES, batch_sampler=Growing()),
    "no length": lambda: DataLoader(Endless(), batch_size=5),
}


def build(config):
    model = torch.nn.Linear(1, 1)
    return Recipe(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=LOADERS[config["loader"]](),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        accumulate=config["accumulate"],
    )


def spec_of(loader, accumulate=1):
    config = {"loader": loader, "accumulate": accumulate}
    return RunSpec.parse({"run_id": "r", "recipe": f"{__name__}:build", "steps": 1, "config": config})


@pytest.mark.parametrize(
    ("loader", "accumulate", "steps"),
    [
        ("short last batch", 1, 15),
        ("short last batch", 2, 9),
        ("no short batch", 1, 12),
        ("no short batch", 4, 3),
        ("own batches", 1, 9),
        ("own batches", 2, 5),
    ],
)
def test_three_epochs_are_this_number_of_steps(loader, accumulate, steps):
    before = torch.get_rng_state()
    assert steps_of_epochs(spec_of(loader, accumulate), 3) == steps
    assert torch.equal(torch.get_rng_state(), before)


def test_data_without_a_length_is_refused_with_a_fix():
    with pytest.raises(RecipeError, match=r"IterableDataset, which has no position .* Fix: use a map-style data set"):
        steps_of_epochs(spec_of("no length"), 3)


def test_the_epochs_of_a_program_have_no_known_length():
    program = RunSpec.parse({"run_id": "r", "program": {"command": ["python", "train.py"]}, "steps": 1})
    with pytest.raises(SpecError, match="needs a recipe"):
        steps_of_epochs(program, 3)


def test_saves_by_epochs_need_a_recipe():
    fields = {"run_id": "r", "steps": 9, "checkpoints": {"every_epochs": 2}}
    assert RunSpec.parse(fields | {"recipe": "a.b:c"}).checkpoints.every_epochs == 2
    with pytest.raises(SpecError, match=r"checkpoints: every_epochs needs a recipe.*use every_steps"):
        RunSpec.parse(fields | {"program": {"command": ["python", "train.py"]}})


def test_a_spec_without_saves_by_epochs_is_stored_as_before():
    spec = RunSpec.parse({"run_id": "r", "recipe": "a.b:c", "steps": 9})
    assert "every_epochs" not in spec.model_dump(mode="json")["checkpoints"]
