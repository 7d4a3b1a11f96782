"""Kinds that are found and named wrongly today."""

from __future__ import annotations

import pytest

_NAMED_AS_A_SETTING = (
    "[pytorch/pytorch#1489]",
    "[replay_buffer-loss-loss.buffer]",
    "[momentum_of_the_norm_lost-model]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.endswith(_NAMED_AS_A_SETTING):
            why = "broken as it should be, but the first cause named is a changed setting"
            item.add_marker(pytest.mark.xfail(reason=why))
