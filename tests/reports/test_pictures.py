"""Plots stay small, whatever the run: the Prefect server stores each version of an artifact."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from segue.controller.steps import open_run
from segue.curves.picture import MOST_BYTES, small_png
from segue.records import Capacity, StopReason
from segue.reports import run_plot
from tests.support.histories import START, Logbook, make_spec


def noisy(*, lines: int) -> Figure:
    figure, random = Figure(figsize=(10, 6.2), layout="constrained"), np.random.default_rng(3)
    axes = figure.subplots()
    for _ in range(lines):
        axes.plot(random.normal(size=3000), lw=0.5, color=random.uniform(size=3))
    return figure


@pytest.mark.parametrize("lines", [0, 1, 8])
def test_a_figure_that_is_all_noise_is_still_small(lines):
    png = small_png(noisy(lines=lines))
    assert len(png) <= MOST_BYTES
    with Image.open(io.BytesIO(png)) as image:
        assert image.width >= 400


def test_colours_with_a_meaning_survive_the_palette():
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    axes.axvspan(0, 1, color="#cfe3f7")
    for at, colour in enumerate(("#2e7d32", "#b3261e", "#7a3fb0", "#c45a11")):
        axes.axvline(at / 4, color=colour, lw=2)
    with Image.open(io.BytesIO(small_png(figure))) as image:
        found = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
    for wanted in ((0xCF, 0xE3, 0xF7), (0x2E, 0x7D, 0x32), (0xB3, 0x26, 0x1E), (0x7A, 0x3F, 0xB0), (0xC4, 0x5A, 0x11)):
        assert np.abs(found - wanted).sum(axis=1).min() < 40, wanted


@pytest.mark.matrix
def test_the_plot_of_a_run_with_many_segments_is_small(monkeypatch, tmp_path):
    spec = make_spec(steps=20_000, deadline_in=40_000, policy={"max_lost_in_place": 999}, store={"url": str(tmp_path)})
    book, rows, random = Logbook(spec), [], np.random.default_rng(5)
    for number in range(1, 201):
        capacity = Capacity.ON_DEMAND if number % 7 == 0 else Capacity.SPOT
        plan = book.plan(capacity)
        book.seconds += 20
        name = book.claim(plan)
        kept = book.commit(name, 100 * number)
        steps = np.arange(100 * (number - 1), 100 * number)
        seconds = book.seconds + np.linspace(10, 120, len(steps))
        loss = 3 * np.exp(-steps / 5000) + random.gamma(2, 0.2, len(steps))
        moments = [START + pd.Timedelta(seconds=at) for at in seconds]
        columns = {"step": steps, "loss": loss, "wall_time": moments, "attempt_id": name, "superseded": False}
        rows.append(pd.DataFrame(columns))
        book.seconds += 130
        done = {"seconds": 130, "train_steps": 100, "train_seconds": 110, "to_step": 100 * number, "checkpoint": kept}
        book.report(plan, StopReason.LOST, attempt_id=name, **done)
    frame = pd.concat(rows, ignore_index=True)
    monkeypatch.setattr(run_plot, "read_history", lambda _: book.history)
    monkeypatch.setattr(run_plot, "curve", lambda *_, **__: frame)
    png = run_plot.draw(open_run(spec.model_copy(update={"deadline": None}), clock=_Clock()))
    assert len(png) <= MOST_BYTES
    (tmp_path / "many.png").write_bytes(png)


class _Clock:
    def now(self):
        return START

    def monotonic(self):
        return 0.0

    def sleep(self, seconds):
        raise AssertionError
