"""Which lines of a process that died are quoted."""

from __future__ import annotations

import logging

import pytest

from segue.launch.output import LastLines, Line


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ([], ""),
        (["", "step 1", "bye", ""], "step 1 | bye"),
        (["1", "2", "3", "4"], "2 | 3 | 4"),
        (["val error: 0.3", "Traceback (most recent call last):", "  File x", "ValueError: no"], "ValueError: no"),
        (["torch.AcceleratorError: CUDA error", "step 2"], "torch.AcceleratorError: CUDA error"),
        (["k.cu:9: Assertion `i < n` failed.", "x" * 999], "k.cu:9: Assertion `i < n` failed."),
        (["x" * 999], "x" * 300),
    ],
)
def test_lines_that_say_why_are_quoted_or_else_the_last_ones(printed, why):
    shown: list[str] = []
    lines = LastLines(lambda line: shown.append(line.text))
    for text in printed:
        lines(Line(logging.INFO, text))
    assert (lines.why(), shown) == (why, printed)
