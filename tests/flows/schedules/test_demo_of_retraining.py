"""The demo of scheduled retraining on real flights, and what the Prefect UI shows of it in a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from examples.demo.retraining import DELIVERIES, RetrainDemo
from segue.prefect.state_words import word_of
from segue.retraining.gate.docs import fetch_docs
from segue.retraining.slots import run_id_of
from tests.flows.conftest import REPO

pytestmark = [pytest.mark.prefect, pytest.mark.matrix, pytest.mark.soak]

CHROMIUM = shutil.which("chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)
MOST_SECONDS = 8 * 60


@pytest.mark.timeout(1200)
def test_six_monthly_slots_end_as_they_should_and_the_ui_shows_them(own_stack, tmp_path, monkeypatch):
    monkeypatch.chdir(REPO)  # Where the example's package can be imported.
    started = time.monotonic()
    with get_client(sync_client=True) as client:
        demo = RetrainDemo(client, own_stack)
        demo.run()
        demo.show(url=own_stack.url, seconds=time.monotonic() - started)
        deployment = client.read_deployment_by_name("retrain/flights")
        assert [schedule.active for schedule in deployment.schedules] == [True]
        preempted = run_id_of(demo.spec, demo.slots[2].at)
        artifacts = {key: newest(client, key) for key in ("segue-model-flights", f"segue-{preempted}")}
    names = [word_of(slot.state) for slot in demo.slots]
    assert [name for name, delivery in zip(names, DELIVERIES, strict=True) if delivery.outcome] == [
        delivery.outcome for delivery in DELIVERIES if delivery.outcome
    ]
    models = demo.log.read()
    assert models.in_service == models.before or models.events[-1].record.kind == "choice"
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: the pages were not opened")
    fetch_docs(demo.store, demo.log.read().slots[demo.slots[3].at].start.docs, tmp_path / "docs")
    validation = next((tmp_path / "docs" / "validations").rglob("*.html"))
    pages = {
        "history": f"{own_stack.url}/artifacts/artifact/{artifacts['segue-model-flights']}",
        "run": f"{own_stack.url}/artifacts/artifact/{artifacts[f'segue-{preempted}']}",
        "runs": f"{own_stack.url}/runs",
        "deployment": f"{own_stack.url}/deployments/deployment/{deployment.id}",
        "data-docs": validation.as_uri(),
    }
    folder = Path(os.environ.get("SEGUE_SCREENSHOTS", tmp_path / "screenshots"))
    for name, url in pages.items():
        screenshot(url, folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000


def newest(client, key: str) -> UUID:
    """The newest version of an artifact."""
    found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return max(found, key=lambda each: each.updated).id


def screenshot(url: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    profile = file.with_suffix(".profile")
    size = ("--window-size=1400,1800", "--virtual-time-budget=20000")
    command = [str(CHROMIUM), *FLAGS, *QUIET, *size, f"--user-data-dir={profile}", f"--screenshot={file}", url]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
