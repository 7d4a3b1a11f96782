"""`python -m benchmarks growth` measures each operation at each size, and says how its seconds grow."""

from __future__ import annotations

import math

import pytest

from benchmarks.growth.measure import Growth, measure


@pytest.mark.matrix
def test_each_thing_is_measured_at_each_size():
    said = []
    found = measure(largest=10, say=said.append)
    assert said == ["states", "tensors", "logs", "runs", "runs in a bucket", "curves"]
    assert {each.unit for each in found} == {"bytes", "tensors", "records", "runs", "rows"}
    for each in found:
        assert len(each.sizes) == 2
        assert all(0 < seconds < 60 for seconds in each.seconds), each
        assert math.isfinite(each.exponent)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_is_the_power_of_the_size(power):
    sizes = (10, 100, 1_000, 10_000)
    growth = Growth("anything", "things", sizes, tuple(0.001 * size**power for size in sizes))
    assert growth.exponent == pytest.approx(power)
    assert growth.facts()["exponent"] == power
