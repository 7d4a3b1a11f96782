"""The artifacts of the tasks on a loss curve, on a real server."""

from __future__ import annotations

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from segue.curves.expectations import CurveReport
from segue.spec import RunSpec
from segue.tasks.curve import check_curve, publish_resume
from tests.support.resumed_run import train

pytestmark = pytest.mark.prefect


@flow(name="look-at-curve", persist_result=False)
def look(spec: RunSpec) -> CurveReport:
    publish_resume(spec)
    return check_curve(spec)


def artifact(key: str) -> str:
    with get_client(sync_client=True) as client:
        (found,) = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return found.data


@pytest.mark.matrix
def test_a_check_is_published_as_a_table_and_a_resume_as_a_plot(stack, fork_server, tmp_path):
    assert look(train(fork_server, tmp_path / "store").history.spec).passed
    text = artifact("segue-nightly-curve")
    assert text.startswith("nightly: nothing failed in steps 1 to 60; ")
    assert "| contiguous steps | met | Each step is one more than the step before it. |" in text
    assert "(data:image/png;base64," in artifact("segue-nightly-resume-point")
