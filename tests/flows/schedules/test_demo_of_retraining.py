"""The demo of scheduled retraining on real flights, and what the Prefect UI shows of it in a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from segue.deployments.process.retrain_demo import DELIVERIES, RetrainDemo

from examples.retraining.months import deliver
from segue.retraining.gate.docs import fetch_docs
from tests.flows.conftest import REPO

pytestmark = [pytest.mark.prefect, pytest.mark.matrix, pytest.mark.soak]

CHROMIUM = shutil.which("chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars")
MOST_SECONDS = 8 * 60


@pytest.mark.timeout(1200)
def test_six_monthly_slots_end_as_they_should_and_the_ui_shows_them(own_stack, tmp_path, monkeypatch):
    monkeypatch.chdir(REPO)  # Where the example's package can be imported.
    started = time.monotonic()
    with get_client(sync_client=True) as client:
        demo = RetrainDemo(client, tmp_path / "retrain-demo", home=REPO, write_month=deliver)
        demo.run()
        demo.show(url=own_stack.url, seconds=time.monotonic() - started)
        deployment = client.read_deployment_by_name("retrain/flights")
        assert [schedule.active for schedule in deployment.schedules] == [True]
        preempted = demo.spec.name + "-" + names_of(demo)[2]
    names = [slot.state.name for slot in demo.slots]
    assert [name for name, delivery in zip(names, DELIVERIES, strict=True) if delivery.outcome] == [
        delivery.outcome for delivery in DELIVERIES if delivery.outcome
    ]
    models = demo.log.read()
    assert models.in_service == models.before or models.events[-1].record.kind == "choice"
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: the pages were not opened")
    docs = fetch_docs(demo.store, demo.log.read().slots[demo.slots[3].at].start.docs, tmp_path / "docs")
    pages = {
        "history": (f"{own_stack.url}/artifacts/key/segue-model-flights", "rolls back"),
        "runs": (f"{own_stack.url}/runs", "flights-"),
        "deployment": (f"{own_stack.url}/deployments/deployment/{deployment.id}", "flights"),
        "run": (f"{own_stack.url}/artifacts/key/segue-{preempted}", "on time"),
        "data-docs": (docs.as_uri(), "Data Docs"),
    }
    folder = Path(os.environ.get("SEGUE_SCREENSHOTS", tmp_path / "screenshots"))
    for name, (url, _) in pages.items():
        screenshot(url, folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000


def names_of(demo: RetrainDemo) -> list[str]:
    from segue.retraining.slots import stamp_of

    return [stamp_of(slot.at) for slot in demo.slots]


def screenshot(url: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    profile = file.with_suffix(".profile")
    size = ("--window-size=1400,1800", "--virtual-time-budget=20000")
    command = [str(CHROMIUM), *FLAGS, *QUIET, *size, f"--user-data-dir={profile}", f"--screenshot={file}", url]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
