"""A recipe that was built: whether the way its numbers are summed is that of an older checkpoint."""

from __future__ import annotations

import pytest
import torch

from segue.errors import BrokenResumeError
from segue.records import Environment
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.live_recipe import LiveRecipe


@pytest.mark.parametrize(("grouping", "depends"), [("as the model", False), ("biases first", True)])
def test_only_groups_in_another_order_than_the_model_make_the_order_of_sums_matter(make_spec, grouping, depends):
    live = LiveRecipe(make_spec(), device=torch.device("cpu"), ranks=Ranks())
    if grouping == "biases first":
        group = live.recipe.optimizer.param_groups[0]
        group["params"] = sorted(group["params"], key=lambda parameter: parameter.dim())
    assert live.depends_on_order_of_sums is depends


def test_a_checkpoint_of_version_0_1_differs_in_its_arithmetic_alone():
    facts = {"torch": "2", "device": "cpu", "instruction_set": "AVX2", "threads": 1}
    old, new = Environment(**facts), Environment(**facts, arithmetic=2)
    assert new.differs_from(old) == ("arithmetic",)


@pytest.mark.parametrize(
    ("component", "detail", "said"),
    [
        (
            "optimizer",
            "optimizer was not restored: the live object has none of its state.",
            "was not restored (the live",
        ),
        ("setup.code", "the recipe's code is changed: mine.loss", ": the recipe's code is changed"),
    ],
)
def test_a_broken_resume_names_the_component_once_and_what_is_wrong_with_it(component, detail, said):
    message = str(BrokenResumeError(component=component, detail=detail))
    assert message.startswith(f"Resume verification failed: {component}")
    assert said in message
    assert message.count("Fix: ") == 1
    assert message.count("was not restored") <= 1
