"""How far two replays lie apart: relative, with nan and infinity as they are, and content before numbers."""

from __future__ import annotations

import math

import pytest

from segue.continuity.differences import are_equal, content_difference, differences, relative, spread
from segue.records import WitnessRow


def row(step, **changes):
    fields = {"step": step, "loss": 2.0, "grad_norm": 2.0, "param_norm": 7.0, "lr": (0.1,)}
    return WitnessRow(**(fields | {"batch_fingerprint": "b", "input_fingerprint": "i"} | changes))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (2.0, 2.0, None),
        (math.nan, math.nan, None),
        (math.inf, math.inf, None),
        (2.0, math.nan, math.inf),
        (math.inf, 2.0, math.inf),
        (2.0, 1.0, 0.5),
        (200.0, 100.0, 0.5),
        (-1.0, 1.0, 2.0),
    ],
)
def test_a_difference_is_relative_to_the_larger_one(before, after, found):
    assert relative(before, after) == found
    assert relative(after, before) == found


def test_the_largest_difference_of_all_steps_and_pairs_counts():
    one, other = [row(1), row(2)], [row(1, loss=1.0), row(2, loss=1.9), row(9, loss=0.0)]
    assert differences(one, other) == {"loss": 0.5}
    assert spread([one, other, [row(1, grad_norm=1.0)]]) == {"loss": 0.5, "grad_norm": 0.5}


def test_rows_are_equal_in_content_and_numbers():
    assert are_equal([row(1)], [row(1)])
    assert not are_equal([row(1)], [row(1, loss=math.nextafter(2.0, 3))])
    assert not are_equal([row(1)], [row(1, lr=(0.2,))])
    assert content_difference([[row(1), row(2)], [row(1), row(2, lr=(0.2,))]]) == ("lr", 2)
